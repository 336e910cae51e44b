"""Opening a sweep: find or make it in the ledger, take its lease, pick up what an earlier process left."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from run_ledger import DriverLease, LedgerError, SweepRecord

from sweep_platform.driver.driver import Driver
from sweep_platform.errors import SweepChanged
from sweep_platform.events import Observer
from sweep_platform.home import Home
from sweep_platform.search import Feasibility, Searcher
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import Trainer, load_trainer

if TYPE_CHECKING:
    from run_ledger import Ledger

LEASE_S = 60.0
"""Seconds that a sweep stays reserved for a driver that says nothing."""

_log = logging.getLogger(__name__)


@contextmanager
def open_sweep(
    ledger: Ledger,
    spec: SweepSpec,
    home: Home,
    *,
    observers: Sequence[Observer] = (),
    new: bool = False,
    trainer: Trainer | None = None,
) -> Iterator[Driver]:
    """Hold a sweep and yield its driver, to be run by an executor.

    Args:
        ledger: An open ledger.
        spec: What to run.
        home: Where the trials' folders are.
        observers: Told of everything that happens.
        new: Start the next version of the sweep instead of going on with the latest.
        trainer: Stands in for the one that the spec names.

    Raises:
        SweepChanged: the latest version under this name was run with another spec.
        SweepBusy: another driver that lives runs it.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; everything reported is recorded, and the same call goes on.
    """
    sweep = _find_or_create(ledger, spec, new)
    trainer = trainer or load_trainer(spec.trainer)
    lease = ledger.acquire_sweep(sweep.id, f"{socket.gethostname()}:{os.getpid()}", ttl_s=LEASE_S)
    with _terminate_as_interrupt(), _kept(ledger, lease):
        ledger.reconcile(lease)
        feasibility = Feasibility(spec, trainer)
        driver = Driver(
            ledger=ledger,
            lease=lease,
            sweep=sweep,
            spec=spec,
            trainer=trainer,
            searcher=Searcher(spec, feasibility.impossible()),
            feasibility=feasibility,
            observers=observers,
            home=home,
        )
        driver.observers.sweep_started(sweep, spec, driver.trials)
        yield driver
        driver.observers.sweep_finished(sweep, driver.trials)


def _find_or_create(ledger: Ledger, spec: SweepSpec, new: bool) -> SweepRecord:
    """The sweep's latest version, if it was run with this spec; a new one if there is none, or on request."""
    identity = spec.identity()
    found = ledger.find_sweep(spec.name)
    if found is not None and not new:
        if found.identity == identity:
            return found
        lines = "".join(f"\n  {line}" for line in spec.diff(found.spec))
        raise SweepChanged(
            f"sweep {found.address}: got a spec that differs from the one its trials were run with:{lines}\n"
            f"need the same spec to go on; undo the change, start {spec.name}@{found.version + 1} with "
            "--new, or give the spec another name"
        )
    return ledger.create_sweep(spec.name, spec.to_dict(), identity, spec.seed, _commit())


def _commit() -> str | None:
    """The commit of this code, where it runs from a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return None


@contextmanager
def _kept(ledger: Ledger, lease: DriverLease) -> Iterator[None]:
    """Renew the lease from a thread, as a step may outlast it; give it back at the end."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(LEASE_S / 4):
            try:
                ledger.renew(lease)
            except LedgerError as error:  # the next write says so in the driver's own thread
                _log.warning("the sweep's lease can't be renewed: %s", error)

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
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the process as Ctrl-C does, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
