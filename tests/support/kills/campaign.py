"""Disturbing one sweep again and again, at instants drawn by a seed, and looking after each restart what is left."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
from run_ledger import TrialState
from sweep_platform.tracking import sync

from kills.command import Command
from kills.sweep import NAME, Shaken, check_ledger, check_mlflow

Disturbance = Callable[[Command, random.Random], None]
ENDS = {"SIGKILL": (-9,), "SIGTERM": (130, -15), "SIGINT": (130,)}
"""Exit codes after a signal; any command may also have ended well just before."""
FAILED = (1, 2)
"""Exit codes of a command whose database or Ray is gone: 2 only while it opens the ledger."""


def by_signal(name: str) -> Disturbance:
    """Send the driver a signal."""
    return lambda command, _: command.signal(signal.Signals[name])


def no_room(command: Command, chance: random.Random) -> None:
    """Let each write of the driver's to a file beyond a size fail: a real I/O error in the middle of anything."""
    try:
        psutil.Process(command.pid).rlimit(psutil.RLIMIT_FSIZE, (chance.choice((0, 20_000)), psutil.RLIM_INFINITY))
    except psutil.NoSuchProcess:
        return
    if command.sleep(3.0):  # it may not have written; then this is another kill
        command.signal(signal.SIGKILL)


def sqlite_locked(shaken: Shaken) -> Disturbance:
    """Another process holds the ledger's write lock for a while."""

    def hold(command: Command, chance: random.Random) -> None:
        file = shaken.folder / "ledger.db"
        if not file.exists():
            return
        other = sqlite3.connect(file, isolation_level=None, timeout=5.0)
        try:
            other.execute("BEGIN IMMEDIATE")
            command.sleep(chance.uniform(0.1, 1.0))
            other.execute("ROLLBACK")
        finally:
            other.close()

    return hold


MLFLOW_BEHIND = "the sweep goes on and loses nothing"
"""A command says so if MLflow could not be written; the next one catches up."""


@dataclass
class Campaign:
    """One sweep under fire.

    Args:
        shaken: the sweep.
        unbroken: what it comes to if nobody disturbs it; `Seen.result`.
        disturbances: by name; drawn evenly.
        seed: of kinds and instants.
        longest_s: from a command's start or its last disturbance to the next.
    """

    shaken: Shaken
    unbroken: list[tuple[Any, ...]]
    disturbances: Mapping[str, Disturbance]
    seed: int
    longest_s: float
    codes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: ENDS)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each kind struck a command that ran."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._finished: dict[int, tuple[Any, ...]] = {}

    def run(self, times: int) -> None:
        """Disturb so often, or until the sweep is over; then let it end, and compare.

        Raises:
            AssertionError: something doesn't hold; it names the seed.
        """
        try:
            command, over = self.shaken.start(), False
            while self.counts.total() < times and not over:
                command.sleep(self._chance.uniform(0.0, self.longest_s))
                kind = self._chance.choice(sorted(self.disturbances))
                struck = command.alive
                if struck:
                    self.counts[kind] += 1
                    self.disturbances[kind](command, self._chance)
                    if kind not in self.codes and command.sleep(0.3):
                        continue  # such as a lock: the command has to outlast it
                over = self._ended(command, kind if struck else "")
                command = command if over else self.shaken.start()
            self._let_end(command)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}, {dict(self.counts)}: {error}") from error

    def _ended(self, command: Command, kind: str) -> bool:
        """See how a command ended, and what it left; whether the sweep is over."""
        code = command.end()
        assert code in (0, *self.codes.get(kind, ())), f"exit code {code} after {kind or 'nothing'}: {command.said}"
        assert "Traceback" not in command.said, command.said
        whole = code == 0 and MLFLOW_BEHIND not in command.said
        self._check(whole=whole)
        return whole

    def _check(self, *, whole: bool) -> None:
        self._no_process_left()
        seen = self.shaken.read()
        check_ledger(self.shaken, seen, self._finished)
        self._finished |= seen.finished()
        if seen.sweep is None:
            return
        check_mlflow(self.shaken, seen, equal=whole)
        if not whole and self._chance.random() < 0.3:  # the repair; otherwise the next command's own projection
            with self.shaken.ledger() as ledger:
                sync(ledger, NAME, self.shaken.store)
            check_mlflow(self.shaken, self.shaken.read(), equal=True)

    def _let_end(self, command: Command) -> None:
        """Bring the sweep to its end, and compare it with the one that nobody disturbed."""
        for _ in range(5):
            code = command.end()
            assert code in (0, 1, *self.codes.get("", ())), f"exit code {code}: {command.said}"
            whole = code == 0 and MLFLOW_BEHIND not in command.said
            self._check(whole=whole)
            seen = self.shaken.read()
            if whole and all(trial.state is not TrialState.LOST for trial in seen.trials):
                break
            command = self.shaken.start()
        else:
            raise AssertionError(f"the sweep doesn't end: {command.said}")
        assert seen.result() == self.unbroken, "another result than the undisturbed sweep's"
        again = self.shaken.start()
        assert again.end() == 0, again.said
        check_mlflow(self.shaken, self.shaken.read(), equal=True)
        assert self.shaken.read().result() == self.unbroken
        shutil.rmtree(self.shaken.folder, ignore_errors=True)

    def _no_process_left(self) -> None:
        """That nothing runs any more that trains into the sweep's folder; what Ray leaves ends within a minute."""
        limit = time.monotonic() + 10
        while left := [process for process in psutil.process_iter(["cmdline", "environ"]) if self._ours(process)]:
            assert time.monotonic() < limit, f"ghosts: {left}"
            time.sleep(0.05)

    def _ours(self, process: psutil.Process) -> bool:
        environment = process.info["environ"] or {}
        if environment.get("PLATFORM_HOME") != str(self.shaken.folder):
            return False
        title = (process.info["cmdline"] or [""])[0]
        return process.status() != psutil.STATUS_ZOMBIE and "Agent" not in title
