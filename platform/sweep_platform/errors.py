"""Every error a user can meet, as one tree, and the exit code that each ends the command with.

PlatformError                 1
├── LedgerLost                1   the ledger stopped answering, or can't be written any more; the same command resumes
├── BadInput                  2   faults in a spec, a config, a data file or an argument: all at once
├── LedgerRefused             2   a locked, foreign or newer database; a sweep that another driver runs
├── SweepChanged              2   the spec differs from the one that the stored trials were run with
└── NoFeasibleTrial           3   the sweep is over and no trial can be chosen
    └── AllTrialsFailed       1   since the trainer failed in each of them
KeyboardInterrupt           130   state is saved; the same command resumes
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass


def printable(text: str) -> str:
    """A text in one line that moves no cursor: whatever isn't shown as itself stands as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with what a user wrote, and what to do about it."""

    where: str
    """`file:key.path`, or the argument's name."""
    got: str
    """What stands there, as the user wrote it."""
    need: str
    """What would be accepted."""
    do: str
    """The next step, in the imperative."""

    def __str__(self) -> str:
        """One line, whatever is in a key or a value."""
        return printable(f"{self.where}: got {self.got}; need {self.need}; {self.do}")


def one_line(error: BaseException, limit: int | None = None) -> str:
    """An exception's type and what it says, or the first `limit` characters of that."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return text if limit is None else textwrap.shorten(text, limit, placeholder=" …")


class PlatformError(Exception):
    """A failure with a message for the user; `exit_code` is what the command returns."""

    exit_code = 1


class BadInput(PlatformError):
    """What a user wrote can't be used. Carries every fault found, not the first."""

    exit_code = 2

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class LedgerRefused(PlatformError):
    """The ledger can't be opened or written: locked, not ours, too new, or another driver holds the sweep."""

    exit_code = 2


class LedgerLost(PlatformError):
    """The ledger could be used and then couldn't: a server that is gone, a disk. What was recorded stays recorded."""


class SweepChanged(PlatformError):
    """The spec changed since the stored trials ran: mixing them would compare unlike with unlike."""

    exit_code = 2


class NoFeasibleTrial(PlatformError):
    """The sweep finished and no trial completed within the constraints."""

    exit_code = 3


class AllTrialsFailed(NoFeasibleTrial):
    """Every trial failed in the trainer or was lost: the trainer's fault, and not that of the space or its bounds."""

    exit_code = 1
