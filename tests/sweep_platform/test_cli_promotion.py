"""The commands promote, promotions, rollback and diff, and train of what is promoted; MLflow's registry, read back."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from run_ledger import Ledger
from shell import TOY, Shell
from sweep_platform.tracking import Store


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Shell:
    """A home with the sweep `toy` of six trials, two of its front confirmed; tests take copies."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "toy.yaml").write_text(TOY)
    platform = Shell(folder / "home", mlflow_database)
    assert platform("sweep", folder / "toy.yaml", "--executor", "inline", "--plain").code == 0
    reply = platform("confirm", "toy", "--max-runs", "2", "--executor", "inline", "--plain")
    assert reply.code == 0, reply.err
    assert "next: platform promote toy --knee --as production, or platform export" in reply.out
    return platform


@pytest.fixture
def toy(swept: Shell, platform: Shell) -> Shell:
    shutil.copytree(swept.home, platform.home)
    return platform


def store(platform: Shell) -> Store:
    return Store(f"sqlite:///{platform.mlflow}", platform.home / "artifacts")


def front(platform: Shell) -> tuple[list[int], list[int]]:
    """Confirmed trials on the front, and the complete candidates that nobody confirmed."""
    confirmed = [point["number"] for point in platform("pareto", "toy", "--json").json["points"]]
    trials = platform("status", "toy", "--json").json["trials"]
    known = {tuple(sorted(t["params"].items())) for t in trials if t["replicate"]}
    return confirmed, [
        t["number"] for t in trials if not t["replicate"] and tuple(sorted(t["params"].items())) not in known
    ]


def versions(platform: Shell, name: str = "toy") -> dict[str, str]:
    """Trial by alias, as MLflow says it of this ledger's."""
    client = store(platform).client
    aliases = client.get_registered_model(name).aliases
    return {alias: client.get_model_version(name, version).tags["trial"] for alias, version in aliases.items()}


def test_a_confirmed_trial_is_promoted_with_its_evidence_and_shown_in_mlflow(toy: Shell) -> None:
    number = toy("pick", "toy", "--json").json["point"]["number"]
    reply = toy("promote", "toy", "--knee", "--as", "production", "-m", "half [the] cost | [/]\x1b[31m", "--by", "ann")
    assert reply.code == 0, reply.err
    assert f"production: trial {number} of toy@1, val/accuracy" in reply.out
    assert "(confirmed by 2 runs on 4 problems)" in reply.out
    assert "next: platform train production" in reply.out

    told = toy("promotions", "--json").json
    (made,) = told["promotions"]
    assert told["current"] == {"production": made["id"]}
    assert (made["sweep"], made["trial"], made["who"], made["confirmed"]) == ("toy@1", number, "ann", True)
    evidence = made["evidence"]
    assert (evidence["rule"], evidence["confirming_runs"], evidence["problems"]) == ("--knee", 2, {"toy": 4})
    assert len(evidence["trials"]) == 2 and number not in evidence["trials"]
    assert evidence["on_front"] and set(evidence["values"]) == {"val/accuracy", "cost/flops"}
    table = toy("promotions").out
    assert "half [the] cost | [/]" in table and "\x1b" not in table

    client = store(toy).client
    version = client.get_model_version_by_alias("toy", "production")
    assert (version.tags["trial"], version.tags["confirmed"], version.tags["promoted_as"]) == (
        *(str(number), "yes"),
        "production",
    )
    weights = toy.home / "trials" / "toy@1" / str(number)
    assert (version.source, version.tags["weights"]) == (weights.as_uri(), str(weights))
    assert "Confirmed by 2 runs under new seeds, on 4 problems." in version.description
    assert r"half \[the\] cost \| \[/\]" in version.description
    run = client.get_run(version.run_id)
    assert run.data.params["actor.lr"] == str(
        toy("status", "toy", "--json").json["trials"][number]["params"]["actor.lr"]
    )

    again = toy("promote", "toy", "--knee", "--by", "bob")
    assert again.code == 0 and "it was that already, by ann since" in again.out
    assert toy("promotions", "--json").json["promotions"] == [made]


