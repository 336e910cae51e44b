"""What a sweep has spent, and which limit of its budget is reached."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from run_ledger import SweepRecord, TrialRecord

from sweep_platform.spec import Budget

if TYPE_CHECKING:
    from run_ledger import Ledger


@dataclass(slots=True)
class Spending:
    """The clock of one run of the command, and the limits that hold for all runs together."""

    budget: Budget
    earlier_s: float
    """Wall seconds in which trials ran under earlier runs of the command."""
    began: float | None = None
    """When the first trial of this run of the command started, by the monotonic clock; None before that."""

    def begin(self) -> None:
        """Let the clock run: a trial starts, or goes on. What went before, such as preparing the trainer, is free."""
        self.began = time.monotonic() if self.began is None else self.began

    def wall_clock(self) -> float:
        """Seconds in which trials ran, earlier runs included."""
        return self.earlier_s + (0.0 if self.began is None else time.monotonic() - self.began)

    def exhausted(self, trials: Iterable[TrialRecord]) -> str | None:
        """Which amount is used up, so that nothing starts or goes on; None if none is.

        Args:
            trials: those whose cost counts.
        """
        budget = self.budget
        if budget.wall_clock is not None and self.wall_clock() >= budget.wall_clock:
            return f"budget.wall_clock: {budget.wall_clock:g} s are over; no other trial starts"
        counted = list(trials)
        for currency, limit in budget.amounts.items():
            spent = _sum(counted, currency)
            if spent >= limit:
                return f"budget.{currency}: {spent:.3g} of {limit:.3g} are spent; no other trial starts"
        return None

    def remaining(self, trials: Sequence[TrialRecord]) -> dict[str, float]:
        """What is left of each limit that is set, by its key in `budget`; never below 0."""
        budget = self.budget
        left: dict[str, float] = {"trials": budget.trials - sum(map(ran, trials))}
        left |= {currency: limit - _sum(trials, currency) for currency, limit in budget.amounts.items()}
        if budget.wall_clock is not None:
            left["wall_clock"] = budget.wall_clock - self.wall_clock()
        return {key: max(0.0, value) for key, value in left.items()}


def budget_left(ledger: Ledger, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> dict[str, float]:
    """What is left of each limit of the budget that the sweep last ran with, as if it went on now."""
    stored = Budget.model_validate(Budget.known(sweep.spec["budget"]))
    spending = Spending(stored, running_seconds(ledger, trials))
    return spending.remaining(trials)


def ran(trial: TrialRecord) -> bool:
    """Whether a trial counts against the budget: it started, or will. Refused ones and those of other sweeps don't."""
    return trial.attempts > 0 or not trial.state.final


def running_seconds(ledger: Ledger, trials: Iterable[TrialRecord]) -> float:
    """Wall seconds in which at least one attempt at one of the trials ran.

    An attempt whose driver died counts up to the end of its lease, which each of its steps renewed.
    """
    sweep_of = {trial.id: trial.sweep_id for trial in trials}
    spans = sorted(
        (attempt.started_at, min(attempt.ended_at or attempt.lease_expires_at, attempt.lease_expires_at))
        for sweep_id in set(sweep_of.values())
        for attempt in ledger.attempts_of(sweep_id)
        if attempt.trial_id in sweep_of
    )
    total, until = 0.0, datetime.min.replace(tzinfo=spans[0][0].tzinfo) if spans else None
    for start, end in spans:
        if until is not None and end > until:
            total += (end - max(start, until)).total_seconds()
            until = end
    return total


def _sum(trials: Iterable[TrialRecord], currency: str) -> float:
    return float(sum(getattr(trial.cost, currency) for trial in trials if ran(trial)))
