"""What the ledger refuses, as one tree.

LedgerError              a ledger that can't be reached, a URL that isn't supported, a call out of order
├── ForeignDatabase      the place holds something else; it was left untouched
├── LedgerAway           the database stopped answering, or can't be read or written
├── LedgerLocked         another process holds the database for longer than the timeout
├── LedgerTooNew         written by a later version of this package
├── SweepBusy            another driver holds the sweep
└── StaleToken           another driver or attempt has taken over; nothing was written
"""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger can't do what was asked; the message says what was got, what is needed and what to do."""

    def __init__(self, got: str, need: str, do: str) -> None:
        super().__init__(got, need, do)
        self.got = got
        self.need = need
        self.do = do

    def __str__(self) -> str:
        return f"got {self.got}; need {self.need}; {self.do}"


class ForeignDatabase(LedgerError):
    """What lies there is not a ledger. It was left untouched."""


class LedgerAway(LedgerError):
    """The database stopped answering, or can't be read or written."""

    def __init__(self, got: str, need: str, do: str, *, passing: bool, unsure: bool) -> None:
        super().__init__(got, need, do)
        self.passing = passing
        """It may come back: a server that was restarted, a connection that broke."""
        self.unsure = unsure
        """The commit was on its way, so it may have been recorded."""


class LedgerLocked(LedgerError):
    """Another process holds the database. Nothing was written."""


class LedgerTooNew(LedgerError):
    """A later version of this package wrote the ledger."""


class SweepBusy(LedgerError):
    """Another driver holds the sweep's lease."""


class StaleToken(LedgerError):
    """The lease or attempt was taken over, ended or given back. Nothing was written."""
