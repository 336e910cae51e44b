"""Opening a sweep: find or make it in the ledger, take its lease, pick up what an earlier process left."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from run_ledger import DriverLease, LedgerError, SweepRecord, TrialState

from sweep_platform.driver.driver import Driver
from sweep_platform.driver.plan import SearchPlan
from sweep_platform.driver.roster import Roster
from sweep_platform.driver.spending import Spending, running_seconds
from sweep_platform.errors import SweepChanged
from sweep_platform.events import Announcer, Observer
from sweep_platform.home import Home
from sweep_platform.search import Feasibility, Searcher
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import load_trainer

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
    retry_failed: bool = False,
) -> Iterator[Driver]:
    """Hold a sweep and yield its driver, to be run by an executor.

    Args:
        ledger: An open ledger.
        spec: What to run.
        home: Where the trials' folders are.
        observers: Told of everything that happens.
        new: Start the next version of the sweep instead of going on with the latest.
        retry_failed: Try trials again that failed under an earlier run of the command.

    Raises:
        SweepChanged: the latest version under this name was run with another spec.
        SweepBusy: another driver that lives runs it.
        BadInput: no trainer of that name is installed.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; everything reported is recorded, and the same call goes on.
    """
    sweep = _find_or_create(ledger, spec, new)
    trainer = load_trainer(spec.trainer)
    lease = ledger.acquire_sweep(sweep.id, f"{socket.gethostname()}:{os.getpid()}", ttl_s=LEASE_S)
    with _kept(ledger, lease):
        ledger.reconcile(lease)
        if sweep.spec != spec.to_dict():
            sweep = ledger.update_spec(lease, spec.to_dict())  # a larger budget, say; its identity is the same
        roster = Roster(ledger, lease, sweep)
        _reopen(roster, failed=retry_failed)
        feasibility, announcer = Feasibility(spec, trainer), Announcer(observers)
        plan = _search_plan(roster, spec, feasibility, announcer)
        driver = Driver(
            roster=roster,
            plan=plan,
            spec=spec,
            trainer=trainer,
            feasibility=feasibility,
            observers=announcer,
            home=home,
        )
        with _interruptible(driver), _handing_back(driver):
            announcer.sweep_started(sweep, spec, driver.trials)
            yield driver
            if driver.cut_short is not None:
                _log.warning("%s", driver.cut_short)
            announcer.sweep_finished(sweep, driver.trials)


def _search_plan(roster: Roster, spec: SweepSpec, feasibility: Feasibility, announcer: Announcer) -> SearchPlan:
    """What a search runs; values that no trial can have are told."""
    impossible = feasibility.impossible()
    for path, values in impossible.items():
        for value, why in values.items():
            _log.warning("search.%s: %r is left out, as no trial can have it: %s", path, value, why)
    spending = Spending(spec.budget, running_seconds(roster.ledger, roster.candidates), time.monotonic())
    return SearchPlan(
        roster,
        spec,
        searcher=Searcher(spec, impossible),
        feasibility=feasibility,
        spending=spending,
        tell=announcer.trial_finished,
    )


def _reopen(roster: Roster, *, failed: bool) -> None:
    """Let trials run again that were lost with what ran them, and on request those that failed."""
    states = (TrialState.LOST, TrialState.FAILED) if failed else (TrialState.LOST,)
    for trial in roster.trials:
        if trial.state in states:
            roster.change_state(trial.number, TrialState.WAITING, trial.reason)


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
    version = 1 if found is None else found.version + 1
    return ledger.create_sweep(spec.name, spec.to_dict(), identity, spec.seed, _commit(), version=version)


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
