"""Repeating calls whose database went away or was locked, for as long as their ledger is patient.

A connection that breaks before COMMIT was sent leaves nothing behind, so any call may be repeated. One that breaks
while the commit is on its way leaves it open whether it was recorded: only what may be told twice is repeated then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from run_ledger.errors import LedgerAway, LedgerError, LedgerLocked

PAUSES_S = (0.1, 0.2, 0.5, 1.0)
"""Seconds before each repetition; the last holds for all others."""


_log = logging.getLogger(__name__)


class Patience:
    """How long a ledger waits for its database. Once it has waited in vain, it waits no more.

    Args:
        seconds: From a call's first failure to its last repetition.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False

    def wait(self, error: LedgerError, since: float, times: int) -> bool:
        """Wait before a repetition; False if it isn't worth one.

        Args:
            error: Why the call failed.
            since: When it first failed, by the monotonic clock.
            times: How often it was repeated.
        """
        if not self._over and time.monotonic() - since < self._seconds:
            if times == len(PAUSES_S):  # not for a moment's trouble
                _log.warning("the ledger is waited for, for %g s at most: got %s", self._seconds, error.got)
            time.sleep(PAUSES_S[min(times, len(PAUSES_S) - 1)])
            return True
        self._over = True
        return False


class _Patient(Protocol):
    @property
    def patience(self) -> Patience: ...


S = TypeVar("S", bound=_Patient)
P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[S, P], T]


def idempotent(method: Method[S, P, T]) -> Method[S, P, T]:
    """Repeat a call that, told twice, leaves what it leaves when it is told once."""
    return _repeated(method, lambda _: True)


def unrepeatable(method: Method[S, P, T]) -> Method[S, P, T]:
    """Repeat a call only if it surely recorded nothing."""
    return _repeated(method, lambda error: not (isinstance(error, LedgerAway) and error.unsure))


def _repeated(method: Method[S, P, T], safe: Callable[[LedgerError], bool]) -> Method[S, P, T]:
    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        since, times = 0.0, 0
        while True:
            try:
                return method(self, *args, **kwargs)
            except (LedgerAway, LedgerLocked) as error:
                since = since or time.monotonic()
                passing = isinstance(error, LedgerLocked) or error.passing
                if not (passing and safe(error) and self.patience.wait(error, since, times)):
                    raise
                times += 1

    return call
