"""The ledger: every write is one transaction that first checks the driver's lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from run_ledger import checks, copying, leases, rows, steps
from run_ledger.database import BUSY_S, Database
from run_ledger.errors import LedgerError
from run_ledger.leases import after, now
from run_ledger.models import Attempt, Sweep, Trial
from run_ledger.notes import LedgerNotes
from run_ledger.patience import Patience, idempotent, unrepeatable
from run_ledger.records import (
    AttemptRecord,
    CostLike,
    DriverLease,
    ResultRecord,
    SampleLike,
    SweepRecord,
    TrialRecord,
    TrialState,
)


class Ledger(LedgerNotes):
    """One open ledger; `open` makes it. Threads may share it."""

    @classmethod
    def open(cls, url: str, *, busy_s: float = BUSY_S, patience_s: float = 0.0) -> Ledger:
        """Open the database at `url`, created and migrated where needed.

        Args:
            url: SQLAlchemy URL of an SQLite file or a PostgreSQL database.
            busy_s: Seconds that one transaction waits for another process's.
            patience_s: Seconds for which a call is repeated while the database is away or locked, once it is open.

        Raises:
            LedgerError: see `Database`.
        """
        return cls(Database(url, busy_s), Patience(patience_s))

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sweeps

    @unrepeatable
    def create_sweep(
        self,
        name: str,
        spec: Mapping[str, Any],
        identity: str,
        seed: int,
        commit: str | None = None,
        *,
        version: int | None = None,
    ) -> SweepRecord:
        """Add the next version of the sweep `name`.

        Args:
            name: Of the sweep.
            spec: Complete, as JSON.
            identity: Hash of what makes it this sweep.
            seed: Of the search.
            commit: Of the code.
            version: What the next one is believed to be; None takes it as it comes.

        Raises:
            LedgerError: the name has an @, which sets off versions, the spec has what JSON can't hold, or the next
                version is another one.
        """
        if not name or "@" in name:
            raise LedgerError(f"the sweep name {name!r}", "a name without @, which sets off versions", "rename it")
        with self._database.writing(alone=True) as session:
            last = session.scalar(select(func.max(Sweep.version)).where(Sweep.name == name)) or 0
            if version not in (None, last + 1):
                got = f"sweep {name}@{last}, which another process has just started"
                raise LedgerError(got, f"{name}@{version} to be new", "run the command again to see its state")
            row = Sweep(
                name=name,
                version=last + 1,
                spec=dict(spec),
                identity=identity,
                seed=seed,
                git_commit=commit,
                created_at=now(),
                mlflow_run_id=None,
            )
            session.add(row)
            session.flush()
            session.add(leases.nobody(row.id))
            session.refresh(row)
            return rows.sweep(row)

    @idempotent
    def update_spec(self, lease: DriverLease, spec: Mapping[str, Any]) -> SweepRecord:
        """Store a sweep's spec anew, which differs from the stored one in nothing that makes its identity.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            row = session.get_one(Sweep, lease.sweep_id)
            row.spec = dict(spec)
            session.flush()
            return rows.sweep(row)

    @unrepeatable
    def acquire_sweep(self, sweep_id: int, holder: str, ttl_s: float = 60.0) -> DriverLease:
        """Take the right to write a sweep, for as long as it is renewed within `ttl_s` seconds; each write renews it.

        The lease of a process on this machine that is gone can be taken at once.

        Raises:
            SweepBusy: another driver holds it.
        """
        with self._database.writing() as session:
            return leases.acquire(session, sweep_id, holder, ttl_s)

    @idempotent
    def renew(self, lease: DriverLease) -> DriverLease:
        """Prolong a lease by its time to live.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            return rows.lease(leases.check(session, lease))

    @idempotent
    def release(self, lease: DriverLease) -> None:
        """Give a lease back.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            leases.check(session, lease).held = False

    # Trials

    @unrepeatable
    def add_trial(
        self,
        lease: DriverLease,
        *,
        number: int,
        params: Mapping[str, Any],
        params_hash: str,
        config: Mapping[str, Any],
        origin: str,
        sampler_state: Mapping[str, Any],
        replicate: int = 0,
        state: TrialState = TrialState.WAITING,
        reason: str | None = None,
        result: ResultRecord | None = None,
    ) -> TrialRecord:
        """Add a candidate: waiting, refused, or with the `result` that another system measured.

        Raises:
            StaleToken: another driver has taken over.
            LedgerError: its number, or its params as that replicate, are there already; or a result's values don't
                suit its state.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            checks.refuse_duplicate(session, lease.sweep_id, number, params_hash, replicate)
            columns = {
                "number": number,
                "state": state.value,
                "params": dict(params),
                "params_hash": params_hash,
                "replicate": replicate,
                "origin": origin,
                "sampler_state": dict(sampler_state),
                "config": dict(config),
                "reason": reason,
            }
            return _trial(session, copying.new_trial(session, lease.sweep_id, columns, state, result))

    @unrepeatable
    def copy_trial(
        self,
        lease: DriverLease,
        source_id: int,
        *,
        number: int,
        params: Mapping[str, Any],
        params_hash: str,
        config: Mapping[str, Any],
        values: Sequence[float],
        origin: str,
    ) -> TrialRecord:
        """Add a complete trial of another sweep with its costs, steps and samples; it has no attempts of its own.

        Raises:
            StaleToken: another driver has taken over.
            LedgerError: the source isn't complete, or the number or params are there already.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            checks.refuse_duplicate(session, lease.sweep_id, number, params_hash, 0)
            source = checks.existing_trial(session, source_id)
            if source.state != TrialState.COMPLETE.value:
                raise LedgerError(f"trial id {source_id}, which is {source.state}", "a complete one", "leave it")
            changes = {
                "sweep_id": lease.sweep_id,
                "number": number,
                "params": dict(params),
                "params_hash": params_hash,
                "config": dict(config),
                "objective_values": list(values),
                "origin": origin,
            }
            return _trial(session, copying.copy_trial(session, source, changes))

    @idempotent
    def start_attempt(
        self, lease: DriverLease, trial_id: int, *, host: str, pid: int, ttl_s: float = 60.0
    ) -> AttemptRecord:
        """Begin an attempt at an open trial; one of it that is open ends as `superseded`.

        Raises:
            StaleToken: another driver has taken over.
            LedgerError: the trial is finished.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            trial = checks.existing_trial(session, trial_id)
            if trial.sweep_id != lease.sweep_id or TrialState(trial.state).final:
                got = f"trial id {trial_id} ({trial.state}, of sweep id {trial.sweep_id})"
                raise LedgerError(got, f"an open trial of sweep id {lease.sweep_id}", "start another")
            leases.end_open_attempts(session, [trial_id], "superseded")
            trial.state, trial.attempts = TrialState.RUNNING.value, trial.attempts + 1
            trial.started_at = trial.started_at or now()
            row = Attempt(
                trial_id=trial_id,
                token=lease.token,
                host=host,
                pid=pid,
                ttl_s=ttl_s,
                lease_expires_at=after(ttl_s),
                started_at=now(),
                ended_at=None,
                exit_reason=None,
            )
            session.add(row)
            session.flush()
            return rows.attempt(row)

    @idempotent
    def record_step(
        self,
        attempt: AttemptRecord,
        *,
        step: int,
        total_steps: int,
        metrics: Mapping[str, float],
        cost: CostLike,
        samples: Sequence[SampleLike] = (),
        final: bool = False,
    ) -> None:
        """Record one step's report: observation, samples, cost and the trial's last metrics, together or not at all.

        The latest word on a step counts: told again, it is replaced, with its samples, and an attempt that goes on
        from a checkpoint drops what earlier attempts told of later steps. The trial's cost never decreases. Metrics
        and costs that are no finite numbers are left out and named in the observation's `non_finite`.

        Raises:
            StaleToken: the attempt ended, or its driver's lease is over.
        """
        numbers = steps.Numbers.of(metrics, cost)
        with self._database.writing() as session:
            row, trial = leases.check_attempt(session, attempt.id)
            steps.record(
                session, row, trial, step=step, total_steps=total_steps, numbers=numbers, samples=samples, final=final
            )

    @idempotent
    def finish_trial(
        self,
        attempt: AttemptRecord,
        state: TrialState,
        values: Sequence[float] | None = None,
        reason: str | None = None,
    ) -> TrialRecord:
        """Bring a trial to a final state; told again with the same state, nothing changes.

        Args:
            attempt: What ran it.
            state: A final state; WAITING, for an attempt that was interrupted and hands its trial back; or PAUSED.
            values: One finite value an objective; COMPLETE needs them.
            reason: Why it didn't complete.

        Raises:
            StaleToken: the attempt ended otherwise, or its driver's lease is over.
            LedgerError: RUNNING, or values that are missing or not finite.
        """
        checks.check_ending(state, values)
        with self._database.writing() as session:
            ended = session.get(Attempt, attempt.id)
            if ended is not None and ended.exit_reason == state.value:
                return _trial(session, ended.trial_id)
            row, trial = leases.check_attempt(session, attempt.id)
            row.ended_at, row.exit_reason = now(), state.value
            trial.state, trial.reason = state.value, reason
            trial.ended_at = now() if state.final else None
            trial.objective_values = None if values is None else [float(value) for value in values]
            return _trial(session, trial.id)

    @unrepeatable
    def change_state(
        self, lease: DriverLease, trial_id: int, state: TrialState, reason: str | None = None
    ) -> TrialRecord:
        """Decide about a trial without an attempt: prune a paused one, or reopen one that ended without a result.

        Raises:
            StaleToken: another driver has taken over.
            LedgerError: another change than PAUSED to PRUNED, PRUNED to PAUSED, or LOST or FAILED to WAITING.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            trial = checks.existing_trial(session, trial_id)
            checks.check_change(lease.sweep_id, trial, state)
            trial.state, trial.reason = state.value, reason
            trial.ended_at = now() if state.final else None
            return _trial(session, trial_id)

    @idempotent
    def reconcile(self, lease: DriverLease) -> list[TrialRecord]:
        """End as `lost` what earlier drivers left open; its trials wait again. Returns these.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            left = (
                select(Trial)
                .join(Attempt, Attempt.trial_id == Trial.id)
                .where(Trial.sweep_id == lease.sweep_id, Attempt.ended_at.is_(None), Attempt.token != lease.token)
            )
            trials = list(session.scalars(left))
            leases.end_open_attempts(session, [trial.id for trial in trials], "lost")
            for trial in trials:
                trial.state = TrialState.WAITING.value
            session.flush()
            return rows.trials(session, Trial.id.in_([trial.id for trial in trials]))


def _trial(session: Session, trial_id: int) -> TrialRecord:
    session.flush()
    return rows.trials(session, Trial.id == trial_id)[0]
