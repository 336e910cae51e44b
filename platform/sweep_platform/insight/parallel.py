"""Parallel coordinates: how values go together in good and bad trials."""

from __future__ import annotations

from sweep_platform.insight.material import (
    INACTIVE,
    Absent,
    Material,
    objective_scale,
    parameter_scale,
    place,
)
from sweep_platform.plots.insight_pictures import Line, ParallelPicture, Scale
from sweep_platform.plots.picture import hover, title


def parallel(material: Material) -> ParallelPicture | Absent:
    """Every complete trial across the parameters that varied and the objectives."""
    if len(material.points) < 2:
        return Absent(f"needs two complete trials; there are {len(material.points)}")
    names, points, front = material.names(), material.points, material.front
    scales, columns = [], []
    for path in material.varied:
        scale = parameter_scale(material.domains[path], names[path])
        if any(path not in point.params for point in points):
            scale = Scale(scale.title, (INACTIVE, *scale.ticks), ("not active", *scale.labels))
        scales.append(scale)
        columns.append([place(material.domains[path], point.params, path) for point in points])
    for index, goal in enumerate(material.goals):
        scale, places = objective_scale(goal, [point.values[index] for point in points], title(goal.metric))
        scales.append(scale)
        columns.append(places)
    first, shade = material.goals[0], columns[-len(material.goals)]
    bar = scales[-len(material.goals)]
    if not first.maximize:
        shade = [1 - value for value in shade]
        bar = Scale(bar.title, tuple(1 - tick for tick in bar.ticks), bar.labels)
    lines = tuple(
        Line(point.number, tuple(places), shade[index], point.number in front, hover(point))
        for index, (point, places) in enumerate(zip(points, zip(*columns, strict=True), strict=True))
    )
    thick = f"on the frontier{material.whose_front}"
    caption = f"{len(points)} complete trials; thick: {thick}; left out: parameters with one value only"
    return ParallelPicture(f"{material.address}: all values, trial by trial", caption, tuple(scales), lines, bar)
