"""What the pictures are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from run_ledger import SweepRecord, TrialRecord

from sweep_platform import units
from sweep_platform.frontier import COMPLETE, Goal, Point, goals, pareto_front, points
from sweep_platform.plots.insight_pictures import Scale
from sweep_platform.plots.picture import linear_ticks, log_ticks
from sweep_platform.search.encoding import is_ordered, place_of
from sweep_platform.spec import Choice, Domain, SweepSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

INACTIVE = -0.12
"""Place of a parameter that isn't active."""
_MOST_TICKS = 6
_LABEL = 24
"""Characters of a label."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A picture that can't be drawn yet."""

    reason: str
    """What it needs, and what there is."""


@dataclass(frozen=True, slots=True)
class Material:
    """A sweep's candidates that can be compared, each by its own run, and the domains of its parameters."""

    address: str
    goals: tuple[Goal, ...]
    domains: Mapping[str, Domain]
    points: tuple[Point, ...]
    """By number."""
    candidates: tuple[TrialRecord, ...]
    """All, whatever became of them."""
    confirmed: bool = False
    """There are confirming runs, which the pictures leave aside: their front may be another one."""

    @classmethod
    def of(cls, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> Material:
        """Take a sweep as the ledger has it."""
        return cls(
            sweep.address,
            goals(sweep),
            SweepSpec.from_dict(sweep.spec).search,
            tuple(points(sweep, trials)),
            tuple(trial for trial in trials if trial.replicate == 0),
            any(trial.replicate > 0 and trial.state == COMPLETE for trial in trials),
        )

    @property
    def front(self) -> set[int]:
        """Numbers of the candidates on the front."""
        return {point.number for point in pareto_front(self.points)}

    @property
    def whose_front(self) -> str:
        """For captions: what the front is by, where confirming runs may say another."""
        return " by the search's own runs" if self.confirmed else ""

    @property
    def varied(self) -> list[str]:
        """The parameters that had more than one value, in the spec's order; being inactive is one."""
        return [path for path in self.domains if len({str(p.params.get(path)) for p in self.points}) > 1]

    def losses(self) -> NDArray[Any]:
        """Objectives turned so that less is better, costs as logarithms, [points, goals]."""
        import numpy as np

        rows = [[goal.loss(value) for goal, value in zip(self.goals, p.values, strict=True)] for p in self.points]
        return np.array(rows, dtype=float).reshape(len(self.points), len(self.goals))

    def names(self) -> dict[str, str]:
        """The shortest end of each parameter's path that no other parameter shares."""
        return {path: _shortest(path, self.domains) for path in self.domains}


def _shortest(path: str, paths: Mapping[str, Any]) -> str:
    parts = path.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if sum(f".{other}".endswith(f".{end}") for other in paths) == 1:
            return end
    return path


def place(domain: Domain, params: Mapping[str, Any], path: str) -> float:
    """Where a candidate's parameter lies on its scale."""
    if path not in params:
        return INACTIVE
    if isinstance(domain, Choice):
        return domain.choice.index(params[path]) / max(1, len(domain.choice) - 1)
    return place_of(domain, params[path])


def is_number(domain: Domain) -> bool:
    """Whether values lie between values: ranges and choices of ascending numbers, if they have more than one."""
    return is_ordered(domain) and domain.size != 1


def parameter_scale(domain: Domain, title: str) -> Scale:
    """A parameter's scale: its choices, or round numbers in its range."""
    if isinstance(domain, Choice):
        many = len(domain.choice)
        kept = range(0, many, -(-many // _MOST_TICKS)) if is_ordered(domain) else range(many)
        return Scale(title, tuple(i / max(1, many - 1) for i in kept), tuple(_short(domain.choice[i]) for i in kept))
    low, high = domain.bounds
    values: Sequence[float] = log_ticks(low, high) if domain.log else (low, (low + high) / 2, high)
    if isinstance(low, int):
        values = [round(value) for value in values]
    values = sorted({low, *values, high} if len(values) < 3 else set(values))
    return Scale(title, tuple(place_of(domain, value) for value in values), tuple(f"{value:.3g}" for value in values))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def objective_scale(goal: Goal, values: Sequence[float], title: str) -> tuple[Scale, list[float]]:
    """An objective's scale from its lowest value to its highest, and the values' places; costs are logarithmic."""
    low, high = min(values), max(values)
    log = goal.is_cost and low > 0
    ticks = log_ticks(low, high) if log else linear_ticks(low, high)

    def at(value: float) -> float:
        if low == high:
            return 0.5
        return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)

    return Scale(title, tuple(map(at, ticks)), tuple(units.metric(goal.metric, t) for t in ticks)), list(
        map(at, values)
    )
