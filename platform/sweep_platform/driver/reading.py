"""Reading what a trainer reports: numbers or not, finite or not, and what they amount to at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from run_ledger import CostRecord, TrialState

from sweep_platform.search import Feasibility
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import Cost, StepMetrics

COST_FIELDS = tuple(field.name for field in fields(CostRecord))


@dataclass(frozen=True, slots=True)
class Reading:
    """One step's numbers."""

    metrics: Mapping[str, float]
    """What are numbers, with the costs under `cost/…`."""
    fault: str | None
    """What is wrong with the others; None if nothing is."""


def read(step: StepMetrics) -> Reading:
    """Take a step's metrics and costs as floats, and say which are no finite numbers."""
    metrics: dict[str, float] = {}
    faults = []
    for name, value in {**costs(step.cost), **step.metrics}.items():
        number = as_number(value)
        if isinstance(number, str):
            faults.append(f"{name} is {number}, not a number")
            continue
        metrics[name] = number
        if not math.isfinite(number):
            faults.append(f"{name} is {number}")
    return Reading(metrics, f"step {step.step}: {', '.join(faults)}" if faults else None)


def as_number(value: Any) -> float | str:
    """A metric as a float, or how it reads if it isn't a number."""
    if isinstance(value, str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def costs(cost: Cost) -> dict[str, float]:
    """A step's training costs by metric name."""
    return {
        "cost/flops": cost.flops,
        "cost/tokens": cost.tokens,
        "cost/device_seconds": cost.device_seconds,
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial that ran ends."""

    state: TrialState
    values: tuple[float, ...] | None = None
    reason: str | None = None


def judge(spec: SweepSpec, feasibility: Feasibility, last: StepMetrics | None) -> Verdict:
    """Say how a trial ends whose trainer returned, from its last report."""
    if last is None:
        return Verdict(TrialState.FAILED, reason="the trainer returned without a report")
    if not last.final:
        reason = f"the trainer returned at step {last.step} of {last.total_steps}, without a final report"
        return Verdict(TrialState.FAILED, reason=reason)
    metrics = read(last).metrics
    missing = [objective.metric for objective in spec.objectives if objective.metric not in metrics]
    if missing:
        reason = f"the final report lacks {', '.join(missing)}; it has {', '.join(sorted(metrics))}"
        return Verdict(TrialState.FAILED, reason=reason)
    values = tuple(metrics[objective.metric] for objective in spec.objectives)
    violated = feasibility.violated(metrics)
    if violated is not None:
        return Verdict(TrialState.INFEASIBLE, values, violated)
    return Verdict(TrialState.COMPLETE, values)
