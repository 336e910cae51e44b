"""The ledger of runs: sweeps, trials, attempts, observations, evaluations, costs and promotions, in one SQL database.

Records and errors are light. `Ledger` loads SQLAlchemy, when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from run_ledger.errors import (
    ForeignDatabase,
    LedgerAway,
    LedgerError,
    LedgerLocked,
    LedgerTooNew,
    StaleToken,
    SweepBusy,
)
from run_ledger.records import (
    AttemptRecord,
    CostLike,
    CostRecord,
    DriverLease,
    EvaluationRecord,
    ObservationRecord,
    PromotionRecord,
    ResultRecord,
    SampleLike,
    SweepRecord,
    TrialRecord,
    TrialState,
)

if TYPE_CHECKING:
    from run_ledger.ledger import Ledger

__all__ = [
    "AttemptRecord",
    "CostLike",
    "CostRecord",
    "DriverLease",
    "EvaluationRecord",
    "ForeignDatabase",
    "Ledger",
    "LedgerAway",
    "LedgerError",
    "LedgerLocked",
    "LedgerTooNew",
    "ObservationRecord",
    "PromotionRecord",
    "ResultRecord",
    "SampleLike",
    "StaleToken",
    "SweepBusy",
    "SweepRecord",
    "TrialRecord",
    "TrialState",
]


def __getattr__(name: str) -> object:
    if name == "Ledger":
        from run_ledger.ledger import Ledger

        return Ledger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
