"""The command `sweep` from start to end: resumed, changed, started anew, interrupted, alone on its sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_ledger import Ledger
from shell import Shell

INLINE = ("sweep", "toy.yaml", "--executor", "inline")


def test_plain_lines_where_there_is_no_terminal(platform: Shell) -> None:
    reply = platform(*INLINE)
    assert (reply.code, reply.err) == (0, "")
    lines = reply.out.splitlines()
    assert lines[0] == "[0s] sweep toy@1: 6 trials, 1 at once"
    assert any("trial 3 step 4/4: accuracy 0.497, cost 4 GFLOPs" in line for line in lines)
    assert "\x1b" not in reply.out
    assert (
        lines[-1]
        == "next: platform confirm toy, or platform export toy --knee --out production/toy.yaml, or platform ui"
    )


def test_the_same_command_goes_on_and_a_changed_spec_is_refused(platform: Shell) -> None:
    assert platform(*INLINE, "budget.trials=2").code == 0
    before = platform("status", "toy", "--json").json["trials"]
    more = platform(*INLINE, "budget.trials=3")
    assert more.code == 0 and "2 already finished" in more.out
    assert platform("status", "toy", "--json").json["trials"][:2] == before

    changed = platform(*INLINE, "config.actor.shards=1", "config.trainer.save_freq=1", "seed=3")
    assert (changed.code, changed.out) == (2, "")
    assert changed.err.splitlines() == [
        "sweep toy@1: got a spec that differs from the one its trials were run with:",
        "  config.trainer.save_freq: was 2, is 1",
        "  config.trainer.seed: was 0, is 3",
        "  seed: was 0, is 3",
        "need the same spec to go on; undo the change, start toy@2 with --new, or give the spec another name",
    ]
    assert len(platform("status", "toy@1", "--json").json["trials"]) == 3

    assert platform(*INLINE, "budget.trials=1", "seed=3", "--new").code == 0
    counts = {row["sweep"]: row["trials"] for row in platform("status", "--json").json["sweeps"]}
    assert counts == {"toy@1": {"complete": 3}, "toy@2": {"complete": 1}}


def test_a_space_where_nothing_runs_ends_with_its_own_code(platform: Shell) -> None:
    reply = platform(*INLINE, "constraints=['actor.lr > 2']")
    assert reply.code == 3
    assert "no complete trial to choose from (trials: 64 infeasible)" in reply.err
    assert "actor.lr > 2 does not hold" in reply.out


def test_a_trainer_may_say_more_of_a_valid_config(platform: Shell) -> None:
    aime = Path(__file__).parents[2] / "sweeps" / "aime.yaml"
    reply = platform("validate", str(aime), "config.rollout.n=16")
    assert reply.code == 0
    told = "base config: rounds per batch, of 32 prompts x 16 responses, about 2.6 at a pass rate of 3%"
    assert reply.out.splitlines()[1].startswith(told)


def test_values_of_a_prior_that_are_not_used_are_told(platform: Shell) -> None:
    reply = platform("validate", "toy.yaml", "priors=[{actor.shards: 1}]")
    assert (reply.code, reply.out.count("\n")) == (0, 1)
    assert reply.err == "note: toy.yaml: priors.inline-0: actor.shards is not searched; its value 1 is not used\n"


def start(platform: Shell, *arguments: str) -> subprocess.Popen[str]:
    """A command in a process of its own; the sweep, slow enough to be caught."""
    command = Path(sys.executable).with_name("platform")
    return subprocess.Popen(
        [command, *(arguments or (*INLINE, "config.trainer.seconds=0.15", "budget.trials=4"))],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "PLATFORM_HOME": str(platform.home),
            "MLFLOW_TRACKING_URI": f"sqlite:///{platform.mlflow}",
            "PYTHONIOENCODING": "ascii",  # a terminal that knows no `±` and no `━`
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupted_sweep_says_how_to_go_on_and_goes_on(platform: Shell) -> None:
    process = start(platform)
    assert process.stdout is not None
    for line in process.stdout:
        if "trial 1 step 2/4" in line:
            process.send_signal(signal.SIGINT)
            break
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "interrupted; state is saved, the same command goes on from here"
    assert "Traceback" not in told
    finished = [trial["state"] for trial in platform("status", "toy", "--json").json["trials"]].count("complete")
    assert 1 <= finished < 4

    process = start(platform)
    shown, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
    assert f"{finished} already finished" in shown and f"trial {finished} started again, attempt 2" in shown
    trials = platform("status", "toy", "--json").json["trials"]
    assert [(trial["number"], trial["state"]) for trial in trials] == [(number, "complete") for number in range(4)]
    assert [trial["attempts"] for trial in trials] == [1 + (number == finished) for number in range(4)]


def test_a_run_says_what_its_trainer_says(platform: Shell, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("trainer: toybox.trainer\nconfig: {}\n")
    shown, told = start(platform, "train", str(tmp_path / "run.yaml")).communicate(timeout=60)
    assert told == "plan: 4 steps\n"
    assert "run run finished after 4 steps" in shown
    assert (platform.home / "runs" / "run" / "trainer.log").read_text().endswith(" plan: 4 steps\n")


def test_a_sweep_that_another_process_runs_is_left_to_it(platform: Shell) -> None:
    assert platform(*INLINE, "budget.trials=1").code == 0
    with Ledger.open(f"sqlite:///{platform.home}/ledger.db") as ledger:
        sweep = ledger.find_sweep("toy")
        assert sweep is not None
        ledger.acquire_sweep(sweep.id, "another")
        busy = platform(*INLINE)
    assert (busy.code, busy.out) == (2, "")
    assert busy.err.startswith("ledger: got sweep toy@1, which another runs") and "wait for that process" in busy.err
    assert len(platform("status", "toy", "--json").json["trials"]) == 1


@pytest.mark.parametrize(("limit", "told"), [("0.01", ", more than hardware.memory_gb, 0.01"), ("16", "")])
def test_a_base_that_needs_more_memory_than_there_is_is_told(platform: Shell, limit: str, told: str) -> None:
    aime = Path(__file__).parents[2] / "sweeps" / "aime.yaml"
    reply = platform("validate", str(aime), f"hardware.memory_gb={limit}")
    (line,) = (line for line in reply.out.splitlines() if "on one device" in line)
    assert reply.code == 0 and line.endswith(f"on one device{told}")
