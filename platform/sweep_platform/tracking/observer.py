"""The live projection: brings MLflow up to date with the ledger while a sweep runs.

The driver only says which trial changed. A background thread reads it from the ledger and writes what MLflow
lacks, every few seconds, so training never waits for MLflow, and MLflow may fail or be away without ending a
sweep: the next round, the next run of the sweep or `sync` catches up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sweep_platform.tracking.background import FLUSH_SECONDS, Background
from sweep_platform.tracking.store import Store

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord, TrialRecord

    from sweep_platform.tracking.projector import Projector
    from sweep_platform.trainers import StepMetrics

_log = logging.getLogger(__name__)


class MLflowObserver:
    """An observer of the driver that projects one sweep into MLflow.

    Args:
        ledger: The ledger that the driver writes.
        store: Where the projection goes.
        warn: Takes the one line that says that MLflow can't be written; by default it is logged.
        flush_s: Seconds between two rounds.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        *,
        warn: Callable[[str], None] = _log.warning,
        flush_s: float = FLUSH_SECONDS,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._warn = warn
        self._flush_s = flush_s
        self._lock = threading.Lock()
        self._changed: dict[int, TrialRecord] = {}
        self._projector: Projector | None = None
        self._background: Background | None = None
        self._finished = False
        self._token: int | None = None

    @property
    def busy_s(self) -> float:
        """Seconds that the background thread has spent on MLflow."""
        return self._background.busy_s if self._background else 0.0

    def sweep_started(self, sweep: SweepRecord, spec: Any, trials: Sequence[TrialRecord]) -> None:
        """Start the thread; trials of an earlier run of the sweep are brought up to date too."""
        self._token = self._driver_token(sweep)
        self._mark(*trials)
        self._background = Background(
            lambda last: self._round(sweep, last), lambda reason: self._tell(sweep, reason), self._flush_s
        )

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        """Nothing of the preparation is projected."""

    def trial_started(self, trial: TrialRecord) -> None:
        """Note the trial."""
        self._mark(trial)

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        """Note the trial; its steps are read from the ledger."""
        self._mark(trial)

    def trial_paused(self, trial: TrialRecord) -> None:
        """Note the trial."""
        self._mark(trial)

    def trial_finished(self, trial: TrialRecord) -> None:
        """Note the trial."""
        self._mark(trial)

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """Write the rest, the frontier included, and wait until that is done."""
        self._mark(*trials)
        self._finished = True
        self.close()

    def close(self) -> None:
        """Write what is left and stop; a sweep that did not finish is marked as stopped. Safe to repeat."""
        if self._background is not None:
            self._background.close()

    def __enter__(self) -> MLflowObserver:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _mark(self, *trials: TrialRecord) -> None:
        with self._lock:
            self._changed |= {trial.number: trial for trial in trials}

    def _round(self, sweep: SweepRecord, last: bool) -> None:
        from sweep_platform.tracking.projector import Projector

        if self._driver_token(sweep) != self._token:
            return  # another driver has taken over, and shows all of it
        if self._projector is None:
            projector = Projector(self._store, self._ledger, sweep)
            projector.start()
            self._projector = projector
        with self._lock:
            changed, self._changed = self._changed, {}
        try:
            for number in sorted(changed):
                self._projector.trial(changed[number])
        except BaseException:
            self._projector = None  # the next round looks afresh at what MLflow has: runs may have been deleted
            with self._lock:
                self._changed = changed | self._changed
            raise
        if last:
            end = self._projector.finish if self._finished else self._projector.interrupt
            end(self._ledger.trials(sweep.id))

    def _driver_token(self, sweep: SweepRecord) -> int | None:
        lease = self._ledger.lease(sweep.id)
        return None if lease is None else lease.token

    def _tell(self, sweep: SweepRecord, reason: str) -> None:
        self._warn(
            f"MLflow at {self._store.shown} can't be written ({reason}); the sweep goes on and loses nothing. "
            f"`platform mlflow sync {sweep.address}` writes what is missing."
        )
