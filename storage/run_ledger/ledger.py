"""The ledger: every write is one transaction that first checks the driver's lease."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.orm import Session

from run_ledger import leases, rows
from run_ledger.database import BUSY_S, Database
from run_ledger.errors import LedgerError
from run_ledger.leases import now
from run_ledger.models import Attempt, Cost, Evaluation, Lease, Observation, Promotion, Sweep, Trial
from run_ledger.records import (
    AttemptRecord,
    CostLike,
    DriverLease,
    EvaluationRecord,
    ObservationRecord,
    PromotionRecord,
    SampleLike,
    SweepRecord,
    TrialRecord,
    TrialState,
)

_SAMPLE_FIELDS = tuple(name for name in EvaluationRecord.__dataclass_fields__ if name != "step")


class Ledger:
    """One open ledger; `open` makes it. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, *, busy_s: float = BUSY_S) -> Ledger:
        """Open the database at `url`, created and migrated where needed.

        Raises:
            LedgerError: see `Database`.
        """
        return cls(Database(url, busy_s))

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sweeps

    def create_sweep(
        self, name: str, spec: Mapping[str, Any], identity: str, seed: int, commit: str | None = None
    ) -> SweepRecord:
        """Add the next version of the sweep `name`."""
        with self._database.writing() as session:
            last = session.scalar(select(func.max(Sweep.version)).where(Sweep.name == name)) or 0
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
            nobody = {
                "held": False,
                "holder": "",
                "host": "",
                "pid": 0,
                "pid_scope": "",
                "process_started": 0.0,
            }
            session.add(Lease(sweep_id=row.id, token=0, ttl_s=0.0, expires_at=now(), **nobody))
            return rows.sweep(row)

    def find_sweep(self, address: str) -> SweepRecord | None:
        """Return the sweep that `name` (its latest version) or `name@version` names."""
        name, at, version = address.rpartition("@")
        query = select(Sweep).where(Sweep.name == address).order_by(Sweep.version.desc()).limit(1)
        if at and version.isdecimal():
            query = select(Sweep).where(Sweep.name == name, Sweep.version == int(version))
        with self._database.reading() as session:
            row = session.scalar(query)
            return None if row is None else rows.sweep(row)

    def sweeps(self) -> list[SweepRecord]:
        """All sweeps, oldest first."""
        with self._database.reading() as session:
            return [rows.sweep(row) for row in session.scalars(select(Sweep).order_by(Sweep.id))]

    def acquire_sweep(self, sweep_id: int, holder: str, ttl_s: float = 60.0) -> DriverLease:
        """Take the right to write a sweep; at once if the last holder's process is gone.

        Raises:
            SweepBusy: another driver holds it.
        """
        with self._database.writing() as session:
            return leases.acquire(session, sweep_id, holder, ttl_s)

    def renew(self, lease: DriverLease) -> DriverLease:
        """Prolong a lease by its time to live.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            return rows.lease(leases.check(session, lease))

    def release(self, lease: DriverLease) -> None:
        """Give a lease back.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            leases.check(session, lease).held = False

    # Trials

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
    ) -> TrialRecord:
        """Add a candidate, waiting or refused.

        Raises:
            StaleToken: another driver has taken over.
            LedgerError: its number, or its params as that replicate, are there already.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            row = Trial(
                sweep_id=lease.sweep_id,
                number=number,
                state=state.value,
                params=dict(params),
                params_hash=params_hash,
                replicate=replicate,
                origin=origin,
                sampler_state=dict(sampler_state),
                config=dict(config),
                objective_values=None,
                metrics={},
                step=0,
                total_steps=0,
                reason=reason,
                attempts=0,
                started_at=None,
                ended_at=now() if state.final else None,
                mlflow_run_id=None,
            )
            session.add(row)
            session.flush()
            spent = Cost(trial_id=row.id)
            session.add(spent)
            session.flush()
            return rows.trial(row, spent)

    def trial(self, trial_id: int) -> TrialRecord:
        """Return one trial.

        Raises:
            LedgerError: there is none of that id.
        """
        with self._database.reading() as session:
            found = _trials(session, Trial.id == trial_id)
        if not found:
            raise LedgerError(f"trial id {trial_id}", "one that the ledger holds", "look it up by its sweep")
        return found[0]

    def trials(self, sweep_id: int) -> list[TrialRecord]:
        """All trials of a sweep, by number."""
        with self._database.reading() as session:
            return _trials(session, Trial.sweep_id == sweep_id)

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
            trial = session.get_one(Trial, trial_id)
            if TrialState(trial.state).final:
                raise LedgerError(
                    f"trial {trial.number}, which is {trial.state}", "an open trial", "start another"
                )
            _end_open_attempts(session, Attempt.trial_id == trial_id, "superseded")
            trial.state, trial.attempts = TrialState.RUNNING.value, trial.attempts + 1
            trial.started_at = trial.started_at or now()
            row = Attempt(
                trial_id=trial_id,
                token=lease.token,
                host=host,
                pid=pid,
                ttl_s=ttl_s,
                lease_expires_at=now() + timedelta(seconds=ttl_s),
                started_at=now(),
                ended_at=None,
                exit_reason=None,
            )
            session.add(row)
            session.flush()
            return rows.attempt(row)

    def heartbeat(self, attempt: AttemptRecord) -> None:
        """Say that an attempt lives.

        Raises:
            StaleToken: it was superseded.
        """
        with self._database.writing() as session:
            row, _ = leases.check_attempt(session, attempt.id)
            row.lease_expires_at = now() + timedelta(seconds=row.ttl_s)

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
        """Record one step's report; a step that is there already is replaced, with its samples.

        Metrics that are no finite numbers are left out and named, since JSON has no form for them. The trial's
        cost never decreases: a resumed trial may report from before what it had spent.

        Raises:
            StaleToken: the attempt was superseded, or its driver's lease is over.
        """
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        spent = {name: getattr(cost, name) for name in rows.COST_FIELDS}
        lost = [name for name in metrics if name not in finite]
        lost += [f"cost/{name}" for name, value in spent.items() if not math.isfinite(value)]
        spent = {name: value if math.isfinite(value) else 0 for name, value in spent.items()}
        with self._database.writing() as session:
            row, trial = leases.check_attempt(session, attempt.id)
            row.lease_expires_at = now() + timedelta(seconds=row.ttl_s)
            old = session.scalar(
                select(Observation).where(Observation.trial_id == trial.id, Observation.step == step)
            )
            if old is not None:
                session.delete(old)
                session.flush()
            observation = Observation(
                trial_id=trial.id,
                attempt_id=row.id,
                step=step,
                metrics=finite,
                non_finite=lost,
                final=final,
                at=now(),
                **spent,
            )
            session.add(observation)
            session.flush()
            if samples:
                session.execute(insert(Evaluation), _sample_rows(observation.id, samples))
            if step >= trial.step:
                trial.step, trial.total_steps, trial.metrics = step, total_steps, finite
            total = session.get_one(Cost, trial.id)
            for name, value in spent.items():
                setattr(total, name, max(getattr(total, name), value))

    def finish_trial(
        self,
        attempt: AttemptRecord,
        state: TrialState,
        values: Sequence[float] | None = None,
        reason: str | None = None,
    ) -> TrialRecord:
        """Bring a trial to a final state; to do it again with the same state changes nothing.

        Raises:
            StaleToken: the attempt was superseded, or its driver's lease is over.
            LedgerError: the state is not final, or the trial already ended in another.
        """
        if not state.final:
            raise LedgerError(f"the state {state}", "a final state", "finish a trial only once it ended")
        with self._database.writing() as session:
            row, trial = leases.check_attempt(session, attempt.id, ended_ok=True)
            before = TrialState(trial.state)
            if before.final and before is not state:
                raise LedgerError(f"trial {trial.number} as {state}", f"{before}, as it ended", "leave it")
            if not before.final:
                leases.check_attempt(session, attempt.id)
                trial.state, trial.reason, trial.ended_at = state.value, reason, now()
                trial.objective_values = None if values is None else [float(value) for value in values]
                row.ended_at, row.exit_reason = now(), state.value
                session.flush()
            return rows.trial(trial, session.get_one(Cost, trial.id))

    def reconcile(self, lease: DriverLease) -> list[TrialRecord]:
        """End what an earlier driver left open; its trials wait again. Returns them.

        Raises:
            StaleToken: another driver has taken over.
        """
        with self._database.writing() as session:
            leases.check(session, lease)
            mine = select(Trial.id).where(Trial.sweep_id == lease.sweep_id)
            _end_open_attempts(session, Attempt.trial_id.in_(mine), "lost")
            left = (Trial.sweep_id == lease.sweep_id) & (Trial.state == TrialState.RUNNING.value)
            ids = list(session.scalars(select(Trial.id).where(left)))
            session.execute(update(Trial).where(left).values(state=TrialState.WAITING.value))
            return _trials(session, Trial.id.in_(ids))

    def observations(self, trial_id: int) -> list[ObservationRecord]:
        """A trial's reports, by step."""
        query = select(Observation).where(Observation.trial_id == trial_id).order_by(Observation.step)
        with self._database.reading() as session:
            return [
                ObservationRecord(
                    row.step, row.metrics, rows.cost(row), row.final, row.at, tuple(row.non_finite)
                )
                for row in session.scalars(query)
            ]

    def evaluations(self, trial_id: int, step: int | None = None) -> list[EvaluationRecord]:
        """The samples of one step's evaluation; of the last step that evaluated, without one."""
        columns = [getattr(Evaluation, name) for name in _SAMPLE_FIELDS]
        at = Observation.step
        with self._database.reading() as session:
            if step is None:
                join = select(func.max(at)).join(Evaluation, Evaluation.observation_id == Observation.id)
                step = session.scalar(join.where(Observation.trial_id == trial_id))
            query = (
                select(at, *columns)
                .join(Evaluation, Evaluation.observation_id == Observation.id)
                .where(Observation.trial_id == trial_id, at == step)
                .order_by(Evaluation.position)
            )
            return [EvaluationRecord(*row) for row in session.execute(query)]

    # Views and choices

    def set_mlflow_run(
        self, run_id: str, *, sweep_id: int | None = None, trial_id: int | None = None
    ) -> None:
        """Note which MLflow run shows a sweep or a trial; no lease is needed, since it is only a view."""
        with self._database.writing() as session:
            if sweep_id is not None:
                session.execute(update(Sweep).where(Sweep.id == sweep_id).values(mlflow_run_id=run_id))
            if trial_id is not None:
                session.execute(update(Trial).where(Trial.id == trial_id).values(mlflow_run_id=run_id))

    def promote(self, trial_id: int, alias: str, who: str, why: str) -> PromotionRecord:
        """Record that a trial was chosen; the latest under an alias counts."""
        with self._database.writing() as session:
            trial = session.get_one(Trial, trial_id)
            row = Promotion(
                sweep_id=trial.sweep_id, trial_id=trial_id, alias=alias, who=who, why=why, at=now()
            )
            session.add(row)
            session.flush()
            return _promotion(row)

    def promotions(self, sweep_id: int) -> list[PromotionRecord]:
        """A sweep's choices, oldest first."""
        query = select(Promotion).where(Promotion.sweep_id == sweep_id).order_by(Promotion.id)
        with self._database.reading() as session:
            return [_promotion(row) for row in session.scalars(query)]


def _trials(session: Session, where: ColumnElement[bool]) -> list[TrialRecord]:
    query = select(Trial, Cost).join(Cost, Cost.trial_id == Trial.id).where(where).order_by(Trial.number)
    return [rows.trial(trial, cost) for trial, cost in session.execute(query)]


def _end_open_attempts(session: Session, where: ColumnElement[bool], reason: str) -> None:
    ended = {"ended_at": now(), "exit_reason": reason}
    session.execute(update(Attempt).where(where, Attempt.ended_at.is_(None)).values(ended))


def _sample_rows(observation_id: int, samples: Sequence[SampleLike]) -> list[dict[str, Any]]:
    return [
        {"observation_id": observation_id, "position": position}
        | {name: getattr(sample, name) for name in _SAMPLE_FIELDS}
        for position, sample in enumerate(samples)
    ]


def _promotion(row: Promotion) -> PromotionRecord:
    return PromotionRecord(row.id, row.sweep_id, row.trial_id, row.alias, row.who, row.why, row.at)
