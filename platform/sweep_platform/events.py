"""What happens in a sweep, told to whoever watches: the screen, MLflow.

Every call comes from the driver's process, after the ledger's commit. An observer that fails is warned about
once and the sweep goes on: the ledger is the truth, and a view of it can be made again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from run_ledger import SweepRecord, TrialRecord

    from sweep_platform.trainers import StepMetrics

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Watches a sweep."""

    def sweep_started(self, sweep: SweepRecord, spec: Any, trials: Sequence[TrialRecord]) -> None:
        """The sweep (a `SweepSpec`) begins or goes on; `trials` are those of earlier runs of the command."""

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        """The trainer prepares what trials need. May come from another thread than the rest, before any trial."""

    def trial_started(self, trial: TrialRecord) -> None:
        """An attempt at the trial begins."""

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        """The trial's step is in the ledger."""

    def trial_paused(self, trial: TrialRecord) -> None:
        """The trial stopped at a rung; it may go on later."""

    def trial_finished(self, trial: TrialRecord) -> None:
        """The trial reached a final state; a refused one without ever starting."""

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """Nothing is left to run."""


class Announcer:
    """An observer that passes each event on to all others, whatever any of them does."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._failed: set[tuple[int, str]] = set()

    def sweep_started(self, sweep: SweepRecord, spec: Any, trials: Sequence[TrialRecord]) -> None:
        """Pass on."""
        self._tell("sweep_started", sweep, spec, trials)

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        """Pass on."""
        self._tell("prepare_progress", what, done, total)

    def trial_started(self, trial: TrialRecord) -> None:
        """Pass on."""
        self._tell("trial_started", trial)

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        """Pass on."""
        self._tell("trial_reported", trial, step_metrics)

    def trial_paused(self, trial: TrialRecord) -> None:
        """Pass on."""
        self._tell("trial_paused", trial)

    def trial_finished(self, trial: TrialRecord) -> None:
        """Pass on."""
        self._tell("trial_finished", trial)

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """Pass on."""
        self._tell("sweep_finished", sweep, trials)

    def _tell(self, event: str, *args: Any) -> None:
        for index, observer in enumerate(self._observers):
            try:
                getattr(observer, event)(*args)
            except Exception as error:
                if (index, event) not in self._failed:
                    self._failed.add((index, event))
                    what = f"{type(observer).__name__} failed in {event} ({type(error).__name__}: {error})"
                    _log.warning("%s; the sweep goes on", what)
