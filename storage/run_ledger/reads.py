"""Reading the ledger: every question that needs no lease."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import and_, case, exists, func, select

from run_ledger import checks, rows, steps
from run_ledger.database import Database
from run_ledger.models import Attempt, Evaluation, Lease, Observation, Promotion, Sweep, Trial
from run_ledger.patience import Patience, idempotent
from run_ledger.records import (
    AttemptRecord,
    DriverLease,
    EvaluationRecord,
    ObservationRecord,
    PromotionRecord,
    SweepRecord,
    TrialRecord,
)


class LedgerReads:
    """The reading half of `run_ledger.Ledger`."""

    def __init__(self, database: Database, patience: Patience) -> None:
        self._database = database
        self.patience = patience

    @idempotent
    def find_sweep(self, address: str) -> SweepRecord | None:
        """Return the sweep that `name` (its latest version) or `name@version` names."""
        name, at, version = address.partition("@")
        query = select(Sweep).where(Sweep.name == name).order_by(Sweep.version.desc()).limit(1)
        if at:
            query = query.where(Sweep.version == (int(version) if version.isdecimal() else None))
        with self._database.reading() as session:
            row = session.scalar(query)
            return None if row is None else rows.sweep(row)

    @idempotent
    def sweeps(self) -> list[SweepRecord]:
        """All sweeps, oldest first."""
        with self._database.reading() as session:
            return [rows.sweep(row) for row in session.scalars(select(Sweep).order_by(Sweep.id))]

    @idempotent
    def lease(self, sweep_id: int) -> DriverLease | None:
        """The lease of whoever drives a sweep, or drove it last; None before the first and for an unknown sweep."""
        with self._database.reading() as session:
            row = session.get(Lease, sweep_id)
            return None if row is None or row.token == 0 else rows.lease(row)

    @idempotent
    def trial(self, trial_id: int) -> TrialRecord:
        """Return one trial.

        Raises:
            LedgerError: there is none of that id.
        """
        with self._database.reading() as session:
            checks.existing_trial(session, trial_id)
            return rows.trials(session, Trial.id == trial_id)[0]

    @idempotent
    def trials(self, sweep_id: int) -> list[TrialRecord]:
        """All trials of a sweep, by number."""
        with self._database.reading() as session:
            return rows.trials(session, Trial.sweep_id == sweep_id)

    @idempotent
    def outline(self, sweep_id: int, metrics: Collection[str] = ()) -> list[TrialRecord]:
        """The same without `config` and `sampler_state`, and of the metrics only those named.

        The others take most of the time that reading thousands of trials takes.
        """
        with self._database.reading() as session:
            return rows.trials(session, Trial.sweep_id == sweep_id, metrics)

    @idempotent
    def attempts(self, trial_id: int) -> list[AttemptRecord]:
        """A trial's attempts, oldest first."""
        query = select(Attempt).where(Attempt.trial_id == trial_id).order_by(Attempt.id)
        with self._database.reading() as session:
            return [rows.attempt(row) for row in session.scalars(query)]

    @idempotent
    def attempts_of(self, sweep_id: int) -> list[AttemptRecord]:
        """All attempts at a sweep's trials, oldest first, in one query."""
        with self._database.reading() as session:
            return rows.attempts(session, sweep_id)

    @idempotent
    def observations(self, trial_id: int) -> list[ObservationRecord]:
        """A trial's reports, by step."""
        query = select(Observation).where(Observation.trial_id == trial_id).order_by(Observation.step)
        with self._database.reading() as session:
            return [rows.observation(row) for row in session.scalars(query)]

    @idempotent
    def evaluations(self, trial_id: int, step: int | None = None) -> list[EvaluationRecord]:
        """The samples of one step's evaluation; of the last step that evaluated, without one."""
        columns = [getattr(Evaluation, name) for name in steps.SAMPLE_FIELDS]
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

    @idempotent
    def shares(self, trial_ids: Collection[int]) -> dict[int, dict[tuple[str, str], float]]:
        """Shares of right answers in trials' last evaluations: by trial, then by (data source, problem).

        A trial that evaluated nothing isn't among them. Problems are in the order in which they were reported.
        """
        one, at = Evaluation, Observation
        evaluated = exists().where(one.observation_id == at.id)
        last = select(at.trial_id, func.max(at.step).label("step")).where(at.trial_id.in_(trial_ids), evaluated)
        lasts = last.group_by(at.trial_id).subquery()
        right = func.sum(case((one.correct, 1), else_=0))
        query = (
            select(at.trial_id, one.data_source, one.problem_id, right, func.count())
            .join(one, one.observation_id == at.id)
            .join(lasts, and_(lasts.c.trial_id == at.trial_id, lasts.c.step == at.step))
            .group_by(at.trial_id, one.data_source, one.problem_id)
            .order_by(at.trial_id, func.min(one.position))
        )
        found: dict[int, dict[tuple[str, str], float]] = {}
        with self._database.reading() as session:
            for trial_id, source, problem, correct, count in session.execute(query):
                found.setdefault(trial_id, {})[source, problem] = correct / count
        return found

    @idempotent
    def promotions(self, alias: str | None = None) -> list[PromotionRecord]:
        """All choices, or those of one alias, oldest first; the last of an alias is the one that counts."""
        query = select(Promotion).order_by(Promotion.id)
        if alias is not None:
            query = query.where(Promotion.alias == alias)
        with self._database.reading() as session:
            return [rows.promotion(row) for row in session.scalars(query)]

    @idempotent
    def sweep(self, sweep_id: int) -> SweepRecord:
        """Return one sweep.

        Raises:
            LedgerError: there is none of that id.
        """
        with self._database.reading() as session:
            return rows.sweep(checks.existing_sweep(session, sweep_id))
