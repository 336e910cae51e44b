"""Order among points with several objectives: non-domination rank, then what a point alone adds to the hypervolume.

Points are tuples of losses: less is better everywhere. Pure functions, exact for any number of objectives; meant for
the tens or hundreds of points that a sweep has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Losses = tuple[float, ...]
MARGIN = 1.1
"""Reference of normalised losses, which run from 0 to 1: the ends of a front count too."""


def dominates(one: Losses, other: Losses) -> bool:
    """Whether `one` is at least as good everywhere and better somewhere."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def ranks(points: Sequence[Losses]) -> list[int]:
    """Non-domination rank of each point: 0 on the front, 1 on the front of the rest, … (NSGA-II, Deb 2002)."""
    left, found, rank = set(range(len(points))), [0] * len(points), 0
    while left:
        front = {i for i in left if not any(dominates(points[j], points[i]) for j in left)}
        for index in front:
            found[index] = rank
        left -= front
        rank += 1
    return found


def front(points: Sequence[Losses]) -> list[int]:
    """Indices of the points that no other dominates, ascending; equal points are all there. Fast for thousands."""
    kept: list[int] = []
    # In lexicographic order a point can be dominated only by one that came before it.
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        if not any(dominates(points[better], points[index]) for better in kept):
            kept.append(index)
    return sorted(kept)


def hypervolume(points: Sequence[Losses], reference: Losses) -> float:
    """Volume that is dominated by the points and lies before the reference.

    By the slices of the last objective; with two objectives that is the staircase. Points beyond the reference in any
    objective count as nothing.
    """
    inside = sorted({p for p in points if all(a < b for a, b in zip(p, reference, strict=True))}, key=lambda p: p[-1])
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - inside[0][0]
    if len(reference) == 2:
        return _staircase(inside, reference)
    volume = 0.0
    for place, point in enumerate(inside):
        depth = (inside[place + 1][-1] if place + 1 < len(inside) else reference[-1]) - point[-1]
        if depth > 0:
            volume += depth * hypervolume([p[:-1] for p in inside[: place + 1]], reference[:-1])
    return volume


def _staircase(inside: Sequence[Losses], reference: Losses) -> float:
    """Area of two objectives; the points ascend in the second."""
    area, edge = 0.0, reference[0]
    for first, second in inside:
        if first < edge:
            area += (edge - first) * (reference[1] - second)
            edge = first
    return area


def contributions(points: Sequence[Losses], reference: Losses) -> list[float]:
    """What the hypervolume would lose without each point."""
    whole = hypervolume(points, reference)
    return [whole - hypervolume([*points[:i], *points[i + 1 :]], reference) for i in range(len(points))]


def normalised(points: Sequence[Losses]) -> list[Losses]:
    """Each objective scaled to 0 … 1 over the points; 0 where all are equal."""
    columns = []
    for column in zip(*points, strict=True):
        low, high = min(column), max(column)
        columns.append([(value - low) / (high - low) if high > low else 0.0 for value in column])
    return list(zip(*columns, strict=True))


def order(points: Sequence[Losses]) -> list[int]:
    """Indices of the points, best first: by rank, then by what each adds to its rank's hypervolume, then by place.

    Raises:
        ValueError: a loss is NaN or infinite.
    """
    if not all(math.isfinite(value) for point in points for value in point):
        raise ValueError("losses that are not finite can't be ordered")
    if not points:
        return []
    scaled, rank = normalised(points), ranks(points)
    reference = (MARGIN,) * len(scaled[0])
    adds = [0.0] * len(points)
    for level in set(rank):
        members = [index for index, value in enumerate(rank) if value == level]
        for index, added in zip(members, contributions([scaled[i] for i in members], reference), strict=True):
            adds[index] = added
    return sorted(range(len(points)), key=lambda index: (rank[index], -adds[index], index))
