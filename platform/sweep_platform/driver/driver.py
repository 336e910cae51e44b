"""The driver: a state machine that an executor turns from one process. Nothing else writes its sweep.

**Lagged tell.** With concurrency c, a candidate is suggested in knowledge of every trial before it but the
last 2(c - 1) that ran, whatever order they finished in and whatever finished by now. So one seed gives the
same trials with either executor, on a fast or a slow machine, and in a sweep that was killed and resumed. The
price: a place can stand idle while the oldest running trial goes on; at c - 1 that would be often.

**Early stopping** (`pruning`) is asynchronous: what a trial is compared with depends on what came to its rung
before it, so with several trials at once timing decides too, and a suggestion then knows whatever is known.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run_ledger import AttemptRecord, DriverLease, SweepRecord, TrialRecord, TrialState

from sweep_platform.driver.assignment import WAIT, Assignment, Crashed, Outcome, Wait
from sweep_platform.driver.failures import BACKOFF_S, RETRIES, disk_fault, machine_fault
from sweep_platform.driver.knowledge import Knowledge, standings
from sweep_platform.driver.placing import set_aside, trainer_section, with_trainer
from sweep_platform.driver.reading import Verdict, judge, read
from sweep_platform.driver.spending import Spending, ran, running_seconds
from sweep_platform.errors import PlatformError
from sweep_platform.events import Announcer, Observer
from sweep_platform.home import Home
from sweep_platform.search import Feasibility, Refused, Searcher, SpaceExhausted, Suggestion
from sweep_platform.search.searcher import MAX_REFUSED
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import StepMetrics, Trainer

if TYPE_CHECKING:
    from run_ledger import Ledger

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
        retry_failed: Try trials again that failed under an earlier run of the command.
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
        retry_failed: bool = False,
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
        self._trials = {trial.number: trial for trial in ledger.trials(sweep.id)}
        self._spending = Spending(spec.budget, running_seconds(ledger, self._trials.values()), time.monotonic())
        self._running: dict[int, _Run] = {}
        self._losses: Counter[int] = Counter()
        self._exhausted = self._ends_refused()
        self._interrupted = False
        self._halving = standings(ledger, sweep, spec, self.trials)
        self._knowledge = Knowledge(searcher, self._halving, lag=2 * (spec.budget.concurrency - 1))
        for trial in self.trials:
            self._searcher.pend(trial)
        self._reopen(retry_failed)
        # When each trial may start that an earlier process left, or that is to be tried again.
        self._queue = {trial.number: 0.0 for trial in self.trials if trial.state in (_WAITING, _RUNNING)}
        self._knowledge.inform(self.trials)

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
        """Whether nothing is running, and nothing will start or go on any more."""
        return not (self._queue or self._running or self._paused) and self._limit() is not None

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
        if (trial := self._next()) is not None:
            return self._start(trial)
        if self._running or self._queue or self._limit() is None:
            return WAIT
        self._prune_paused()
        return None

    def _next(self) -> TrialRecord | None:
        """What starts or goes on now: what was left or lost, then a paused trial that may go on, then a new one."""
        now = time.monotonic()
        number = next((number for number, at in self._queue.items() if at <= now), None)
        if number is not None:
            del self._queue[number]
        if number is None and self._halving is not None and self._spent() is None:
            number = self._halving.next_of(self._paused)
        if number is not None:
            return self._trials[number]
        return self._suggest() if self._knowledge.inform(self.trials) and self._limit() is None else None

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
        if self._halving is not None and run.fault is None:
            rung = self._halving.observe(trial.number, step.step, step.total_steps, reading.metrics)
            run.paused = rung is not None and not step.final and not self._halving.goes_on(trial.number, rung)
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
        self._ledger.finish_trial(assignment.attempt, verdict.state, verdict.values, verdict.reason)
        paused = verdict.state is TrialState.PAUSED
        (self.observers.trial_paused if paused else self.observers.trial_finished)(self._refresh(assignment.number))

    def _tries_again(self, run: _Run, why: str) -> bool:
        """Whether a trial that infrastructure failed is tried again; it is queued then."""
        number = run.assignment.number
        if disk_fault(why):
            self._ledger.finish_trial(run.assignment.attempt, TrialState.WAITING)
            need = f"room to write in {self.folder(number).parent}"
            raise PlatformError(f"trial {number}: got {why}; need {need}; free some, then run the same command")
        self._losses[number] += 1
        if self._losses[number] > RETRIES:
            return False
        pause = BACKOFF_S[self._losses[number] - 1]
        _log.warning("trial %d: lost (%s); tried again from its checkpoint in %g s", number, why, pause)
        self._queue[number] = time.monotonic() + pause
        return True

    def prepare_config(self, threads: int) -> dict[str, Any]:
        """The base config, for `Trainer.prepare`, which may use more threads than a trial."""
        return with_trainer(self.spec.trial_config({}), num_threads=threads)

    def folder(self, number: int) -> Path:
        """A trial's folder."""
        return self._home.trial_dir(self.sweep, number)

    def _keep_traceback(self, number: int, traceback: str) -> None:
        folder = self.folder(number)
        with suppress(OSError):  # a full disk, perhaps: the error itself is told all the same
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TRACEBACK).write_text(traceback, "utf-8")

    def _verdict(self, run: _Run, outcome: Outcome, machine: str | None) -> Verdict:
        """How an attempt ends that isn't tried again."""
        if run.fault is not None:
            return Verdict(TrialState.FAILED, reason=run.fault)
        if machine is not None:
            return Verdict(TrialState.LOST, reason=f"lost {RETRIES + 1} times; the last time, {machine}")
        if isinstance(outcome, Crashed):
            return Verdict(TrialState.FAILED, reason=outcome.error)
        if run.paused and self._halving is not None:
            return Verdict(TrialState.PAUSED, reason=self._halving.explain(run.assignment.number))
        return judge(self.spec, self._feasibility, run.last)

    def _start(self, trial: TrialRecord) -> Assignment:
        attempt: AttemptRecord = self._ledger.start_attempt(
            self._lease, trial.id, host=socket.gethostname(), pid=os.getpid()
        )
        trial = self._refresh(trial.number)
        if trial.attempts == 1:
            set_aside(self.folder(trial.number))
        config = dict(trial.config)
        if trainer_section(self.spec.base).get("num_threads") is None:
            config = with_trainer(config, num_threads=self.spec.threads)
        config = with_trainer(config, default_local_dir=str(self.folder(trial.number)))
        if self.spec.pruning is not None:
            config = with_trainer(config, test_at=list(self.spec.pruning.rungs))
        threads = trainer_section(config).get("num_threads") or self.spec.threads
        assignment = Assignment(trial, attempt, config, threads)
        self._running[trial.number] = _Run(assignment)
        self.observers.trial_started(trial)
        return assignment

    def _suggest(self) -> TrialRecord | None:
        """Ask for a candidate and record it, with those refused before it; None at the end of the space."""
        least = self.spec.budget.min_gain
        gain = self._searcher.expected_gain(len(self._trials)) if least is not None else None
        if least is not None and gain is not None and gain < least:
            self._exhausted = f"budget.min_gain: {gain:.2g} of the hypervolume is all that the next trial may add"
            return None
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
            self._knowledge.tell(trial)
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

    def _limit(self) -> str | None:
        """Which limit allows no new trial; None if budget and space do."""
        budget = self.spec.budget
        if self._counted >= budget.trials:
            return f"budget.trials: all {budget.trials} have run"
        return self._exhausted or self._spent()

    def _spent(self) -> str | None:
        """Which amount of the budget is used up, so that nothing starts or goes on.

        The cost is that of the trials that the searcher knows, so that it, too, is the same at any speed.
        """
        return self._spending.exhausted(self._knowledge.told(self._trials))

    @property
    def _paused(self) -> list[int]:
        """Trials that stopped at a rung and are not out again."""
        return [number for number, trial in self._trials.items() if trial.state is TrialState.PAUSED]

    def _prune_paused(self) -> None:
        """Nothing will start any more, so what is paused stays as it is."""
        for number in self._paused:
            reason = self._spent() or self._trials[number].reason
            self._trials[number] = self._ledger.change_state(
                self._lease, self._trials[number].id, TrialState.PRUNED, reason
            )
            self._knowledge.tell(self._trials[number])
            self.observers.trial_finished(self._trials[number])

    def _reopen(self, failed: bool) -> None:
        """Take up again what was given up: lost trials, pruned ones if the budget grew, failed ones on request."""
        wanted = {TrialState.LOST: _WAITING} | ({TrialState.FAILED: _WAITING} if failed else {})
        if self._halving is not None and self._limit() is None:
            wanted[TrialState.PRUNED] = TrialState.PAUSED
        for trial in self.trials:
            if trial.state in wanted:
                state = wanted[trial.state]
                self._trials[trial.number] = self._ledger.change_state(self._lease, trial.id, state, trial.reason)

    @property
    def _counted(self) -> int:
        """Trials that count against the budget."""
        return sum(map(ran, self._trials.values()))

    def _heed_interrupt(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def _ends_refused(self) -> str | None:
        """Why an earlier run of the command gave the space up as infeasible; None if none did."""
        last = self.trials[-MAX_REFUSED:]
        if len(last) < MAX_REFUSED or any(map(ran, last)):
            return None
        return f"search: the last {MAX_REFUSED} candidates can't run, the last because {last[-1].reason}"

    def _refresh(self, number: int) -> TrialRecord:
        """Read a trial again."""
        trial: TrialRecord = self._ledger.trial(self._trials[number].id)
        self._trials[number] = trial
        return trial
