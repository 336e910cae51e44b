"""A thread that does a round of work every few seconds, and a last one when it is closed.

A round may fail: the first failure is told, later rounds try again, and nobody else notices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sweep_platform.errors import one_line
from sweep_platform.tracking.store import MAX_REASON

FLUSH_SECONDS = 10.0
DRAIN_SECONDS = 60.0
DRAIN_SECONDS_AFTER_FAILURE = 5.0


class Background:
    """Calls `work(last)` again and again.

    Args:
        work: One round; `last` is true for the final one.
        failed: Called once, with the reason, when a round fails for the first time.
        flush_s: Seconds between two rounds.
    """

    def __init__(
        self, work: Callable[[bool], None], failed: Callable[[str], None], flush_s: float = FLUSH_SECONDS
    ) -> None:
        self._work = work
        self._failed = failed
        self._flush_s = flush_s
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow-projection", daemon=True)
        self.busy_s = 0.0
        """Seconds spent in `work`."""
        self._thread.start()

    def close(self) -> None:
        """Do the last round and wait for it, within limits. Safe to repeat."""
        self._stop.set()
        self._thread.join(DRAIN_SECONDS_AFTER_FAILURE if self._told else DRAIN_SECONDS)
        if self._thread.is_alive():
            self._tell("it does not answer")

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(self._flush_s)
            began = time.perf_counter()
            try:
                self._work(last)
            except Exception as error:  # MLflow raises whatever its database, network and disk raise
                self._tell(one_line(error, MAX_REASON))
                last = last or self._stop.is_set()  # whoever closes it waits: no second try then
            self.busy_s += time.perf_counter() - began

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._failed(reason)
