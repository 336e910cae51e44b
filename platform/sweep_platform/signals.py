"""What ends a command early: Ctrl-C and SIGTERM, as a scheduler sends it, are one thing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(noted: Callable[[], None] | None = None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block by KeyboardInterrupt, where this is the main thread.

    SIGINT too: it would be ignored in a process that a script started in the background.

    Args:
        noted: called first, in the signal's handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if noted is not None:
            noted()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
