"""Ctrl-C and SIGTERM, by real signals to a process that trains: nothing that was trained is lost or repeated."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dapo.batch import StepMetrics
from dapo.interrupt import interrupts_wait
from dapo.train import train
from training import run, weights

SCRIPT = """
import sys, time
from dapo.config import Config
from dapo.train import train
import dapo.train

policy_update = dapo.train.policy_update

def update(*arguments, **options):
    if "--slow" in sys.argv:
        print("updating", flush=True)
        time.sleep(60 if "--hangs" in sys.argv else 0.5)
    return policy_update(*arguments, **options)

dapo.train.policy_update = update

def report(step):
    print(step.step, step.cost.tokens, flush=True)
    return True

try:
    train(Config.model_validate_json(sys.argv[1]), report)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""
"""`--slow`: each update says when it begins, so that a signal can be sent in the middle of one."""


def interrupted(config: str, number: int, at: str, *flags: str, times: int = 1) -> tuple[int, list[str]]:
    """Run the script, send the signal when the line `at` came; its exit code and output."""
    helpers = str(Path(__file__).parent / "helpers")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([helpers, *sys.path]), "OMP_NUM_THREADS": "1"}
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, config, *flags], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line.strip())
            if told[-1].split()[0] == at and times:
                for _ in range(times):
                    process.send_signal(number)
                    threading.Event().wait(0.2)
                times = 0
    return process.returncode, told


@pytest.mark.parametrize(
    ("number", "code", "at", "flags"),
    [
        (signal.SIGINT, 130, "updating", ("--slow",)),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, "2", (), marks=pytest.mark.slow),
    ],
)
def test_the_update_is_finished_and_saved_and_the_run_goes_on(
    make_config, tmp_path: Path, number: int, code: int, at: str, flags: tuple[str, ...]
) -> None:
    """With `save_freq: 0` nothing else would have saved it. The weights are those of a run that went through."""
    whole = make_config(trainer__total_training_steps=60, trainer__default_local_dir=str(tmp_path / "whole"))
    config = make_config(trainer__total_training_steps=60, trainer__default_local_dir=str(tmp_path / "run"))
    ended, told = interrupted(config.model_dump_json(), number, at, *flags)
    assert ended == code
    assert ("interrupted" in told) == (number == signal.SIGINT)
    steps = [int(line.split()[0]) for line in told if line[0].isdigit()]
    last = steps[-1]
    assert steps == list(range(last + 1)) and last < 60
    assert [path.name for path in (tmp_path / "run").glob("global_step_*")] == [f"global_step_{last}"]
    assert not list((tmp_path / "run").glob(".unfinished-*"))
    run(whole, stop_at=last)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(one[name].equal(other[name]) for name in one)
    again = run(config, stop_at=last + 1)
    assert [step.step for step in again] == [last, last + 1]


def test_a_second_ctrl_c_does_not_wait_and_saves_nothing_half_done(make_config, tmp_path: Path) -> None:
    config = make_config(trainer__default_local_dir=str(tmp_path / "run"))
    code, told = interrupted(config.model_dump_json(), signal.SIGINT, "updating", "--slow", "--hangs", times=2)
    assert (code, told[-2:]) == (130, ["updating", "interrupted"])
    assert not list((tmp_path / "run").glob("global_step_*"))


def test_a_signal_that_is_ignored_stays_ignored(make_config) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_wait() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert interrupt.number is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_are_put_back_and_get_the_signal(make_config, tmp_path: Path) -> None:
    """Also when the run ends in an error, or is complete, before the signal is heeded."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    handler = signal.getsignal(signal.SIGTERM)

    def report(step: StepMetrics) -> bool:
        if step.final:
            signal.raise_signal(signal.SIGTERM)
            assert got == [], "not yet"
        return True

    try:
        train(make_config(trainer__default_local_dir=str(tmp_path / "run")), report)
        assert got == [signal.SIGTERM]
        with pytest.raises(ValueError, match="broken"), interrupts_wait():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("broken")
        assert got == [signal.SIGTERM] * 2
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
