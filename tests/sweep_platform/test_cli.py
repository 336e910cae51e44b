"""The commands on sweeps that ran: what they print, where, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from run_ledger import Ledger
from shell import TOY, Shell


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Shell:
    """A home with a sweep `toy` of two versions, and one, `broken`, without a complete trial."""
    folder = tmp_path_factory.mktemp("swept")
    spec = folder / "toy.yaml"
    spec.write_text(TOY)
    platform = Shell(folder / "home", mlflow_database)
    sweep = ("sweep", spec, "--executor", "inline")
    assert platform(*sweep).code == 0
    assert platform(*sweep, "--new", "seed=5").code == 0
    reply = platform(*sweep, "name=broken", "config.trainer.fault='nan'", "budget.trials=2")
    assert reply.code == 1, "the trainer failed, where 3 says that no candidate is allowed"
    assert reply.err == (
        "broken@1: no complete trial to choose from (trials: 2 failed); let the sweep finish, "
        "or see why trials ended with `platform status broken@1`\n"
    )
    assert "trial 0 failed: step 2: actor/pg_loss is nan" in reply.out
    return platform


def test_status_lists_the_sweeps(swept: Shell) -> None:
    assert swept("status", "--json").json == {
        "sweeps": [
            {"sweep": "toy@1", "trials": {"complete": 6}},
            {"sweep": "toy@2", "trials": {"complete": 6}},
            {"sweep": "broken@1", "trials": {"failed": 2}},
        ]
    }
    reply = swept("status")
    assert (reply.code, reply.err) == (0, "")
    assert "6 complete" in reply.out


def test_status_of_a_sweep(swept: Shell) -> None:
    told = swept("status", "toy@1", "--json").json
    assert told["sweep"] == "toy@1"
    assert [trial["number"] for trial in told["trials"]] == list(range(6))
    for trial in told["trials"]:
        assert trial["state"] == "complete" and trial["step"] == trial["total_steps"] == 4
        assert set(trial["params"]) == {"actor.lr", "actor.batch"}
        assert set(trial["values"]) == {"val/accuracy", "cost/flops"}
        assert trial["cost"]["flops"] == trial["values"]["cost/flops"] == 4e9 * trial["params"]["actor.batch"]
        assert trial["cost"]["tokens"] == 40 and trial["reason"] is None
    broken = swept("status", "broken", "--json").json["trials"]
    assert [(trial["state"], trial["values"]) for trial in broken] == [("failed", None)] * 2
    table = swept("status", "broken").out
    assert "step 2: actor/pg_loss is nan" in table


def test_pareto_as_json_holds_the_front_and_what_it_dominates(swept: Shell) -> None:
    told = swept("pareto", "toy@1", "--json").json
    assert told["sweep"] == "toy@1"
    front, rest = told["points"], told["dominated"]
    assert {point["number"] for point in front} | {point["number"] for point in rest} == set(range(6))
    for name in ("cost/flops", "val/accuracy"):
        values = [point["values"][name] for point in front]
        assert values == sorted(values)
    for point in rest:
        assert any(
            better["values"]["val/accuracy"] >= point["values"]["val/accuracy"]
            and better["values"]["cost/flops"] <= point["values"]["cost/flops"]
            for better in front
        )
    assert [point["number"] for point in front if point["knee"]] == [told["knee"]]
    assert set(front[0]) >= {"number", "values", "errors", "cost", "params", "indistinguishable_from"}
    assert front[0]["cost"]["flops"] == front[0]["values"]["cost/flops"]


def test_pareto_draws_and_prints(swept: Shell, tmp_path: Path) -> None:
    reply = swept("pareto", "toy", "--plot", tmp_path / "new" / "front.png")
    assert (reply.code, reply.err) == (0, "")
    assert "(knee)" in reply.out and reply.out.splitlines()[0].strip() == "toy@2 frontier"
    assert (tmp_path / "new" / "front.png").read_bytes().startswith(b"\x89PNG")
    quiet = swept("pareto", "toy", "--json", "--plot", tmp_path / "front.html")
    assert quiet.json["sweep"] == "toy@2"
    assert (tmp_path / "front.html").exists()
    refused = swept("pareto", "toy", "--plot", tmp_path / "front.gif")
    assert (refused.code, refused.out) == (2, "")
    assert "need a file name that ends in one of .html, .png, .svg, .pdf" in refused.err


def test_rows_are_one_line_where_there_is_no_terminal(swept: Shell) -> None:
    lines = swept("status", "toy").out.splitlines()
    assert len([line for line in lines if "complete" in line and "batch=" in line]) == 6


@pytest.mark.parametrize("command", ["status", "pareto", "pick", "export"])
def test_an_unknown_sweep_lists_those_there_are(swept: Shell, command: str, tmp_path: Path) -> None:
    options = ("--knee", "--out", tmp_path / "best.yaml") if command == "export" else ()
    for address, known in (("aime", "['broken', 'toy']"), ("toy@9", "['toy@1', 'toy@2']"), ("", "['broken', 'toy']")):
        reply = swept(command, address, *options)
        assert (reply.code, reply.out) == (2, "")
        assert reply.err == f"sweep: got {address!r}; need one of {known}; check the name, or run that sweep first\n"


@pytest.mark.parametrize("command", ["pareto", "pick", "export"])
def test_without_a_complete_trial_there_is_nothing_to_choose(swept: Shell, command: str, tmp_path: Path) -> None:
    options = ("--knee", "--out", tmp_path / "best.yaml") if command == "export" else ("--json",)
    reply = swept(command, "broken", *options)
    assert (reply.code, reply.out) == (1, "")
    assert reply.err.startswith("broken@1: no complete trial to choose from (trials: 2 failed)")
    assert not (tmp_path / "best.yaml").exists()


def test_pick_by_knee_and_by_bound(swept: Shell) -> None:
    front = swept("pareto", "toy@1", "--json").json
    points = front["points"]

    def picked(*bound: object) -> int:
        reply = swept("pick", "toy@1", "--json", *bound)
        assert reply.code == 0
        return int(reply.json["point"]["number"])

    assert picked() == picked("--knee") == front["knee"]
    cheapest, dearest = points[0], points[-1]
    assert picked("--max-cost", dearest["values"]["cost/flops"]) == dearest["number"]
    assert picked("--max-cost", cheapest["values"]["cost/flops"]) == cheapest["number"]
    assert picked("--min-accuracy", 0) == cheapest["number"]
    assert picked("--min-accuracy", dearest["values"]["val/accuracy"]) == dearest["number"]
    assert picked("--max-cost", 1e30, "--min-accuracy", points[1]["values"]["val/accuracy"]) == dearest["number"]
    told = swept("pick", "toy@1").out
    assert told.startswith(f"trial {front['knee']}: val/accuracy ")
    assert f"next: platform export toy@1 --trial {front['knee']} --out production/toy.yaml" in told


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (("--max-cost", "1"), "--max-cost: got 1; need at least 4000000000.0: the nearest on the frontier is trial 3"),
        (("--min-accuracy", "1.1"), "--min-accuracy: got 1.1; need at most 0."),
        (("--max-cost", "5e9", "--min-accuracy", "0.9"), "--min-accuracy: got 0.9; need at most 0.4"),
        (("--max-cost", "nan"), "--max-cost: got nan; need a number"),
        (("--knee", "--max-cost", "1e12"), "--knee: got --knee and a bound; need one of them"),
    ],
)
def test_no_such_point(swept: Shell, bound: tuple[str, ...], told: str, tmp_path: Path) -> None:
    for command in (("pick", "toy@1"), ("export", "toy@1", "--out", str(tmp_path / "best.yaml"))):
        reply = swept(*command, *bound)
        assert (reply.code, reply.out) == (2, "")
        assert told in reply.err
    assert not (tmp_path / "best.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("broken", "--trial", "0"), "--trial: got 0, which is failed; need a complete trial; let the sweep finish"),
        (("toy", "--trial", "6"), "--trial: got 6; need a complete trial of toy@2: one of [0, 1, 2, 3, 4, 5]"),
        (("toy", "--trial", "1", "--knee"), "export: got --trial and another"),
        (("toy", "--trial", "1", "--to", "nosuch"), "--to: got 'nosuch'; need one of ["),
        (("toy", "--trial", "1", "--out", "toy.yaml"), "--out: got toy.yaml, which exists"),
        (("toy", "--trial", "1", "--out", "toy.yaml/best.yaml"), "--out: got toy.yaml/best.yaml ("),
    ],
)
def test_what_cannot_be_exported(
    swept: Shell, arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(TOY)
    reply = swept("export", *(arguments if "--out" in arguments else (*arguments, "--out", "best.yaml")))
    assert (reply.code, reply.out) == (2, "")
    assert reply.err.startswith(told)
    assert Path("toy.yaml").read_text() == TOY
    assert [path.name for path in tmp_path.iterdir()] == ["toy.yaml"]


def test_a_running_trial_is_not_exported(platform: Shell) -> None:
    with Ledger.open(f"sqlite:///{platform.home}/ledger.db") as ledger:
        spec = {"trainer": "toybox.trainer", "objectives": [{"metric": "val/accuracy", "direction": "maximize"}]}
        lease = ledger.acquire_sweep(ledger.create_sweep("now", spec, "0" * 64, 0, None).id, "me")
        trial = ledger.add_trial(lease, number=0, params={}, params_hash="h", config={}, origin="tpe", sampler_state={})
        ledger.start_attempt(lease, trial.id, host="h", pid=1)
    reply = platform("export", "now", "--trial", 0, "--out", "best.yaml")
    assert (reply.code, reply.out) == (2, "")
    assert reply.err.startswith("--trial: got 0, which is running; need a complete trial; let the sweep finish first")
    told = platform("pareto", "now")
    assert (told.code, told.out) == (3, "") and "(trials: 1 running)" in told.err


def test_export_and_train_give_the_accuracy_again(swept: Shell, tmp_path: Path) -> None:
    point = swept("pick", "toy@1", "--json").json["point"]
    out = tmp_path / "production" / "best.yaml"
    exported = swept("export", "toy@1", "--knee", "--out", out)
    assert exported.code == 0
    assert exported.out.splitlines()[-1] == f"next: platform train {out}"
    assert yaml.safe_load(out.read_text())["provenance"]["trial"] == point["number"]
    trained = swept("train", out)
    assert (trained.code, trained.err) == (0, "")
    accuracy = f"val/accuracy: {point['values']['val/accuracy']:.3f} (n=1)"
    assert "run best finished after 4 steps" in trained.out and accuracy in trained.out.splitlines()
    again = swept("train", out)
    assert again.code == 0 and "run best was finished before" in again.out and accuracy in again.out
    changed = swept("train", out, "actor.lr=0.5")
    assert (changed.code, changed.out) == (2, "")
    assert changed.err.startswith("override:actor.lr: got 0.5; need ") and "--name" in changed.err
    longer = swept("train", out, "trainer.total_training_steps=6", "--name", "longer")
    assert longer.code == 0 and "run longer finished after 6 steps" in longer.out


def test_a_trainer_that_fails_is_told_in_a_line(swept: Shell, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("trainer: toybox.trainer\nconfig: {trainer: {fault: raise}}\n")
    reply = swept("train", tmp_path / "bad.yaml")
    assert reply.code == 1
    assert reply.err.startswith("bad failed: ValueError: the loss") and reply.err.count("\n") <= 2


COMMANDS = ["", "sweep", "validate", "status", "pareto", "pick", "export", "train", "warmstart", "model fetch", "ui"]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_an_example(swept: Shell, command: str) -> None:
    reply = swept(*command.split(), "--help")
    assert reply.code == 0
    assert f"platform {command or 'sweep'}" in reply.out.partition("Examples:")[2]
