"""The search space: which parameters are active, one canonical form per candidate, and enumeration."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sweep_platform.spec import Choice, Domain, SweepSpec
from sweep_platform.spec.expressions import Expression, ExpressionError
from sweep_platform.spec.identity import canonical_json
from sweep_platform.spec.paths import flatten

Impossible = Mapping[str, Mapping[Any, str]]
"""Path -> value -> why no candidate can have it."""


def _without(domain: Domain, impossible: Mapping[Any, str]) -> Domain:
    """The choices that are left; all of them if none would be, so that the refusal is seen."""
    if not isinstance(domain, Choice) or not impossible:
        return domain
    left = tuple(value for value in domain.choice if value not in impossible)
    return domain.model_copy(update={"choice": left}) if left else domain


def params_hash(params: Mapping[str, Any]) -> str:
    """sha256 of canonical params: equal candidates, equal hashes."""
    return hashlib.sha256(canonical_json(dict(params)).encode()).hexdigest()


class Space:
    """The searched parameters of a spec. A parameter whose condition doesn't hold keeps its base value."""

    def __init__(self, spec: SweepSpec, impossible: Impossible = MappingProxyType({})) -> None:
        self.domains = {path: _without(domain, impossible.get(path, {})) for path, domain in spec.search.items()}
        self._when = {
            path: Expression.parse(domain.when) for path, domain in spec.search.items() if domain.when is not None
        }
        self._base = flatten(spec.base)
        self._order = self._dependencies_first()

    def _dependencies_first(self) -> list[str]:
        """The paths, each after those that its condition names; otherwise in the spec's order."""
        order: list[str] = []

        def visit(path: str) -> None:
            if path in order or path not in self.domains:
                return
            for name in sorted(self._when[path].names) if path in self._when else ():
                visit(name)
            order.append(path)

        for path in self.domains:
            visit(path)
        return order

    def walk(self, choose: Callable[[str, Domain], Any]) -> dict[str, Any]:
        """Canonical params, asking `choose` for the value of each active parameter, conditions first."""
        values = dict(self._base)
        params: dict[str, Any] = {}
        for path in self._order:
            if path in self._when and not self._holds(self._when[path], values):
                continue
            domain = self.domains[path]
            params[path] = values[path] = domain.canonical(choose(path, domain))
        return {path: params[path] for path in self.domains if path in params}

    @staticmethod
    def _holds(condition: Expression, values: Mapping[str, Any]) -> bool:
        try:
            return bool(condition.evaluate(values))
        except ExpressionError:
            return False

    @property
    def size(self) -> int | None:
        """Combinations of all values, inactive ones counted too; None where one is continuous."""
        sizes = [domain.size for domain in self.domains.values()]
        return None if None in sizes else math.prod(size or 1 for size in sizes)

    def at(self, point: Mapping[str, float]) -> dict[str, Any]:
        """Params at a point of the unit cube."""
        return self.walk(lambda path, domain: domain.at(point[path]))

    def nth(self, index: int) -> dict[str, Any]:
        """Params of the `index`-th combination of a finite space, as digits in mixed radix."""
        digits: dict[str, int] = {}
        for path, domain in self.domains.items():
            index, digits[path] = divmod(index, domain.size or 1)
        return self.walk(lambda path, domain: domain.nth(digits[path]))

    def shuffled(self, seed: int) -> Iterator[dict[str, Any]]:
        """Every combination of a finite space once, in an order that `seed` gives, not held in memory."""
        size = self.size or 0
        rng = random.Random(seed)
        start = rng.randrange(size)
        stride = rng.randrange(size) | 1
        while math.gcd(stride, size) != 1:
            stride += 1
        for step in range(size):
            yield self.nth((start + step * stride) % size)

    def uniform(self, seed: int) -> dict[str, Any]:
        """Params drawn at random."""
        rng = random.Random(seed)
        return self.at({path: rng.random() for path in self.domains})
