"""Rows of the database as records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from run_ledger.models import Attempt, Cost, CostColumns, Lease, Observation, Promotion, Sweep, Trial
from run_ledger.records import (
    AttemptRecord,
    CostRecord,
    DriverLease,
    ObservationRecord,
    PromotionRecord,
    SweepRecord,
    TrialRecord,
    TrialState,
)

COST_FIELDS = tuple(field.name for field in fields(CostRecord))
_COST_COLUMNS = tuple(getattr(Cost, name) for name in COST_FIELDS)
_ATTEMPT_COLUMNS = tuple(getattr(Attempt, field.name) for field in fields(AttemptRecord))
_PROMOTION_FIELDS = tuple(field.name for field in fields(PromotionRecord))
_TRIAL_FIELDS = tuple(Trial.__table__.columns.keys())


def cost(row: CostColumns) -> CostRecord:
    """Cost columns of any row."""
    return CostRecord(**{name: getattr(row, name) for name in COST_FIELDS})


def sweep(row: Sweep) -> SweepRecord:
    """A sweep."""
    return SweepRecord(
        id=row.id,
        name=row.name,
        version=row.version,
        spec=row.spec,
        identity=row.identity,
        seed=row.seed,
        commit=row.git_commit,
        created_at=row.created_at,
        mlflow_run_id=row.mlflow_run_id,
    )


def lease(row: Lease) -> DriverLease:
    """A driver's lease."""
    return DriverLease(row.sweep_id, row.token, row.holder, row.host, row.pid, row.ttl_s, row.expires_at)


def trials(session: Session, where: ColumnElement[bool], outline: Collection[str] | None = None) -> list[TrialRecord]:
    """Trials with their costs, by number, in one query; of columns, since 10,000 entities take twice as long.

    Args:
        session: Open.
        where: Which trials.
        outline: The only metrics that are read; `config` and `sampler_state` are empty then. None reads all.
    """
    left_out = () if outline is None else ("config", "sampler_state", "metrics")
    names, wanted = [name for name in _TRIAL_FIELDS if name not in left_out], list(outline or ())
    told = [Trial.metrics[name].as_float() for name in wanted]
    query = select(*(getattr(Trial, name) for name in names), *_COST_COLUMNS, *told)
    query = query.join(Cost, Cost.trial_id == Trial.id).where(where).order_by(Trial.sweep_id, Trial.number)
    empty: dict[str, Any] = {name: {} for name in left_out}
    costs, size = len(names), len(names) + len(_COST_COLUMNS)
    found = []
    for row in session.execute(query):
        fields = empty | dict(zip(names, row[:costs], strict=True))
        if wanted:
            given = zip(wanted, row[size:], strict=True)
            fields["metrics"] = {name: value for name, value in given if value is not None}
        found.append(_trial(fields, CostRecord(*row[costs:size])))
    return found


def _trial(fields: dict[str, Any], spent: CostRecord) -> TrialRecord:
    state, values = TrialState(fields.pop("state")), fields.pop("objective_values")
    return TrialRecord(state=state, values=None if values is None else tuple(values), cost=spent, **fields)


def attempt(row: Attempt) -> AttemptRecord:
    """An attempt."""
    return AttemptRecord(
        id=row.id,
        trial_id=row.trial_id,
        token=row.token,
        host=row.host,
        pid=row.pid,
        lease_expires_at=row.lease_expires_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        exit_reason=row.exit_reason,
    )


def attempts(session: Session, sweep_id: int) -> list[AttemptRecord]:
    """Attempts at a sweep's trials, oldest first; of columns, as `trials`."""
    query = select(*_ATTEMPT_COLUMNS).join(Trial, Trial.id == Attempt.trial_id).where(Trial.sweep_id == sweep_id)
    return [AttemptRecord(*row) for row in session.execute(query.order_by(Attempt.id))]


def observation(row: Observation) -> ObservationRecord:
    """One step's report."""
    return ObservationRecord(row.step, row.metrics, cost(row), row.final, row.at, tuple(row.non_finite))


def promotion(row: Promotion) -> PromotionRecord:
    """A choice."""
    return PromotionRecord(**{name: getattr(row, name) for name in _PROMOTION_FIELDS})