def test_the_unconfirmed_needs_the_option_and_is_marked_everywhere(toy: Shell) -> None:
    _, (number, *_) = front(toy)
    refused = toy("promote", "toy", "--trial", number)
    assert (refused.code, refused.out) == (2, "")
    assert f"promote: got trial {number} of toy@1, which one run speaks for; need one that was" in refused.err
    assert "run platform confirm toy@1, which runs the frontier again, or add --unconfirmed" in refused.err
    assert toy("promotions").out == "nothing was promoted yet; platform promote SWEEP --knee does\n"

    reply = toy("promote", "toy", "--trial", number, "--unconfirmed", "--as", "staging")
    assert reply.code == 0 and "(UNCONFIRMED: one run on 4 problems)" in reply.out
    assert "UNCONFIRMED" in toy("promotions").out
    assert f"staging: trial {number} by " in toy("status", "toy").out and "UNCONFIRMED" in toy("status", "toy").out
    version = store(toy).client.get_model_version_by_alias("toy", "staging")
    assert version.tags["confirmed"] == "no" and "**UNCONFIRMED**" in version.description
    passed_on = toy("promote", "staging", "--as", "production")
    assert passed_on.code == 2 and "add --unconfirmed" in passed_on.err, "an alias is no evidence"


def test_production_is_trained_and_rolled_back(toy: Shell) -> None:
    (first, second, *_), _ = front(toy)
    for number in (first, second):
        assert toy("promote", "toy", "--trial", number).code == 0
    trained = toy("train", "production")
    assert trained.code == 0, trained.err
    assert f"production: trial {second} of toy@1, promoted " in trained.out
    assert f"run toy-1-{second} finished after 4 steps" in trained.out

    back = toy("rollback", "-m", "it diverged", "--by", "bob")
    assert back.code == 0, back.err
    assert f"production: trial {first} of toy@1 again" in back.out
    assert f"before: trial {second} of toy@1, promoted " in back.out
    assert versions(toy)["production"] == str(first)
    history = toy("promotions", "production", "--json").json["promotions"]
    assert [(each["trial"], each["restores"]) for each in history] == [
        *((first, None), (second, None)),
        (first, history[0]["id"]),
    ]
    assert (history[-1]["who"], history[-1]["why"]) == ("bob", "it diverged")
    assert f"run toy-1-{first} finished" in toy("train", "production").out

    none_left = toy("rollback")
    assert (none_left.code, none_left.out) == (2, "")
    assert "which has no earlier trial than" in none_left.err and "--to N" in none_left.err
    assert toy("rollback", "--to", history[1]["id"]).code == 0
    assert f"run toy-1-{second} was finished before" in toy("train", "production").out, "the run that there was"
    file = Path("best.yaml")
    assert toy("export", "production", "--out", file).code == 0
    assert yaml.safe_load(file.read_text())["provenance"]["trial"] == second
    assert "promoted as production by" in _report(toy)


def _report(platform: Shell) -> str:
    reply = platform("report", "toy", "--out", "report.html")
    assert reply.code == 0, reply.err
    return Path("report.html").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("promote nosuch --knee", "sweep: got 'nosuch'; need one of ['toy']"),
        ("promote nosuch", "sweep: got 'nosuch'; need one of ['toy']"),
        ("promote toy", "promote: got none; need one of --trial N, --knee, --max-cost X, --min-accuracy Y"),
        ("promote toy --trial 1 --knee", "promote: got --trial and another; need one of"),
        ("promote toy --trial 99", "got 99"),
        ("promote toy --knee --as latest", "--as: got 'latest'; need letters, digits"),
        ("promote toy --knee --as a.yaml", "--as: got 'a.yaml'; need letters, digits"),
        ("rollback", "--as: got 'production'; need the alias of a promotion; there is none yet"),
        ("promotions nosuch", "promotions: got 'nosuch'; need the alias of a promotion; there is none yet"),
        ("train production", "train: got 'production'; need a production file, or the alias of a promotion"),
        ("diff nosuch toy", "diff: got 'nosuch'; need a file, SWEEP:TRIAL such as aime:3, or the alias"),
        ("diff nosuch toy", "diff: got 'toy', a sweep; need a file, SWEEP:TRIAL"),
        ("diff toy:99 bytes.yaml", "diff: got toy:99; need a trial of toy@1: 0 to "),
        ("diff toy:99 bytes.yaml", "bytes.yaml: got byte 0xff at 0; need UTF-8 text"),
        ("diff toy:1 gone.yaml", "diff: got 'gone.yaml', which is no file here; need a file, SWEEP:TRIAL"),
    ],
)
def test_bad_input_is_refused_with_the_next_step(toy: Shell, command: str, message: str) -> None:
    Path("bytes.yaml").write_bytes(b"\xff\xfe\x00")
    reply = toy(*command.split())
    assert (reply.code, reply.out) == (2, "")
    assert message in reply.err


