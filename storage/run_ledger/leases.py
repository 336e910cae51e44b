"""Who may write a sweep: a lease that expires or whose process is gone, and a token that only grows."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from run_ledger import rows
from run_ledger.errors import LedgerError, StaleToken, SweepBusy
from run_ledger.models import Attempt, Lease, Trial
from run_ledger.records import DriverLease


def now() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


def acquire(session: Session, sweep_id: int, holder: str, ttl_s: float) -> DriverLease:
    """Take the sweep's lease.

    Raises:
        SweepBusy: it is held by a driver that may live.
        LedgerError: no such sweep.
    """
    row = session.scalar(select(Lease).where(Lease.sweep_id == sweep_id).with_for_update())
    if row is None:
        raise LedgerError(f"sweep id {sweep_id}", "one that the ledger holds", "create it first")
    if row.held and row.expires_at > now() and not _gone(row):
        raise SweepBusy(
            f"a sweep that {row.holder} runs (host {row.host}, process {row.pid}) until {row.expires_at:%H:%M:%S} UTC",
            "a sweep that no other driver runs",
            "wait for that driver, or end it",
        )
    row.token += 1
    row.held, row.holder, row.ttl_s = True, holder, ttl_s
    row.host, row.pid, row.pid_scope = socket.gethostname(), os.getpid(), _pid_scope()
    row.process_started = _process_started(os.getpid()) or 0.0
    row.expires_at = now() + timedelta(seconds=ttl_s)
    session.flush()
    return rows.lease(row)


def check(session: Session, lease: DriverLease) -> Lease:
    """Return the lease's row, renewed, if the lease still counts.

    Raises:
        StaleToken: another driver has taken over, or it was given back.
    """
    row = session.scalar(select(Lease).where(Lease.sweep_id == lease.sweep_id).with_for_update())
    if row is None or not row.held or row.token != lease.token:
        got = f"a write by {lease.holder}, whose lease is over"
        raise StaleToken(got, "the sweep's current driver", "run the sweep again")
    row.expires_at = now() + timedelta(seconds=row.ttl_s)
    return row


def check_attempt(session: Session, attempt_id: int, *, ended_ok: bool = False) -> tuple[Attempt, Trial]:
    """Return an attempt and its trial, locked, if it may still write.

    Raises:
        StaleToken: it was superseded, or its driver's lease is over.
    """
    attempt = session.get_one(Attempt, attempt_id)
    trial = session.get_one(Trial, attempt.trial_id)
    lease = session.scalar(select(Lease).where(Lease.sweep_id == trial.sweep_id).with_for_update())
    if lease is None or not lease.held or lease.token != attempt.token:
        got = f"a write of attempt {attempt.id}, whose driver's lease is over"
        raise StaleToken(got, "the sweep's current driver", "run the sweep again")
    if attempt.ended_at is not None and not ended_ok:
        got = f"a write of attempt {attempt.id}, which ended ({attempt.exit_reason})"
        raise StaleToken(got, "an attempt that is open", "leave the trial to the attempt that took over")
    lease.expires_at = now() + timedelta(seconds=lease.ttl_s)
    return attempt, trial


def _gone(row: Lease) -> bool:
    """Whether the holder's process is surely dead: same machine, and no such process, or another one by that id."""
    if row.host != socket.gethostname() or row.pid_scope != _pid_scope():
        return False
    return _process_started(row.pid) != row.process_started


def _pid_scope() -> str:
    """Names the space that process ids count in: this boot and this container's namespace."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"


def _process_started(pid: int) -> float | None:
    """When a process started, in the machine's own ticks; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else float(fields[19])
