"""Where the compute went: the account of tokens, and the default recipe beside the chosen config."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from run_ledger import ObservationRecord, TrialRecord

from sweep_platform import units
from sweep_platform.driver.spending import ran
from sweep_platform.frontier import Frontier, Goal, Point
from sweep_platform.plots.picture import title
from sweep_platform.report.tables import Table

if TYPE_CHECKING:
    from run_ledger import Ledger

_ACCOUNT = {
    "trained": "trained on",
    "masked": "truncated: in a batch, out of the loss",
    "filtered": "filtered: of groups without a gradient",
    "surplus": "surplus: good groups that no batch had room for",
    "stale": "stale: carried, then too old",
    "pilot": "pilots that were not completed",
    "held": "held for a next update that never came",
    "evaluation": "evaluation",
}
"""Parts of the trainer's account `tokens_total/…`, in words."""
_ALWAYS = ("trained", "masked", "filtered", "surplus", "evaluation")
"""Parts that are told even where they are nothing."""
_TOTAL = "tokens_total/"

Cells = Callable[[TrialRecord, Sequence[ObservationRecord]], "tuple[str, float | None]"]
"""A trial and its steps -> how a figure reads, and the figure."""


def waste(trials: Sequence[TrialRecord], default: TrialRecord | None, best: TrialRecord | None) -> Table | None:
    """Where each token went that was generated; None if the trainer keeps no account."""
    spent = [trial for trial in trials if ran(trial) and any(name.startswith(_TOTAL) for name in trial.metrics)]
    if not spent:
        return None
    sums = {part: sum(trial.metrics.get(_TOTAL + part, 0.0) for trial in spent) for part in _ACCOUNT}
    total = sum(sums.values()) or 1.0
    columns = [("default recipe", default), ("chosen config", best)]
    columns = [(name, trial) for name, trial in columns if trial in spent]
    kept = [part for part in _ACCOUNT if sums[part] or part in _ALWAYS]
    rows = [
        (
            _ACCOUNT[part],
            units.si(sums[part]),
            f"{sums[part] / total:.1%}",
            *(_share(trial, part) for _, trial in columns),
        )
        for part in kept
    ]
    training = total - sums["evaluation"]
    note = (
        f"{units.count(len(spent), 'trial')}, {units.si(total)} tokens in all. Of those generated for training, "
        f"{sums['trained'] / (training or 1.0):.0%} were trained on."
    )
    head = ("tokens", "whole sweep", "share", *(f"{name} (trial {trial.number})" for name, trial in columns if trial))
    return Table(head, tuple(rows), note, tuple(sums[part] / total for part in kept))


def _share(trial: TrialRecord | None, part: str) -> str:
    if trial is None:
        return ""
    total = sum(trial.metrics.get(_TOTAL + name, 0.0) for name in _ACCOUNT) or 1.0
    return f"{trial.metrics.get(_TOTAL + part, 0.0) / total:.1%}"


_ASKED = ("sampling rounds an update", "throughput", "share of the device's peak, generating", "peak memory")
"""Figures that are told to be missing."""


def default_of(trials: Sequence[TrialRecord], found: Frontier) -> Point | None:
    """The default recipe's point: the base config if it is a prior and complete, or else the first complete prior."""
    origins = ["prior:base", *(trial.origin for trial in trials if trial.origin.startswith("prior:"))]
    return next((point for origin in origins for point in found.points if point.origin == origin), None)


