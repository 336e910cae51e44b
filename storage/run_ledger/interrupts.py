"""Ctrl-C and SIGTERM wait for the end of a transaction.

Raised in the middle of a statement, an interrupt leaves the driver half-way: the connection is thrown away, but SQLite
keeps its transaction, and the lock on all writers, for as long as the exception's traceback holds the statement.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Note the first signal, and raise it again at the end of the block; those that are ignored stay so.

    A second one isn't waited with: a database may be slow to answer. Outside of the main thread, which alone gets
    signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {int(number): signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in found.items() if handler not in (None, signal.SIG_IGN)}
    noted: list[int] = []

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)
        give_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        give_back()
        if noted:
            signal.raise_signal(noted[0])
