"""Whether a candidate can run, told before it costs anything, and whether its result is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from sweep_platform.search.space import Impossible, Space
from sweep_platform.spec import Choice, SweepSpec
from sweep_platform.spec.expressions import Expression, ExpressionError
from sweep_platform.spec.metrics import MetricBound
from sweep_platform.spec.paths import flatten
from sweep_platform.trainers import Trainer, estimate_memory

PEAK_MEMORY = "perf/peak_memory_gb"
CONTEXTS = 16
"""Random candidates in which a value must be refused before it counts as impossible."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The constraints of a spec."""

    bounds: tuple[MetricBound, ...]
    """On what a trial measures, its hardware's memory included."""
    expressions: tuple[Expression, ...]
    """On its config."""

    @classmethod
    def of(cls, spec: SweepSpec) -> Limits:
        """Take them from a spec."""
        parsed = [(text, MetricBound.parse(text)) for text in spec.constraints]
        bounds = [bound for _, bound in parsed if bound is not None]
        if spec.hardware.memory_gb is not None:
            bounds.append(MetricBound(PEAK_MEMORY, "<=", spec.hardware.memory_gb))
        return cls(tuple(bounds), tuple(Expression.parse(text) for text, bound in parsed if bound is None))

    def violations(self, config: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, float]:
        """How far each constraint is violated, by its text: more than 0 is.

        Bounds are told by the distance to their limit, and only where their metric was measured; expressions by 1 or
        -1, since they have no distance.

        Args:
            config: the trainer's config of the candidate, nested.
            metrics: what it measured.
        """
        values = flatten(config)
        found = {each.text: -1.0 if _broken(each, values) is None else 1.0 for each in self.expressions}
        for bound in self.bounds:
            if bound.metric in metrics:
                found[f"{bound.metric} {bound.sign} {bound.limit:g}"] = bound.excess(metrics[bound.metric])
        return found


class Feasibility:
    """The limits of one sweep: its constraints, its trainer's checks, its hardware."""

    def __init__(self, spec: SweepSpec, trainer: Trainer) -> None:
        self._spec = spec
        self.trainer = trainer
        self._limits = Limits.of(spec)

    def refuse(self, params: Mapping[str, Any]) -> str | None:
        """Why a candidate can't run, or None. Loads no model and costs nothing."""
        tree = self._spec.trial_config(params)
        try:
            config = self.trainer.Config.model_validate(tree)
        except ValidationError as error:
            return "; ".join(
                f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}"
                for detail in error.errors(include_url=False)
            )
        values = flatten(tree)
        for expression in self._limits.expressions:
            if (reason := _broken(expression, values)) is not None:
                return reason
        faults = self.trainer.preflight(config, self._spec.hardware.devices)
        reasons = [f"{f.key}: got {f.got}; need {f.need}" for f in faults]
        return "; ".join(reasons) or self._too_large(config)

    def _too_large(self, config: BaseModel) -> str | None:
        """Why a candidate won't fit into memory, by the trainer's estimate; the bound on what it then had stays."""
        bounds = [bound for bound in self._limits.bounds if bound.metric == PEAK_MEMORY]
        estimate = estimate_memory(self.trainer, config, self._spec.hardware.devices) if bounds else None
        if estimate is None:
            return None
        broken = [f"{bound.sign} {bound.limit:g}" for bound in bounds if not bound.holds(estimate.total_gb)]
        return f"{PEAK_MEMORY}: got an estimate of {estimate}; need {' and '.join(broken)}" if broken else None

    def impossible(self) -> Impossible:
        """Choices that no candidate can have, and why: the trainer's preflight names them in any context.

        A tensor parallel size above the devices at hand is one. A value is tried in the base config and in
        `CONTEXTS` random candidates, so that one which other parameters make possible is kept.
        """
        space = Space(self._spec)
        contexts: list[dict[str, Any]] = [{}, *(space.uniform(seed) for seed in range(CONTEXTS))]
        found: dict[str, dict[Any, str]] = {}
        for path, domain in space.domains.items():
            for value in domain.choice if isinstance(domain, Choice) else ():
                reasons = [self._named_fault({**context, path: value}, path) for context in contexts]
                if all(reasons):
                    found.setdefault(path, {})[value] = str(reasons[0])
        return found

    def _named_fault(self, params: Mapping[str, Any], path: str) -> str | None:
        """What the trainer's preflight says about one path of a candidate."""
        try:
            config = self.trainer.Config.model_validate(self._spec.trial_config(params))
        except ValidationError:
            return None
        faults = self.trainer.preflight(config, self._spec.hardware.devices)
        return next((f"{f.key}: got {f.got}; need {f.need}" for f in faults if f.key == path), None)

    def violated(self, metrics: Mapping[str, float]) -> str | None:
        """Which bound a trial's metrics break, or None. A metric that is missing or NaN breaks its bound."""
        for bound in self._limits.bounds:
            value = metrics.get(bound.metric, math.nan)
            if not bound.holds(value):
                return f"{bound.metric} = {value:g}, not {bound.sign} {bound.limit:g}"
        return None


def _broken(expression: Expression, values: Mapping[str, Any]) -> str | None:
    """The constraint with the values in it, if it doesn't hold; unknown (a null in it) holds, as in SQL."""
    try:
        result = expression.evaluate(values)
    except ExpressionError as error:
        return f"{expression.text}: {error}"
    if result is None or result:
        return None
    named = ", ".join(f"{name} = {values[name]!r}" for name in sorted(expression.names))
    return f"{expression.text} does not hold: {named}"
