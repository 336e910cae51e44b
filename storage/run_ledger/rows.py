"""Rows of the database as records."""

from __future__ import annotations

from run_ledger.models import (
    Attempt,
    Cost,
    CostColumns,
    Lease,
    Sweep,
    Trial,
)
from run_ledger.records import (
    AttemptRecord,
    CostRecord,
    DriverLease,
    SweepRecord,
    TrialRecord,
    TrialState,
)

COST_FIELDS = tuple(CostRecord.__dataclass_fields__)


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


def trial(row: Trial, spent: Cost) -> TrialRecord:
    """A trial with its cost."""
    return TrialRecord(
        id=row.id,
        sweep_id=row.sweep_id,
        number=row.number,
        state=TrialState(row.state),
        params=row.params,
        params_hash=row.params_hash,
        replicate=row.replicate,
        origin=row.origin,
        sampler_state=row.sampler_state,
        config=row.config,
        values=None if row.objective_values is None else tuple(row.objective_values),
        metrics=row.metrics,
        cost=cost(spent),
        step=row.step,
        total_steps=row.total_steps,
        reason=row.reason,
        attempts=row.attempts,
        started_at=row.started_at,
        ended_at=row.ended_at,
        mlflow_run_id=row.mlflow_run_id,
    )


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
