"""The driver: a state machine that an executor turns from one process. Nothing else writes its sweep."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from run_ledger import TrialRecord, TrialState

from sweep_platform.driver.assignment import WAIT, Assignment, Crashed, Outcome, Wait
from sweep_platform.driver.failures import BACKOFF_S, RETRIES, disk_fault, machine_fault
from sweep_platform.driver.placing import Workplace, set_aside, spread, trainer_section, with_trainer
from sweep_platform.driver.plan import Plan
from sweep_platform.driver.reading import Verdict, judge, read
from sweep_platform.driver.roster import Roster
from sweep_platform.errors import PlatformError
from sweep_platform.events import Announcer
from sweep_platform.home import Home
from sweep_platform.search import Feasibility
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import StepMetrics

_WAITING, _RUNNING = TrialState.WAITING, TrialState.RUNNING
TRACEBACK = "traceback.txt"
"""In the trial's folder: how the trainer failed."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """A trial that is running."""

    assignment: Assignment
    last: StepMetrics | None = None
    fault: str | None = None
    """Why it must end as failed, whatever the trainer does from now on."""
    paused: bool = False
    """It stops at a rung, with a checkpoint."""


class Driver:
    """One run of a command on one sweep. `open_sweep` makes it.

    Args:
        roster: The sweep's trials in the ledger.
        plan: What is to run, beside what an earlier process left.
        spec: Its spec; the budget may differ from the stored one's.
        feasibility: The sweep's limits.
        observers: Told of everything, after it is recorded.
        home: Where the trials' folders are.
    """

    def __init__(
        self,
        *,
        roster: Roster,
        plan: Plan,
        spec: SweepSpec,
        feasibility: Feasibility,
        observers: Announcer,
        home: Home,
    ) -> None:
        self.sweep = roster.sweep
        self.spec = spec
        self.trainer = feasibility.trainer
        self.observers = observers
        self._roster = roster
        self._plan = plan
        self._feasibility = feasibility
        self._home = home
        self._workplace = Workplace(home.trial_dir(roster.sweep, 0).parent, roster.lease.token)
        self._place: Path | None = None
        self._running: dict[int, _Run] = {}
        self._losses: Counter[int] = Counter()
        self._interrupted = False
        # When each trial may start that was left, or that is to be tried again.
        left = (trial for trial in roster.trials if plan.owns(trial) and trial.state in (_WAITING, _RUNNING))
        self._queue = dict.fromkeys((trial.number for trial in left), 0.0)

    @property
    def trials(self) -> list[TrialRecord]:
        """The sweep's trials as this process knows them, by number."""
        return self._roster.trials

    @property
    def running(self) -> tuple[Assignment, ...]:
        """The attempts that are out."""
        return tuple(run.assignment for run in self._running.values())

    @property
    def finished(self) -> bool:
        """Whether nothing is running, and nothing will start or go on any more."""
        return not (self._queue or self._running or self._plan.pending) and self._plan.limit() is not None

    @property
    def cut_short(self) -> str | None:
        """Which limit ended the run before all that was planned; None if none did."""
        return self._plan.limit() if self.finished and self._plan.incomplete else None

    def interrupt(self) -> None:
        """Let the next call for a trial, or of `report`, raise KeyboardInterrupt. Safe in a signal handler.

        The handler raises it too, but wherever the process is at that moment: some code swallows it.
        """
        self._interrupted = True

    def hand_back(self) -> None:
        """Let trials that are still out wait for the next run of the command.

        Raises:
            StaleToken: another driver has taken the sweep over.
        """
        self._workplace.leave()
        while self._running:
            _, run = self._running.popitem()
            self._roster.ledger.finish_trial(run.assignment.attempt, TrialState.WAITING)

    def next_trial(self) -> Assignment | Wait | None:
        """Start the next attempt: trials that an earlier process left first, then what the searcher suggests.

        Returns:
            The assignment; WAIT while that depends on a running trial; None when nothing will start any more.
            Every assignment is to be finished.

        Raises:
            StaleToken: another driver has taken the sweep over.
            KeyboardInterrupt: see `interrupt`.
        """
        self._heed_interrupt()
        if len(self._running) >= self.spec.budget.concurrency:
            return WAIT
        if (trial := self._next()) is not None:
            return self._start(trial)
        if self._running or self._queue or self._plan.limit() is None:
            return WAIT
        self._plan.settle()
        return None

    def _next(self) -> TrialRecord | None:
        """What starts or goes on now: what was left or lost comes first."""
        now = time.monotonic()
        number = next((number for number, at in self._queue.items() if at <= now), None)
        if number is None:
            return self._plan.next()
        del self._queue[number]
        return self._roster[number]

    def report(self, assignment: Assignment, step: StepMetrics) -> bool:
        """Record a step, and say whether to go on.

        Something that is no finite number ends the trial: False, and `finish` will make it failed. So does a rung from
        which the trial doesn't go on: `finish` will pause it.

        Raises:
            StaleToken: another driver has taken the sweep over.
            KeyboardInterrupt: see `interrupt`.
        """
        self._heed_interrupt()
        run = self._running.get(assignment.number)
        if run is None or run.assignment is not assignment or run.fault is not None or run.paused:
            return False
        reading = read(step)
        self._roster.ledger.record_step(
            assignment.attempt,
            step=step.step,
            total_steps=step.total_steps,
            metrics=reading.metrics,
            cost=step.cost,
            samples=step.evaluation,
            final=step.final,
        )
        run.last, run.fault = step, reading.fault
        # As the ledger has it now; reading it again would take a third of the time that a step's record takes.
        known = self._roster[assignment.number]
        trial = self._roster.note(replace(known, step=step.step, total_steps=step.total_steps, metrics=reading.metrics))
        self.observers.trial_reported(trial, step)
        if run.fault is None:
            run.paused = not self._plan.goes_on(trial, reading.metrics, step.final)
        return run.fault is None and not run.paused

    def finish(self, assignment: Assignment, outcome: Outcome) -> None:
        """End an attempt: the trial reaches a final state, pauses, or waits to be tried again.

        Raises:
            StaleToken: another driver has taken the sweep over.
            PlatformError: the disk is full, or can't be written; the trial waits.
        """
        run = self._running.pop(assignment.number, None)
        if run is None or run.assignment is not assignment:
            return
        if isinstance(outcome, Crashed):
            self._keep_traceback(assignment.number, outcome.traceback)
        why = machine_fault(outcome) if run.fault is None else None
        if why is not None and self._tries_again(run, why):
            return
        verdict = self._verdict(run, outcome, why)
        self._roster.ledger.finish_trial(assignment.attempt, verdict.state, verdict.values, verdict.reason)
        trial = self._roster.refresh(assignment.number)
        paused = trial.state is TrialState.PAUSED
        (self.observers.trial_paused if paused else self.observers.trial_finished)(trial)

    def _tries_again(self, run: _Run, why: str) -> bool:
        """Whether a trial that infrastructure failed is tried again; it is queued then."""
        number = run.assignment.number
        if disk_fault(why):
            self._roster.ledger.finish_trial(run.assignment.attempt, TrialState.WAITING)
            need = f"room to write in {self.folder(number).parent}"
            raise PlatformError(f"trial {number}: got {why}; need {need}; free some, then run the same command")
        self._losses[number] += 1
        if self._losses[number] > RETRIES:
            return False
        # Until it starts again it doesn't run: neither for who asks meanwhile nor if the command ends in the pause.
        self._roster.ledger.finish_trial(run.assignment.attempt, TrialState.WAITING)
        self._roster.refresh(number)
        pause = BACKOFF_S[self._losses[number] - 1]
        _log.warning("trial %d: lost (%s); tried again from its checkpoint in %g s", number, why, pause)
        self._queue[number] = time.monotonic() + pause
        return True

    def prepare_config(self, threads: int) -> dict[str, Any]:
        """The base config, for `Trainer.prepare`, which may use more threads than a trial."""
        return with_trainer(self.spec.trial_config({}), num_threads=threads)

    def folder(self, number: int) -> Path:
        """A trial's folder, as it is told to people."""
        return self._home.trial_dir(self.sweep, number)

    def workplace(self, number: int) -> Path:
        """A trial's folder, by a way that is gone once another driver has taken the sweep over."""
        self._place = self._place or self._workplace.take()
        return self._place / str(number)

    def _keep_traceback(self, number: int, traceback: str) -> None:
        folder = self.workplace(number)
        with suppress(OSError):  # a full disk, perhaps: the error itself is told all the same
            folder.mkdir(exist_ok=True)
            (folder / TRACEBACK).write_text(traceback, "utf-8")

    def _verdict(self, run: _Run, outcome: Outcome, machine: str | None) -> Verdict:
        """How an attempt ends that isn't tried again."""
        if run.fault is not None:
            return Verdict(TrialState.FAILED, reason=run.fault)
        if machine is not None:
            return Verdict(TrialState.LOST, reason=f"lost {RETRIES + 1} times; the last time, {machine}")
        if isinstance(outcome, Crashed):
            return Verdict(TrialState.FAILED, reason=outcome.error)
        if run.paused:
            return Verdict(TrialState.PAUSED, reason=self._plan.pause_reason(run.assignment.number))
        return judge(self.spec, self._feasibility, run.last)

    def _start(self, trial: TrialRecord) -> Assignment:
        attempt = self._roster.ledger.start_attempt(
            self._roster.lease, trial.id, host=socket.gethostname(), pid=os.getpid()
        )
        trial = self._roster.refresh(trial.number)
        if trial.attempts == 1:
            set_aside(self.workplace(trial.number))
        config = dict(trial.config)
        if trainer_section(self.spec.base).get("num_threads") is None:
            config = with_trainer(config, num_threads=self.spec.threads)
        config = with_trainer(config, default_local_dir=str(self.workplace(trial.number)))
        config = spread(config, self.spec.hardware.devices, self.spec.threads)
        if self.spec.pruning is not None:
            config = with_trainer(config, test_at=list(self.spec.pruning.rungs))
        threads = trainer_section(config).get("num_threads") or self.spec.threads
        assignment = Assignment(trial, attempt, config, threads)
        self._plan.started()
        self._running[trial.number] = _Run(assignment)
        self.observers.trial_started(trial)
        return assignment

    def _heed_interrupt(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
