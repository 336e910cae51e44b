"""New trials: one without attempts, and a copy of another sweep's with all that was observed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import insert, inspect, literal, select
from sqlalchemy.orm import Session

from run_ledger.checks import check_ending
from run_ledger.leases import now
from run_ledger.models import Attempt, Base, Cost, Evaluation, Observation, Trial
from run_ledger.records import ResultRecord, TrialState

EXIT = "copied"
"""Exit reason of the attempt that a copied trial's observations belong to; it took no time."""


def new_trial(
    session: Session, sweep_id: int, columns: Mapping[str, Any], state: TrialState, result: ResultRecord | None
) -> int:
    """Add a trial's row, with what another system measured if anything; return its id.

    Raises:
        LedgerError: the result's values don't suit the state.
    """
    told = result or ResultRecord(None, {})
    if result is not None:
        check_ending(state, told.values)
    trial = Trial(
        sweep_id=sweep_id,
        objective_values=None if told.values is None else [float(value) for value in told.values],
        metrics=dict(told.metrics),
        step=told.step,
        total_steps=told.total_steps,
        attempts=0,
        started_at=told.started_at,
        ended_at=(told.ended_at or now()) if state.final else None,
        mlflow_run_id=None,
        **columns,
    )
    session.add(trial)
    session.flush()
    session.add(Cost(trial_id=trial.id, **asdict(told.cost)))
    return trial.id


def copy_trial(session: Session, source: Trial, changes: Mapping[str, Any]) -> int:
    """Copy a trial's row with some columns changed, its cost, observations and samples; return the new trial's id."""
    fresh: dict[str, Any] = {"attempts": 0, "mlflow_run_id": None, "replicate": 0, "sampler_state": {}}
    trial = Trial(**{**_columns(source), **fresh, **changes})
    session.add(trial)
    session.flush()
    session.add(Cost(**{**_columns(session.get_one(Cost, source.id)), "trial_id": trial.id}))
    at = now()
    attempt = Attempt(
        trial_id=trial.id,
        token=0,
        host="",
        pid=0,
        ttl_s=0.0,
        lease_expires_at=at,
        started_at=at,
        ended_at=at,
        exit_reason=EXIT,
    )
    session.add(attempt)
    session.flush()
    for observation in session.scalars(select(Observation).where(Observation.trial_id == source.id)):
        owner = {"trial_id": trial.id, "attempt_id": attempt.id}
        copied = Observation(**{**_columns(observation), **owner})
        session.add(copied)
        session.flush()
        names = [column.key for column in inspect(Evaluation).columns if column.key != "observation_id"]
        samples = select(literal(copied.id), *(getattr(Evaluation, name) for name in names))
        samples = samples.where(Evaluation.observation_id == observation.id)
        session.execute(insert(Evaluation).from_select(["observation_id", *names], samples))
    return trial.id


def _columns(row: Base) -> dict[str, Any]:
    """A row's values, without its id."""
    return {column.key: getattr(row, column.key) for column in inspect(type(row)).columns if column.key != "id"}
