"""Disturbing one sweep again and again, at instants drawn by a seed, and looking after each restart what is left."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
from run_ledger import TrialState
from sweep_platform.tracking import sync

from kills.command import Command
from kills.disturbances import Disturbance
from kills.sweep import NAME, Shaken, check_ledger, check_mlflow

MLFLOW_BEHIND = "the sweep goes on and loses nothing"
"""A command says so if MLflow could not be written; the next one catches up."""
IGNORED = r"Exception ignored in.*\nTraceback"
"""What Python prints of an interrupt in a finaliser, which the driver meets again."""


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
    counts: Counter[str] = field(default_factory=Counter)
    """How often each kind struck a command that ran."""
    looks: int = 0
    """How often was looked at what a command had left."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._finished: dict[int, tuple[Any, ...]] = {}

    def run(self, times: int) -> None:
        """Disturb so often, or until the sweep is over; then let it end, and compare.

        Raises:
            AssertionError: something doesn't hold; it names the seed.
        """
        try:
            command, codes, over = self.shaken.start(), {0}, False
            while self.counts.total() < times and not over:
                command.sleep(self._chance.uniform(0.0, self.longest_s))
                kind = self._chance.choice(sorted(self.disturbances))
                disturbance = self.disturbances[kind]
                struck = command.alive and disturbance.strike(command, self._chance)
                if struck:
                    self.counts[kind] += 1
                    codes |= set(disturbance.codes)
                if command.alive and not (struck and disturbance.ends):
                    continue  # such as a lock: the command has to outlast it
                over = self._ended(command, codes)
                if not over:
                    command, codes = self.shaken.start(), {0}
            self._let_end(command, codes)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}, {dict(self.counts)}: {error}") from error

    def _ended(self, command: Command, codes: set[int]) -> bool:
        """See how a command ended, and what it left; whether the sweep is over."""
        code = command.end()
        assert code in codes, f"exit code {code}, {self.counts}: {command.said}"
        assert "Traceback" not in re.sub(IGNORED, "", command.said), command.said
        whole = code == 0 and MLFLOW_BEHIND not in command.said
        self._check(whole=whole)
        return whole

    def _check(self, *, whole: bool) -> None:
        self.looks += 1
        if self._chance.random() < 0.5:  # otherwise the next command meets what the last one's processes still do
            self._no_process_left()
        seen = self.shaken.read()
        check_ledger(self.shaken, seen, self._finished)
        self._finished |= seen.finished()
        if seen.sweep is None:
            return
        check_mlflow(self.shaken, seen, equal=whole)
        if not whole and self._chance.random() < 0.3:  # the repair; otherwise the next command's own projection
            with self.shaken.ledger() as ledger:
                sync(ledger, NAME, self.shaken.store, self.shaken.home)
            check_mlflow(self.shaken, self.shaken.read(), equal=True)

    def _let_end(self, command: Command, codes: set[int]) -> None:
        """Bring the sweep to its end, and compare it with the one that nobody disturbed."""
        for _ in range(5):
            whole = self._ended(command, codes)
            seen = self.shaken.read()
            if whole and all(trial.state is not TrialState.LOST for trial in seen.trials):
                break
            command, codes = self.shaken.start(), {0}
        else:
            raise AssertionError(f"the sweep doesn't end: {command.said}")
        assert seen.result() == self.unbroken, "another result than the undisturbed sweep's"
        again = self.shaken.start()
        assert again.end() == 0, again.said
        check_mlflow(self.shaken, self.shaken.read(), equal=True)
        assert self.shaken.read().result() == self.unbroken
        self._no_process_left()
        shutil.rmtree(self.shaken.folder, ignore_errors=True)

    def _no_process_left(self) -> None:
        """That within seconds nothing trains into the sweep's folder, and nothing else of it runs after a minute."""
        began = time.monotonic()
        while left := {p.pid: p.info["cmdline"] for p in psutil.process_iter(["cmdline", "environ"]) if self._ours(p)}:
            spent = time.monotonic() - began
            trains = any("ray::Trial" in " ".join(words or ()) for words in left.values())
            assert spent < (10.0 if trains else 60.0), f"ghosts: {left}"
            time.sleep(0.05)

    def _ours(self, process: psutil.Process) -> bool:
        if (process.info["environ"] or {}).get("PLATFORM_HOME") != str(self.shaken.folder):
            return False
        try:
            return bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
