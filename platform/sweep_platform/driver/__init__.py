"""The driver: the one process that decides what runs next and writes the ledger."""

from __future__ import annotations

from sweep_platform.driver.assignment import WAIT, Assignment, Crashed, Ended, Lost, Outcome, Wait
from sweep_platform.driver.driver import Driver
from sweep_platform.driver.opening import open_confirmation, open_roster, open_sweep

__all__ = [
    "WAIT",
    "Assignment",
    "Crashed",
    "Driver",
    "Ended",
    "Lost",
    "Outcome",
    "Wait",
    "open_confirmation",
    "open_roster",
    "open_sweep",
]
