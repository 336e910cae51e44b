"""Candidates as points of the unit cube, for models of the objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweep_platform.search.space import Space
from sweep_platform.spec import Choice, Domain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ABSENT = 0.5
"""Where an inactive parameter is put: it says nothing there, and a coordinate of its own says that it is inactive."""


class Encoding:
    """Turns params into coordinates: numbers by their place in the range, names one coordinate each."""

    def __init__(self, space: Space) -> None:
        self._domains = space.domains
        self._ordered = {path: is_ordered(domain) for path, domain in space.domains.items()}

    def __call__(self, candidates: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Encode candidates, [N, coordinates] in [0, 1]."""
        import numpy as np

        rows = [self._row(params) for params in candidates]
        return np.array(rows, dtype=float).reshape(len(candidates), len(self._row({})))

    def _row(self, params: Mapping[str, Any]) -> list[float]:
        return [x for path in self._domains for x in self._coordinates(path, params)]

    def _coordinates(self, path: str, params: Mapping[str, Any]) -> list[float]:
        domain = self._domains[path]
        ordered = self._ordered[path]
        width = 1 if ordered else len(domain.samples())
        active = path in params
        if not active:
            found = [_ABSENT] * width
        elif ordered:
            found = [place_of(domain, params[path])]
        else:
            found = [float(domain.nth(index) == params[path]) for index in range(width)]
        return [*found, float(active)] if domain.when is not None else found


def is_ordered(domain: Domain) -> bool:
    """Whether neighbours in the domain are alike: ranges, and choices of ascending numbers."""
    if not isinstance(domain, Choice):
        return True
    numbers = [value for value in domain.choice if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(domain.choice) and sorted(set(numbers)) == numbers


def place_of(domain: Domain, value: Any) -> float:
    """Where a value lies between the lowest, 0, and the highest, 1."""
    if isinstance(domain, Choice):
        return domain.choice.index(value) / max(1, len(domain.choice) - 1)
    low, high = domain.bounds
    if high == low:
        return 0.0
    if domain.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))