def test_two_configs_side_by_side(toy: Shell) -> None:
    (first, second, *_), _ = front(toy)
    assert toy("promote", "toy", "--trial", first, "--as", "left").code == 0
    assert toy("export", "toy", "--trial", second, "--out", "right.yaml").code == 0
    configs = [toy("status", "toy", "--json").json["trials"][number]["params"] for number in (first, second)]
    told = toy("diff", "left", "right.yaml", "--json").json
    assert told["differing"] == [path for path in configs[0] if configs[0][path] != configs[1][path]]
    for side, config in zip((told["a"], told["b"]), configs, strict=True):
        assert side["config"] == {path: config[path] for path in told["differing"]}
        assert side["basis"] == "confirmed by 2 runs" + " on 4 problems" * (side is told["a"])
    shown = toy("diff", "left", "right.yaml").out
    assert f"left (trial {first} of toy@1)" in shown and f"right.yaml (trial {second} of toy@1)" in shown
    assert all(str(config["actor.lr"]) in shown for config in configs)
    assert "no settings differ" in toy("diff", "left", f"toy:{first}").out
    against_spec = toy("diff", f"toy@1:{first}", "toy.yaml", "--all").out
    assert "toy.yaml (sweep spec)" in against_spec and "searched: a number from 0.01 to 1" in against_spec


@pytest.mark.slow
def test_killed_between_ledger_and_registry_sync_repairs(toy: Shell) -> None:
    (first, second, *_), _ = front(toy)
    assert toy("promote", "toy", "--trial", first).code == 0
    own = toy.home / "mlflow.db"
    shutil.copy(toy.mlflow, own)
    alone = Shell(toy.home, own)
    lock = sqlite3.connect(own, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    command = [sys.executable, "-c", "from sweep_platform.cli import main; main()"]
    environment = {**os.environ, "PLATFORM_HOME": str(toy.home), "MLFLOW_TRACKING_URI": f"sqlite:///{own}"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.Popen([*command, "promote", "toy", "--trial", str(second)], env=environment)
    try:
        with Ledger.open(f"sqlite:///{toy.home}/ledger.db") as ledger:
            until = time.monotonic() + 30
            while len(ledger.promotions("production")) < 2 and time.monotonic() < until:
                time.sleep(0.05)
            assert len(ledger.promotions("production")) == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        lock.close()
    assert versions(alone)["production"] == str(first), "MLflow doesn't know yet"
    assert alone("mlflow", "sync", "toy").code == 0
    assert versions(alone)["production"] == str(second)
    store(alone).client.delete_registered_model("toy")
    assert alone("mlflow", "sync", "toy").code == 0, "lost altogether"
    assert versions(alone)["production"] == str(second)


def test_a_registry_that_cannot_be_written_loses_no_promotion(toy: Shell, tmp_path: Path) -> None:
    (first, *_), _ = front(toy)
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all" * 100)
    reply = Shell(toy.home, broken)("promote", "toy", "--trial", first)
    assert reply.code == 0
    assert "recorded, but MLflow doesn't show it: " in reply.err
    assert "once that is well, platform mlflow sync toy@1 writes it" in reply.err
    assert len(toy("promotions", "--json").json["promotions"]) == 1


def test_the_ledger_decides_and_what_is_not_ours_is_left_alone(toy: Shell) -> None:
    (first, second, *_), _ = front(toy)
    own = toy.home / "mlflow.db"
    shutil.copy(toy.mlflow, own)
    alone = Shell(toy.home, own)
    for number in (first, second):
        assert alone("promote", "toy", "--trial", number).code == 0
    client = store(alone).client
    other = next(each for each in client.search_model_versions("name = 'toy'") if each.tags["trial"] == str(first))
    for alias in ("production", "mine"):
        client.set_registered_model_alias("toy", alias, other.version)
    assert alone("mlflow", "sync", "toy").code == 0
    assert {alias: versions(alone)[alias] for alias in ("production", "mine")} == {
        "production": str(second),
        "mine": str(first),
    }
    client.delete_registered_model("toy")
    client.create_registered_model("toy")
    reply = alone("promote", "toy", "--trial", first)
    assert "a registered model 'toy' in sqlite:///" in reply.err and "that no promotion made" in reply.err
    assert client.get_registered_model("toy").aliases == {}
    assert alone("promotions", "--json").json["promotions"][-1]["trial"] == first