def before_and_after(ledger: Ledger, trials: Sequence[TrialRecord], default: Point, best: Point) -> Table:
    """The default recipe beside the chosen config."""
    by_number = {trial.number: trial for trial in trials}
    told = [(by_number[point.number], ledger.observations(by_number[point.number].id)) for point in (default, best)]
    rows = [_objective(goal, default, best, index) for index, goal in enumerate(default.goals)]
    asked = {goal.metric for goal in default.goals}
    for name, cells in _FIGURES.items():
        (left, before), (right, after) = (cells(trial, steps) for trial, steps in told)
        if name in _COSTS and _COSTS[name] in asked:
            continue
        if before is not None or after is not None or name in _ASKED:
            change = _points(before, after) if "%" in left + right else _factor(before, after)
            rows.append((name, left, right, change))
    head = ("", f"default: trial {default.number} ({default.origin})", f"chosen: trial {best.number}", "change")
    same = "The chosen config is the default recipe. " if default.number == best.number else ""
    runs = [
        f"{name} of {units.count(p.runs, 'confirming run')}" for name, p in (("default", default), ("chosen", best))
    ]
    if default.runs != best.runs:
        same += f"Not alike: {runs[0]}, {runs[1]}; what isn't confirmed was run once, on the search's own problems. "
    note = f"{same}Sampling, throughput, shares and cut responses are means over a run's updates, memory is the peak."
    return Table(head, tuple(rows), note)


def _objective(goal: Goal, default: Point, best: Point, index: int) -> tuple[str, ...]:
    cells = []
    for point in (default, best):
        error, value = point.errors[index], point.values[index]
        cells.append(units.metric(goal.metric, value, error))
    before, after = default.values[index], best.values[index]
    if goal.is_cost:
        return (title(goal.metric), *cells, _factor(before, after))
    error = math.hypot(default.errors[index] or 0.0, best.errors[index] or 0.0)
    return (title(goal.metric), *cells, f"{after - before:+.3f}" + (f" ± {error:.3f}" if error else ""))


def _factor(before: float | None, after: float | None) -> str:
    return "" if not before or after is None else f"× {after / before:.3g}"


def _points(before: float | None, after: float | None) -> str:
    return "" if before is None or after is None else f"{round(100 * (after - before), 1) or 0.0:+.1f} points"


def _mean(metric: str, show: Callable[[float], str]) -> Cells:
    """The mean of a metric over the updates that report it."""

    def cells(trial: TrialRecord, steps: Sequence[ObservationRecord]) -> tuple[str, float | None]:
        values = [step.metrics[metric] for step in steps if metric in step.metrics]
        return (show(statistics.fmean(values)), statistics.fmean(values)) if values else ("not recorded", None)

    return cells


def _cost(name: str) -> Cells:
    def cells(trial: TrialRecord, steps: Sequence[ObservationRecord]) -> tuple[str, float | None]:
        value = float(getattr(trial.cost, name))
        return units.metric(f"cost/{name}", value), value

    return cells


def _peak(metric: str) -> Cells:
    def cells(trial: TrialRecord, steps: Sequence[ObservationRecord]) -> tuple[str, float | None]:
        values = [step.metrics[metric] for step in steps if metric in step.metrics]
        return (f"{max(values):.3g} GB", max(values)) if values else ("not recorded", None)

    return cells


def _updates(trial: TrialRecord, steps: Sequence[ObservationRecord]) -> tuple[str, float | None]:
    return str(trial.total_steps), float(trial.total_steps)


_COSTS = {"training compute": "cost/flops", "generated tokens": "cost/tokens", "training time": "cost/device_seconds"}
_FIGURES: dict[str, Cells] = {
    "updates": _updates,
    "sampling rounds an update": _mean("filter/rounds", "{:.2f}".format),
    "groups kept by the filter": _mean("filter/yield", "{:.0%}".format),
    "responses cut at the limit": _mean("response_length/clip_ratio", "{:.1%}".format),
    "throughput": _mean("perf/throughput", lambda value: units.si(value, "tokens/s")),
    "share of the device's peak, generating": _mean("perf/mfu/gen", "{:.1%}".format),
    "share of the device's peak, updating": _mean("perf/mfu/actor", "{:.1%}".format),
    "device idle": _mean("perf/idle_share", "{:.0%}".format),
    "peak memory": _peak("perf/peak_memory_gb"),
    **{name: _cost(metric.removeprefix("cost/")) for name, metric in _COSTS.items()},
}
