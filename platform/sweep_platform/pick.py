"""Choosing one trial of the frontier: the knee, or the best within a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweep_platform import units
from sweep_platform.errors import BadInput, Fault, NoFeasibleTrial
from sweep_platform.frontier import Point, goal_index, knee

_OPTION = {"minimize": "--max-cost", "maximize": "--min-accuracy"}


def pick(front: Sequence[Point], *, max_cost: float | None = None, min_accuracy: float | None = None) -> Point:
    """Choose a point of the front.

    `cost` is the sweep's first minimised objective, `accuracy` its first maximised one, both in the metric's
    own unit. With neither bound it is the knee; with `max_cost` the most accurate point that costs no more;
    with `min_accuracy` the cheapest point that reaches it; with both the most accurate one within both.

    Raises:
        NoFeasibleTrial: the front is empty.
        BadInput: no point is within a bound (the message names the nearest), or there is no such objective.
    """
    if not front:
        raise NoFeasibleTrial("the frontier is empty: no trial is complete")
    left = list(front)
    if max_cost is not None:
        left = _within(left, "minimize", max_cost)
    if min_accuracy is not None:
        left = _within(left, "maximize", min_accuracy)
    if max_cost is None and min_accuracy is None:
        return knee(left)
    wanted = goal_index(front[0].goals, "minimize" if max_cost is None else "maximize")
    return min(left, key=lambda p: (() if wanted is None else (p.losses[wanted],), p.losses, p.number))


def _within(points: Sequence[Point], direction: str, bound: float) -> list[Point]:
    """The points within a bound on the first objective of that direction; at least one, or BadInput."""
    option = _OPTION[direction]
    if math.isnan(bound):
        raise BadInput([Fault(option, "nan", "a number", "change the bound")])
    goals = points[0].goals
    index = goal_index(goals, direction)
    if index is None:
        known = ", ".join(f"{goal.direction} {goal.metric}" for goal in goals)
        need = f"a sweep with an objective to {direction} (this one has: {known})"
        raise BadInput([Fault(option, f"{bound:g}", need, f"leave {option} out")])
    limit = -bound if goals[index].maximize else bound
    kept = [point for point in points if point.losses[index] <= limit]
    if kept:
        return kept
    nearest = min(points, key=lambda point: (point.losses[index], point.losses, point.number))
    value, metric = nearest.values[index], goals[index].metric
    need = (
        f"{'at most' if goals[index].maximize else 'at least'} {value!r}: the nearest on the frontier is "
        f"trial {nearest.number} with {metric} {units.metric(metric, value)}"
    )
    raise BadInput([Fault(option, f"{bound:g}", need, f"change the bound, or take trial {nearest.number}")])
