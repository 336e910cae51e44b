"""New candidates for a model to weigh: at random, near the best trials, and ever nearer to what is most promising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sweep_platform.search.encoding import is_ordered, place_of
from sweep_platform.search.space import Space
from sweep_platform.spec import Domain
from sweep_platform.spec.identity import canonical_json

_FEW = 32
"""Values of a domain that are walked through one by one; more are moved among as on a line."""
_MOVED = 0.5
"""Chance that a number moves in one step."""


class Candidates:
    """Draws candidates of a space, none twice and none that was seen."""

    def __init__(self, space: Space, seen: Sequence[Mapping[str, Any]], rng: np.random.Generator) -> None:
        self._space = space
        self._rng = rng
        self._seen = {_key(params) for params in seen}

    def at_random(self, count: int) -> list[dict[str, Any]]:
        """So many draws from the whole space."""
        return self._new([self._space.uniform(int(self._rng.integers(2**63))) for _ in range(count)])

    def crossed(self, parents: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
        """Draws that differ from one of the parents in a parameter or two."""
        return self._new([self._crossed(parents[int(self._rng.integers(len(parents)))]) for _ in range(count)])

    def near(self, parents: Sequence[Mapping[str, Any]], width: float, count: int) -> list[dict[str, Any]]:
        """For each parent, so many candidates whose numbers lie within about `width` of its own, in the unit cube."""
        return self._new([self._near(parent, width) for parent in parents for _ in range(count)])

    def _new(self, drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for params in drawn:
            if (key := _key(params)) not in self._seen:
                self._seen.add(key)
                found.append(params)
        return found

    def _crossed(self, parent: Mapping[str, Any]) -> dict[str, Any]:
        domains, rng = self._space.domains, self._rng
        changed = {path for path in domains if rng.random() < 1.5 / len(domains)}
        return self._space.walk(
            lambda path, domain: parent[path] if path in parent and path not in changed else domain.at(rng.random())
        )

    def _near(self, parent: Mapping[str, Any], width: float) -> dict[str, Any]:
        rng = self._rng

        def choose(path: str, domain: Domain) -> Any:
            if path not in parent:
                return domain.at(rng.random())
            if not is_ordered(domain):
                return domain.at(rng.random()) if rng.random() < 1 / (2 * len(self._space.domains)) else parent[path]
            return self._moved(domain, parent[path], width) if rng.random() < _MOVED else parent[path]

        return self._space.walk(choose)

    def _moved(self, domain: Domain, value: Any, width: float) -> Any:
        """A value of an ordered domain nearby."""
        here = place_of(domain, value)
        if domain.size is not None and domain.size <= _FEW:
            index = next(index for index in range(domain.size) if domain.nth(index) == domain.canonical(value))
            return domain.nth(min(max(index + (1 if self._rng.random() < 0.5 else -1), 0), domain.size - 1))
        return domain.at(float(np.clip(here + width * self._rng.standard_normal(), 0.0, 1.0 - 1e-9)))


def _key(params: Mapping[str, Any]) -> str:
    return canonical_json(dict(params))
