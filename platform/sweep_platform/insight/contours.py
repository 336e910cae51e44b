"""Each objective over the two numbers that matter most for it, smoothed by the search's own Gaussian process."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from sweep_platform.frontier import Goal, Point
from sweep_platform.insight.importance import LEAST, order_for
from sweep_platform.insight.material import (
    Absent,
    Material,
    is_number,
    objective_scale,
    parameter_scale,
    place,
)
from sweep_platform.plots.insight_pictures import ContourPicture, Mark, Scale, SurfacePanel
from sweep_platform.plots.picture import hover, title

SIDE = 33
"""Points of the grid on each side."""


def contours(material: Material) -> ContourPicture | Absent:
    """One surface an objective."""
    numbers = [path for path in material.varied if is_number(material.domains[path])]
    if len(material.points) < LEAST:
        return Absent(f"needs {LEAST} complete trials; there are {len(material.points)}")
    panels = [panel for index in range(len(material.goals)) if (panel := _panel(material, index, numbers)) is not None]
    if not panels:
        need = f"needs {LEAST} complete trials in which the same two numeric parameters are active and vary"
        return Absent(f"{need}; {len(numbers)} such parameters varied")
    return ContourPicture(
        f"{material.address}: each objective over the two numbers that matter most",
        "mean of a Gaussian process over these two alone, so other parameters act as noise; dots: trials, by number",
        tuple(panels),
    )


def _panel(material: Material, goal: int, numbers: list[str]) -> SurfacePanel | None:
    """The surface of one objective; None without two numbers that enough trials have."""
    both = [p for p in (order_for(material, goal, numbers) if len(numbers) > 1 else [])]
    for place_of_second in range(1, len(both)):
        paths = (both[0], both[place_of_second])
        points = [point for point in material.points if all(path in point.params for path in paths)]
        if len(points) >= LEAST and all(len({point.params[path] for point in points}) > 1 for path in paths):
            return _surface(material, material.goals[goal], goal, paths, points)
    return None


def _surface(material: Material, goal: Goal, index: int, paths: tuple[str, str], points: list[Point]) -> SurfacePanel:
    import numpy as np

    from sweep_platform.search.surrogate import Surrogate

    domains, names = [material.domains[path] for path in paths], material.names()
    seen = np.array([[place(d, p.params, path) for d, path in zip(domains, paths, strict=True)] for p in points])
    losses = np.array([goal.loss(point.values[index]) for point in points])
    errors = np.array([point.errors[index] or 0.0 for point in points])
    model = Surrogate.fit(seen, losses, errors)
    fine = np.linspace(0, 1, SIDE)
    mean, _ = model.predict(np.array([(x, y) for y in fine for x in fine]))
    values = [_value(goal, loss) for loss in (losses.min(), losses.max())]
    scale, _ = objective_scale(goal, values, title(goal.metric))
    best, worst = losses.min(), losses.max()
    shades = np.clip((worst - mean) / ((worst - best) or 1.0), 0.0, 1.0).reshape(SIDE, SIDE)
    if not goal.maximize:
        scale = Scale(scale.title, tuple(1 - tick for tick in scale.ticks), scale.labels)
    across, up = (parameter_scale(d, names[path]) for d, path in zip(domains, paths, strict=True))
    return SurfacePanel(
        title(goal.metric), across, up, tuple(map(tuple, shades.tolist())), scale, _marks(points, seen.tolist())
    )


def _marks(points: Sequence[Point], places: Sequence[Sequence[float]]) -> tuple[Mark, ...]:
    """One mark for all trials at one place."""
    there: dict[tuple[float, ...], list[Point]] = defaultdict(list)
    for point, at in zip(points, places, strict=True):
        there[tuple(at)].append(point)
    return tuple(
        Mark(", ".join(str(point.number) for point in found), x, y, "<br><br>".join(map(hover, found)))
        for (x, y), found in there.items()
    )


def _value(goal: Goal, loss: float) -> float:
    turned = -loss if goal.maximize else loss
    return math.exp(turned) if goal.is_cost else float(turned)
