"""A sweep that is killed and started again ends as one that was not: no trial lost, none repeated, no ghost."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_ledger import Ledger, TrialRecord, TrialState
from sweep_platform.home import Home
from toybox.command import STEPS, TRIALS

TOTAL = TRIALS * STEPS
IN_THE_BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Starts a command as a script does with &: SIGINT is ignored until the command says otherwise."""


class Command:
    """The toy sweep's command, in a process."""

    def __init__(self, folder: Path, executor: str) -> None:
        self.folder = folder
        own_home = folder / "user"
        own_home.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            [*IN_THE_BACKGROUND, sys.executable, "-W", "error", "-m", "toybox.command", str(folder), executor],
            env={**os.environ, "PYTHONPATH": path, "HOME": str(own_home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Wait for the end; exit code and output."""
        output, _ = self.process.communicate(timeout=90)
        return self.process.returncode, output

    def stop_at(self, steps: int, number: int) -> tuple[int, str]:
        """Send a signal once so many steps were trained; nothing that trains is left after it.

        Ray's own agents need a minute to see that they are orphans; they do nothing until then.
        """
        wait_for(lambda: trained(self.folder) >= steps or self.process.poll() is not None)
        assert self.process.poll() is None, self.end()
        family = psutil.Process(self.process.pid).children(recursive=True)
        family = [member for member in family if "Agent" not in member.cmdline()[0]]
        self.process.send_signal(number)
        result = self.end()
        wait_for(lambda: not any(map(alive, family)))
        return result


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that ended but that nobody has asked about doesn't."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit, "waited for two minutes"
        time.sleep(0.002)


def logs(folder: Path) -> dict[int, list[int]]:
    """Every step that was ever trained, by trial."""
    files = (folder / "trials" / "toy@1").glob("*/trained.log")
    return {int(file.parent.name): [int(line) for line in file.read_text().split()] for file in files}


def trained(folder: Path) -> int:
    return sum(map(len, logs(folder).values()))


def result(folder: Path) -> list[TrialRecord]:
    home = Home(folder)
    with Ledger.open(home.ledger_url) as ledger:
        sweep = ledger.find_sweep("toy")
        assert sweep is not None
        return ledger.trials(sweep.id)


def essence(trials: list[TrialRecord]) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, dict(t.params), t.values, t.cost.flops, t.cost.tokens) for t in trials]


def assert_whole(folder: Path, unbroken: list[tuple[Any, ...]]) -> None:
    trials = result(folder)
    assert essence(trials) == unbroken
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * TRIALS
    assert logs(folder) == {number: list(range(1, STEPS + 1)) for number in range(TRIALS)}, "a step was repeated"
    with sqlite3.connect(folder / "ledger.db") as database:
        rows = database.execute("select exit_reason from ledger_attempts order by id").fetchall()
    database.close()
    reasons = [reason for (reason,) in rows]
    assert reasons.count("complete") == TRIALS and set(reasons) <= {"complete", "lost", "waiting"}, "a ghost"
    assert len(reasons) == sum(trial.attempts for trial in trials) > TRIALS


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """How the sweep ends when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert Command(folder, "inline").end()[0] == 0
    return essence(result(folder))


def test_killed_inline(tmp_path: Path, unbroken: list[tuple[Any, ...]]) -> None:
    for steps in sorted(random.Random(1).sample(range(1, TOTAL), 3)):
        code, output = Command(tmp_path, "inline").stop_at(steps, signal.SIGKILL)
        assert code == -signal.SIGKILL, output
    code, output = Command(tmp_path, "inline").end()
    assert code == 0, output
    assert_whole(tmp_path, unbroken)
    assert Command(tmp_path, "inline").end()[0] == 0
    assert_whole(tmp_path, unbroken)


@pytest.mark.slow
def test_killed_under_ray(tmp_path: Path, unbroken: list[tuple[Any, ...]]) -> None:
    code, output = Command(tmp_path, "ray").stop_at(random.Random(3).randrange(1, TOTAL - STEPS), signal.SIGKILL)
    assert code == -signal.SIGKILL, output
    code, output = Command(tmp_path, "ray").end()
    assert (code, output) == (0, ""), "nothing but the sweep's own display writes to the terminal"
    assert not (tmp_path / "user" / "ray_results").exists()
    assert_whole(tmp_path, unbroken)


@pytest.mark.slow
def test_interrupted_inline(tmp_path: Path, unbroken: list[tuple[Any, ...]]) -> None:
    for number, steps in ((signal.SIGINT, 7), (signal.SIGTERM, 14)):
        code, output = Command(tmp_path, "inline").stop_at(steps, number)
        assert code == 130, output
    assert Command(tmp_path, "inline").end()[0] == 0
    assert_whole(tmp_path, unbroken)
