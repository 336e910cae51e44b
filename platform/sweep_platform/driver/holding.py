"""Holding a sweep while it runs: its lease, its signals, and that no trial is left as running."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from run_ledger import DriverLease, LedgerError

from sweep_platform.driver.driver import Driver

if TYPE_CHECKING:
    from run_ledger import Ledger

LEASE_S = 60.0
"""Seconds that a sweep stays reserved for a driver that says nothing."""


@contextmanager
def held(ledger: Ledger, sweep_id: int) -> Iterator[DriverLease]:
    """Hold a sweep's lease, with what earlier drivers left open ended as lost.

    Raises:
        SweepBusy: another driver that lives runs it.
    """
    lease = ledger.acquire_sweep(sweep_id, f"{socket.gethostname()}:{os.getpid()}", ttl_s=LEASE_S)
    with _kept(ledger, lease):
        ledger.reconcile(lease)
        yield lease


@contextmanager
def running(driver: Driver) -> Iterator[None]:
    """Let signals end the run, and leave no trial as running."""
    with _interruptible(driver), _handing_back(driver):
        yield


@contextmanager
def _kept(ledger: Ledger, lease: DriverLease) -> Iterator[None]:
    """Renew the lease from a thread, as a step may outlast it; give it back at the end."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(LEASE_S / 4):
            with suppress(LedgerError):  # the next write says so in the driver's own thread
                ledger.renew(lease)

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with suppress(LedgerError):  # taken over by another driver: not ours to give back
            ledger.release(lease)


@contextmanager
def _handing_back(driver: Driver) -> Iterator[None]:
    """Leave no trial as running, however the run ends."""
    try:
        yield
    finally:
        with suppress(LedgerError):  # it can't be written, or is another driver's: the next run sees to it
            driver.hand_back()


@contextmanager
def _interruptible(driver: Driver) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run by KeyboardInterrupt, where this is the main thread.

    SIGINT too: it would be ignored in a process that a script started in the background.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        driver.interrupt()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
