"""The command doctor: what trainers find is put together, and what only a whole sweep shows is added."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_ledger import Ledger
from shell import TOY, Shell

AILING = TOY.replace("toybox.trainer", "toybox.ailing")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Shell:
    """A home with sweeps `toy` (of a trainer that has no opinion), `ailing`, `broken` and `refused`."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "toy.yaml").write_text(TOY)
    (folder / "ailing.yaml").write_text(AILING)
    platform = Shell(folder / "home", mlflow_database)
    inline = ("--executor", "inline")
    assert platform("sweep", folder / "toy.yaml", *inline).code == 0
    assert platform("sweep", folder / "ailing.yaml", *inline, "name=ailing").code == 0
    assert platform("sweep", folder / "toy.yaml", *inline, "name=broken", "config.trainer.fault='nan'").code == 1
    rare = ("constraints=['actor.lr * actor.batch <= 0.03']", "budget.trials=2", "name=refused")
    assert platform("sweep", folder / "toy.yaml", *inline, *rare).code == 0
    assert platform("export", "ailing", "--knee", "--out", folder / "best.yaml").code == 0
    assert platform("train", folder / "best.yaml", "actor.batch=2").code == 0
    assert platform("train", folder / "best.yaml", "--name", "ailing").code == 0
    return platform


def findings(platform: Shell, *arguments: object) -> dict[str, dict[str, object]]:
    told = platform("doctor", *arguments, "--json").json
    return {finding["name"]: finding for finding in told["findings"]}


def test_trials_with_one_fault_are_told_together(swept: Shell) -> None:
    with Ledger.open(f"sqlite:///{swept.home / 'ledger.db'}") as ledger:
        record = ledger.find_sweep("ailing")
        assert record is not None
        trials = ledger.trials(record.id)
    small = [trial.number for trial in trials if trial.params["actor.batch"] < 8]
    timid = [trial.number for trial in trials if trial.metrics["val/accuracy"] < 0.4]
    found = findings(swept, "ailing")
    assert small and found["small batch"]["trials"] == small
    assert found["small batch"]["advice"] == ["raise it", "or not"]
    assert "in 4 steps" in str(found["small batch"]["evidence"])
    assert ("too timid" in found) == bool(timid)
    shown = swept("doctor", "ailing").out
    assert f"sweep ailing@1: {len(found)} finding" in shown and "   - raise it\n   - or not\n" in shown


def test_one_trial_alone(swept: Shell) -> None:
    found = findings(swept, "ailing", "--trial", 0)
    assert set(found) <= {"small batch", "too timid"}
    assert all(finding["trials"] == [0] for finding in found.values())


def test_a_run_of_train_has_its_own(swept: Shell) -> None:
    found = findings(swept, "best")
    assert found["small batch"]["trials"] == [] and found["small batch"]["evidence"] == "2 prompts in 4 steps"
    assert "run best: " in swept("doctor", "best").out


def test_a_sweep_goes_before_a_run_of_its_name(swept: Shell) -> None:
    """`platform train production/aime.yaml` names its run as the sweep is called."""
    assert swept("doctor", "ailing", "--json").json["examined"] == "sweep ailing@1"
    assert swept("doctor", "ailing", "--run", "--json").json["examined"] == "run ailing"


def test_a_home_with_a_run_and_no_ledger(swept: Shell, tmp_path: Path) -> None:
    shutil.copytree(swept.home / "runs", tmp_path / "runs")
    assert findings(Shell(tmp_path, swept.mlflow), "best")["small batch"]["trials"] == []


def test_a_trainer_without_an_opinion_leaves_what_the_sweep_shows(swept: Shell) -> None:
    assert set(findings(swept, "toy")) <= {"noise is larger than the differences"}


def test_failed_trials_are_told_with_their_reason(swept: Shell) -> None:
    failed = findings(swept, "broken")["trials failed"]
    assert "actor/pg_loss is nan" in str(failed["evidence"]) and failed["trials"] == list(range(6))
    assert "traceback.txt" in str(failed["advice"])


def test_a_space_of_which_most_is_refused_is_the_fault(swept: Shell) -> None:
    refused = findings(swept, "refused")["most candidates are refused"]
    assert "actor.lr * actor.batch <= 0.03" in str(refused["evidence"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none",), "sweep: got 'none'; need one of "),
        (("toy", "--trial", "99"), "--trial: got 99; need one of 0 to 5; see platform status toy"),
        (("../best",), "sweep: got '../best'; need one of "),
        (("none", "--run"), "run: got 'none'; need a run of platform train"),
        (("best", "--run", "--trial", "1"), "--trial: got 1; need a sweep"),
    ],
)
def test_what_isnt_there_is_bad_input(swept: Shell, arguments: tuple[str, ...], said: str) -> None:
    reply = swept("doctor", *arguments)
    assert reply.code == 2 and said in reply.err
