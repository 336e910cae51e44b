"""Recording one step: its observation, its samples, and what the trial has come to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from run_ledger.leases import now
from run_ledger.models import Attempt, Cost, Evaluation, Observation, Trial
from run_ledger.records import CostLike, EvaluationRecord, SampleLike
from run_ledger.rows import COST_FIELDS

SAMPLE_FIELDS = tuple(field.name for field in fields(EvaluationRecord) if field.name != "step")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A step's numbers as a database can hold them: JSON and comparisons know neither NaN nor infinity."""

    metrics: dict[str, float]
    cost: dict[str, float | int]
    non_finite: list[str]
    """Names of what was left out."""

    @classmethod
    def of(cls, metrics: Mapping[str, float], cost: CostLike) -> Numbers:
        """Keep what is finite; a cost field that isn't counts as 0."""
        told = {name: _number(value) for name, value in metrics.items()}
        costs = {name: _number(getattr(cost, name)) for name in COST_FIELDS}
        return cls(
            {name: value for name, value in told.items() if value is not None},
            {name: int(value or 0) if name.endswith("tokens") else float(value or 0) for name, value in costs.items()},
            [name for name, value in told.items() if value is None]
            + [f"cost/{name}" for name, value in costs.items() if value is None],
        )


def record(
    session: Session,
    attempt: Attempt,
    trial: Trial,
    *,
    step: int,
    total_steps: int,
    numbers: Numbers,
    samples: Sequence[SampleLike],
    final: bool,
) -> None:
    """Record a step in place of what is there of it, and of later steps of earlier attempts.

    An attempt that goes on from a checkpoint tells some steps again: what an earlier attempt told of them and of
    those after them belongs to a branch of the training that was given up.
    """
    of_trial = Observation.trial_id == trial.id
    new = step > trial.step  # almost always: then nothing is there to be replaced, and it is the last step
    if not new:
        abandoned = and_(Observation.step > step, Observation.attempt_id != attempt.id)
        session.execute(delete(Observation).where(of_trial, or_(Observation.step == step, abandoned)))
    values = {
        "trial_id": trial.id,
        "attempt_id": attempt.id,
        "step": step,
        "metrics": numbers.metrics,
        "non_finite": numbers.non_finite,
        "final": final,
        "at": now(),
    }
    observation = session.scalars(insert(Observation).returning(Observation.id), [values | numbers.cost]).one()
    if samples:
        session.execute(insert(Evaluation), _sample_rows(observation, samples))
    if new or step == session.scalar(select(func.max(Observation.step)).where(of_trial)):
        trial.step, trial.total_steps, trial.metrics = step, total_steps, numbers.metrics
    total = session.get_one(Cost, trial.id)
    for name, value in numbers.cost.items():
        setattr(total, name, max(getattr(total, name), value))


def _number(value: Any) -> float | None:
    """A finite float; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _sample_rows(observation_id: int, samples: Sequence[SampleLike]) -> list[dict[str, Any]]:
    return [
        {
            "observation_id": observation_id,
            "position": position,
            **{name: getattr(sample, name) for name in SAMPLE_FIELDS},
        }
        for position, sample in enumerate(samples)
    ]
