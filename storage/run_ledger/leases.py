"""Who may write a sweep: a lease that expires or whose process is gone, and a token that only grows.

Each check locks the lease's row to the end of the transaction, so that nobody can take over between check and write.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from run_ledger import rows
from run_ledger.errors import LedgerError, StaleToken, SweepBusy
from run_ledger.models import Attempt, Lease, Sweep, Trial
from run_ledger.process import pid_scope, process_started, surely_gone
from run_ledger.records import DriverLease

_NEED_DRIVER = "a write by the sweep's current driver"


def now() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


def after(ttl_s: float) -> datetime:
    """The time in `ttl_s` seconds."""
    return now() + timedelta(seconds=ttl_s)


def nobody(sweep_id: int) -> Lease:
    """The lease of a sweep that nobody has driven yet."""
    return Lease(
        sweep_id=sweep_id,
        token=0,
        held=False,
        holder="",
        host="",
        pid=0,
        pid_scope="",
        process_started=0.0,
        ttl_s=0.0,
        expires_at=now(),
    )


def acquire(session: Session, sweep_id: int, holder: str, ttl_s: float) -> DriverLease:
    """Take the sweep's lease.

    Raises:
        SweepBusy: a driver holds it whose lease has not expired and whose process may live.
        LedgerError: no such sweep.
    """
    row = session.scalar(select(Lease).where(Lease.sweep_id == sweep_id).with_for_update())
    if row is None:
        raise LedgerError(f"sweep id {sweep_id}", "one that the ledger holds", "create it first")
    if row.held and row.expires_at > now() and not surely_gone(row.pid_scope, row.pid, row.process_started):
        sweep = rows.sweep(session.get_one(Sweep, sweep_id))
        raise SweepBusy(
            f"sweep {sweep.address}, which {row.holder} runs ({_place(row)})",
            "a sweep that no other driver runs",
            "wait for that process or end it, then try again",
        )
    row.token += 1
    row.held, row.holder, row.ttl_s, row.expires_at = True, holder, ttl_s, after(ttl_s)
    row.host, row.pid, row.pid_scope = socket.gethostname(), os.getpid(), pid_scope()
    row.process_started = process_started(row.pid) or 0.0
    return rows.lease(row)


def check(session: Session, lease: DriverLease) -> Lease:
    """Return the lease's row, renewed, if the lease still counts.

    A lease that expired but that nobody took counts: the token decides, not the clock.

    Raises:
        StaleToken: another driver has taken over, or it was given back.
    """
    row = session.scalar(select(Lease).where(Lease.sweep_id == lease.sweep_id).with_for_update())
    if row is None or not row.held or row.token != lease.token:
        raise _stale(session, lease.sweep_id, row, f"a write by {lease.holder} (token {lease.token})")
    row.expires_at = after(row.ttl_s)
    return row


def check_attempt(session: Session, attempt_id: int) -> tuple[Attempt, Trial]:
    """Return an attempt and its trial, with attempt and driver's lease renewed, if the attempt may still write.

    Raises:
        StaleToken: it ended, or its driver's lease is over.
    """
    of_attempt = select(Trial.sweep_id).join(Attempt, Attempt.trial_id == Trial.id).where(Attempt.id == attempt_id)
    lease = session.scalar(select(Lease).where(Lease.sweep_id == of_attempt.scalar_subquery()).with_for_update())
    if lease is None:
        raise LedgerError(f"attempt id {attempt_id}", "one that the ledger holds", "start it first")
    both = select(Attempt, Trial).join(Trial, Trial.id == Attempt.trial_id).where(Attempt.id == attempt_id)
    attempt, trial = session.execute(both.execution_options(populate_existing=True)).one()  # as they are under the lock
    if not lease.held or lease.token != attempt.token:
        raise _stale(session, trial.sweep_id, lease, f"a write of attempt {attempt.id} (token {attempt.token})")
    if attempt.ended_at is not None:
        got = f"a write of attempt {attempt.id}, which ended ({attempt.exit_reason})"
        raise StaleToken(got, "an open attempt", "leave the trial to the attempt that took over")
    lease.expires_at, attempt.lease_expires_at = after(lease.ttl_s), after(attempt.ttl_s)
    return attempt, trial


def _stale(session: Session, sweep_id: int, row: Lease | None, write: str) -> StaleToken:
    """What says that a write came too late, and who holds the sweep now."""
    sweep = session.get(Sweep, sweep_id)
    address = rows.sweep(sweep).address if sweep is not None else f"id {sweep_id}"
    if row is not None and row.held:
        got = f"{write} to sweep {address}, which {row.holder} has taken over ({_place(row)})"
        return StaleToken(got, _NEED_DRIVER, "leave the sweep to that process, or end it and run the sweep again")
    return StaleToken(f"{write} to sweep {address}, whose lease is over", _NEED_DRIVER, "run the sweep again")


def _place(row: Lease) -> str:
    return f"host {row.host}, process {row.pid}, until at least {row.expires_at:%Y-%m-%d %H:%M:%S} UTC"


def end_open_attempts(session: Session, trial_ids: Sequence[int], reason: str) -> None:
    """End what is open of some trials."""
    left = update(Attempt).where(Attempt.trial_id.in_(trial_ids), Attempt.ended_at.is_(None))
    session.execute(left.values(ended_at=now(), exit_reason=reason))
