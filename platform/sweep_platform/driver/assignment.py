"""What passes between the driver and an executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from run_ledger import AttemptRecord, TrialRecord


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one trial, to be run."""

    trial: TrialRecord
    """As it stood when the attempt began; its step is above 0 where an earlier attempt got that far."""
    attempt: AttemptRecord
    config: Mapping[str, Any]
    """The trainer's whole config, plain, with its folder and threads set."""
    threads: int
    """CPU threads that it may use."""

    @property
    def number(self) -> int:
        """The trial's number in the sweep."""
        return self.trial.number


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can start before a running trial finishes."""


WAIT: Final = Wait()


@dataclass(frozen=True, slots=True)
class Ended:
    """The trainer returned."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The trainer raised."""

    error: str
    """The exception's type and message, on one line."""
    traceback: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that ran the trial died or can't be reached: says nothing about the trial's config."""

    why: str


Outcome = Ended | Crashed | Lost
