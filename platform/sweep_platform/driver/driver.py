"""The driver: a state machine that an executor turns from one process. Nothing else writes its sweep.

**Lagged tell.** With concurrency c, a candidate is suggested in knowledge of every trial before it but the
last 2(c - 1) that ran, whatever order they finished in and whatever finished by now. So one seed gives the
same trials with either executor, on a fast or a slow machine, and in a sweep that was killed and resumed. The
price: a place can stand idle while the oldest running trial goes on; at c - 1 that would be often.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run_ledger import AttemptRecord, DriverLease, SweepRecord, TrialRecord, TrialState

from sweep_platform.driver.assignment import WAIT, Assignment, Crashed, Lost, Outcome, Wait
from sweep_platform.driver.reading import Verdict, judge, read
from sweep_platform.events import Announcer, Observer
from sweep_platform.home import Home
from sweep_platform.search import Feasibility, Refused, Searcher, SpaceExhausted, Suggestion
from sweep_platform.search.searcher import MAX_REFUSED
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import StepMetrics, Trainer

if TYPE_CHECKING:
    from run_ledger import Ledger

RETRIES = 2
"""Attempts after the first that a trial gets when the process that runs it is lost."""
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


class Driver:
    """One run of the command on one sweep. `open_sweep` makes it.

    Args:
        ledger: Where everything is recorded.
        lease: The right to write this sweep.
        sweep: The sweep's version.
        spec: Its spec; the budget may differ from the stored one's.
        trainer: What trains.
        searcher: A fresh one; it is told the ledger's trials.
        feasibility: The sweep's limits.
        observers: Told of everything, after it is recorded.
        home: Where the trials' folders are.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        lease: DriverLease,
        sweep: SweepRecord,
        spec: SweepSpec,
        trainer: Trainer,
        searcher: Searcher,
        feasibility: Feasibility,
        observers: Sequence[Observer],
        home: Home,
    ) -> None:
        self.sweep = sweep
        self.spec = spec
        self.trainer = trainer
        self.observers = Announcer(observers)
        self._ledger = ledger
        self._lease = lease
        self._searcher = searcher
        self._feasibility = feasibility
        self._home = home
        self._began = time.monotonic()
        self._trials = {trial.number: trial for trial in ledger.trials(sweep.id)}
        self._queue = deque(n for n, trial in sorted(self._trials.items()) if not trial.state.final)
        self._running: dict[int, _Run] = {}
        self._losses: Counter[int] = Counter()
        self._exhausted = self._ends_refused()
        self._told: set[int] = set()
        self._interrupted = False
        for trial in self.trials:
            self._searcher.pend(trial)
        self._inform()

    @property
    def trials(self) -> list[TrialRecord]:
        """The sweep's trials as this process knows them, by number."""
        return [self._trials[number] for number in sorted(self._trials)]

    @property
    def running(self) -> tuple[Assignment, ...]:
        """The attempts that are out."""
        return tuple(run.assignment for run in self._running.values())

    @property
    def finished(self) -> bool:
        """Whether nothing is running and nothing will start any more."""
        return not (self._queue or self._running) and self._limit() is not None

    @property
    def cut_short(self) -> str | None:
        """Which limit ended the sweep before all trials of its budget ran; None if none did."""
        return self._limit() if self.finished and self._counted < self.spec.budget.trials else None

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
        while self._running:
            _, run = self._running.popitem()
            self._ledger.finish_trial(run.assignment.attempt, TrialState.WAITING)

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
        if self._queue:
            return self._start(self._trials[self._queue.popleft()])
        trial = self._suggest() if self._inform() and self._limit() is None else None
        if trial is not None:
            return self._start(trial)
        return None if self.finished else WAIT

    def report(self, assignment: Assignment, step: StepMetrics) -> bool:
        """Record a step, and say whether to go on.

        Something that is no finite number ends the trial: False, and `finish` will make it failed.

        Raises:
            StaleToken: another driver has taken the sweep over.
            KeyboardInterrupt: see `interrupt`.
        """
        self._heed_interrupt()
        run = self._running.get(assignment.number)
        if run is None or run.assignment is not assignment or run.fault is not None:
            return False
        reading = read(step)
        self._ledger.record_step(
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
        trial = replace(
            self._trials[assignment.number], step=step.step, total_steps=step.total_steps, metrics=reading.metrics
        )
        self._trials[trial.number] = trial
        self.observers.trial_reported(trial, step)
        return run.fault is None

    def finish(self, assignment: Assignment, outcome: Outcome) -> None:
        """End an attempt: the trial reaches a final state, or goes back to the queue if its process was lost.

        Raises:
            StaleToken: another driver has taken the sweep over.
        """
        run = self._running.pop(assignment.number, None)
        if run is None or run.assignment is not assignment:
            return
        if isinstance(outcome, Lost) and run.fault is None:
            self._losses[assignment.number] += 1
            if self._losses[assignment.number] <= RETRIES:
                _log.warning("trial %d: worker lost (%s); started again", assignment.number, outcome.why)
                self._queue.append(assignment.number)
                return
        verdict = self._verdict(run, outcome)
        self._ledger.finish_trial(assignment.attempt, verdict.state, verdict.values, verdict.reason)
        self.observers.trial_finished(self._refresh(assignment.number))

    def prepare_config(self, threads: int) -> dict[str, Any]:
        """The base config, for `Trainer.prepare`, which may use more threads than a trial."""
        return _with_trainer(self.spec.trial_config({}), num_threads=threads)

    def folder(self, number: int) -> Path:
        """A trial's folder."""
        return self._home.trial_dir(self.sweep, number)

    def _verdict(self, run: _Run, outcome: Outcome) -> Verdict:
        """How a trial ends."""
        if run.fault is not None:
            return Verdict(TrialState.FAILED, reason=run.fault)
        if isinstance(outcome, Crashed):
            folder = self.folder(run.assignment.number)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TRACEBACK).write_text(outcome.traceback, "utf-8")
            return Verdict(TrialState.FAILED, reason=outcome.error)
        if isinstance(outcome, Lost):
            reason = f"worker lost {RETRIES + 1} times; the last time, {outcome.why}"
            return Verdict(TrialState.FAILED, reason=reason)
        return judge(self.spec, self._feasibility, run.last)

    def _start(self, trial: TrialRecord) -> Assignment:
        attempt: AttemptRecord = self._ledger.start_attempt(
            self._lease, trial.id, host=socket.gethostname(), pid=os.getpid()
        )
        trial = self._refresh(trial.number)
        if trial.attempts == 1:
            _set_aside(self.folder(trial.number))
        config = dict(trial.config)
        if _section(self.spec.base).get("num_threads") is None:
            config = _with_trainer(config, num_threads=self.spec.threads)
        config = _with_trainer(config, default_local_dir=str(self.folder(trial.number)))
        threads = _section(config).get("num_threads") or self.spec.threads
        assignment = Assignment(trial, attempt, config, threads)
        self._running[trial.number] = _Run(assignment)
        self.observers.trial_started(trial)
        return assignment

    def _suggest(self) -> TrialRecord | None:
        """Ask for a candidate and record it, with those refused before it; None at the end of the space."""
        try:
            suggestion = self._searcher.ask(len(self._trials), self._feasibility.refuse)
        except SpaceExhausted as error:
            self._exhausted = str(error)
            self._record_refused(error.refused)
            return None
        self._record_refused(suggestion.refused)
        return self._add(suggestion, TrialState.WAITING, None)

    def _record_refused(self, refused: Sequence[Refused]) -> None:
        for candidate in refused:
            trial = self._add(candidate, TrialState.INFEASIBLE, candidate.reason)
            self._searcher.tell(trial)
            self._told.add(trial.number)
            self.observers.trial_finished(trial)

    def _add(self, candidate: Suggestion | Refused, state: TrialState, reason: str | None) -> TrialRecord:
        trial: TrialRecord = self._ledger.add_trial(
            self._lease,
            number=candidate.number,
            params=dict(candidate.params),
            params_hash=candidate.params_hash,
            config=self.spec.trial_config(candidate.params),
            origin=candidate.origin,
            sampler_state=dict(candidate.sampler_state) if isinstance(candidate, Suggestion) else {},
            state=state,
            reason=reason,
        )
        self._trials[trial.number] = trial
        return trial

    def _inform(self) -> bool:
        """Tell the searcher what the next suggestion may know; False if a trial of that still runs."""
        ran = [trial.number for trial in self.trials if _ran(trial)]
        withheld = set(ran[max(0, len(ran) - 2 * (self.spec.budget.concurrency - 1)) :])
        for trial in self.trials:
            if trial.number in withheld or trial.number in self._told:
                continue
            if not trial.state.final:
                return False
            self._searcher.tell(trial)
            self._told.add(trial.number)
        return True

    def _limit(self) -> str | None:
        """Which limit allows no other trial; None if budget and space do.

        The cost is that of the trials that the searcher knows, so that it, too, is the same at any speed.
        """
        budget, metric = self.spec.budget, self.spec.cost_metric
        if self._counted >= budget.trials:
            return f"budget.trials: all {budget.trials} have run"
        if self._exhausted is not None:
            return self._exhausted
        if budget.wall_clock is not None and time.monotonic() - self._began >= budget.wall_clock:
            return f"budget.wall_clock: {budget.wall_clock:g} s are over; no other trial starts"
        if budget.cost is not None and metric is not None:
            field = metric.removeprefix("cost/")
            spent = sum(getattr(self._trials[number].cost, field) for number in self._told)
            if spent >= budget.cost:
                return f"budget.cost: {spent:.3g} of {budget.cost:.3g} {metric} are spent; no other trial starts"
        return None

    @property
    def _counted(self) -> int:
        """Trials that count against the budget."""
        return sum(map(_ran, self._trials.values()))

    def _heed_interrupt(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def _ends_refused(self) -> str | None:
        """Why an earlier run of the command gave the space up as infeasible; None if none did."""
        last = self.trials[-MAX_REFUSED:]
        if len(last) < MAX_REFUSED or any(map(_ran, last)):
            return None
        return f"search: the last {MAX_REFUSED} candidates can't run, the last because {last[-1].reason}"

    def _refresh(self, number: int) -> TrialRecord:
        """Read a trial again."""
        trial: TrialRecord = self._ledger.trial(self._trials[number].id)
        self._trials[number] = trial
        return trial


def _ran(trial: TrialRecord) -> bool:
    """Whether a trial counts against the budget: it started, or will."""
    return trial.state is not TrialState.INFEASIBLE or trial.attempts > 0


def _set_aside(folder: Path) -> None:
    """Move what is there before a trial's first attempt: another ledger's trial, whose checkpoints aren't ours."""
    if folder.exists():
        numbers = (folder.with_name(f"{folder.name}.superseded-{count}") for count in itertools.count(1))
        folder.rename(next(place for place in numbers if not place.exists()))


def _section(config: Any) -> dict[str, Any]:
    """The `trainer` section of a config; empty for a trainer that has none."""
    section = config.get("trainer")
    return dict(section) if isinstance(section, dict) else {}


def _with_trainer(config: Any, **values: Any) -> dict[str, Any]:
    """The config with fields of its `trainer` section set, as far as the trainer has them."""
    section = _section(config)
    known = {key: value for key, value in values.items() if key in section}
    return {**config, "trainer": {**section, **known}} if section else dict(config)
