"""Ctrl-C and SIGTERM wait for the end of an update, so that what was trained can be saved.

In the middle of an update the policy is half changed and its random numbers are half drawn: nothing that could be
continued. So the first signal is only noted, and goes to whoever would have got it once the update is recorded. A
second one is not waited with: an update may take long.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interrupt:
    """Whether, and by what signal, the run was asked to end."""

    number: int | None = None


@contextmanager
def interrupts_wait() -> Iterator[Interrupt]:
    """Note the first signal, and raise it again at the end of the block; those that are ignored stay so.

    Outside of the main thread, which alone gets signals, it does nothing.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in found.items() if handler not in (None, signal.SIG_IGN)}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        interrupt.number = number
        give_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        give_back()
        if interrupt.number is not None:
            signal.raise_signal(interrupt.number)
