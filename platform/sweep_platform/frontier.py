"""The Pareto frontier of a sweep: which trials nothing beats, which of them noise hides, and the knee.

Pure functions over ledger records; nothing heavy is imported. Only trials that were evaluated at their full
length are candidates, so a trial that was stopped early can never look cheap.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from sweep_platform.errors import AllTrialsFailed, NoFeasibleTrial

if TYPE_CHECKING:
    from run_ledger import SweepRecord, TrialRecord

COMPLETE = "complete"
IMPORTED = "imported:"
"""Begins the origin of a trial that another system trained."""
CURRENCIES = ("flops", "tokens", "device_seconds")


@dataclass(frozen=True, slots=True)
class Goal:
    """One objective: a metric and whether more or less of it is better."""

    metric: str
    direction: Literal["maximize", "minimize"]

    @property
    def maximize(self) -> bool:
        """Whether more is better."""
        return self.direction == "maximize"

    @property
    def is_cost(self) -> bool:
        """Whether it is a cost of training."""
        return self.metric.startswith("cost/")

    def loss(self, value: float) -> float:
        """A value turned so that less is better; costs as logarithms, since they span orders of magnitude."""
        turned = math.log(max(value, sys.float_info.min)) if self.is_cost else value
        return -turned if self.maximize else turned


@dataclass(frozen=True, slots=True)
class Point:
    """One complete trial in the space of the objectives."""

    number: int
    """The trial's number in its sweep."""
    goals: tuple[Goal, ...]
    """The sweep's objectives, in its order."""
    values: tuple[float, ...]
    """One value an objective, in the metric's own unit."""
    errors: tuple[float | None, ...]
    """Standard error of each value; None where it was measured without one."""
    params: Mapping[str, Any]
    """The searched values."""
    origin: str = ""
    """`prior:<name>` or the sampler's name."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """What training it cost, in every currency: flops, tokens, device_seconds."""
    runs: int = 0
    """Confirming runs that the values are means over; 0: the values are those of the search's own run."""
    probability: float | None = None
    """That nothing else dominates it, by the bootstrap; None where nobody asked."""
    covariance: tuple[tuple[float, ...], ...] = ()
    """Of the values, where there are confirming runs."""

    @property
    def imported(self) -> bool:
        """Whether another system trained it."""
        return self.origin.startswith(IMPORTED)

    @property
    def losses(self) -> tuple[float, ...]:
        """The values, turned so that less is better everywhere."""
        return tuple(-v if g.maximize else v for g, v in zip(self.goals, self.values, strict=True))

    def dominates(self, other: Point) -> bool:
        """Whether this point is at least as good everywhere and better somewhere."""
        return _dominates(self.losses, other.losses)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is known of one candidate from all of its runs."""

    number: int
    runs: int
    values: tuple[float, ...]
    """Means over the runs."""
    errors: tuple[float | None, ...]
    """Standard error of each mean, for the run and the choice of problems; None where a single run has none."""
    probability: float
    """That none of the others dominates it."""
    covariance: tuple[tuple[float, ...], ...]
    """Of the means, by the bootstrap: [objectives][objectives]."""


def goals(sweep: SweepRecord) -> tuple[Goal, ...]:
    """The objectives of a sweep, as its spec lists them."""
    return tuple(Goal(o["metric"], o["direction"]) for o in sweep.spec["objectives"])


def outlined(sweep: SweepRecord) -> list[str]:
    """The metrics of a trial that a comparison needs: each objective's, and its standard error."""
    return [name for goal in goals(sweep) for name in (goal.metric, f"{goal.metric}_se")]


def goal_index(goals: Sequence[Goal], direction: str) -> int | None:
    """Index of the first objective with that direction: the one meant by `accuracy` or by `cost`."""
    return next((i for i, goal in enumerate(goals) if goal.direction == direction), None)


def points(sweep: SweepRecord, trials: Iterable[TrialRecord]) -> list[Point]:
    """The candidates that can be compared: complete, at full length, with finite values. By number."""
    wanted = goals(sweep)
    return [
        Point(
            number=trial.number,
            goals=wanted,
            values=trial.values,
            errors=tuple([_error(trial, goal) for goal in wanted]),
            params=trial.params,
            origin=trial.origin,
            cost={name: float(getattr(trial.cost, name)) for name in CURRENCIES},
        )
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.state == COMPLETE
        and trial.replicate == 0
        and trial.step >= trial.total_steps
        and trial.values is not None
        and all(math.isfinite(value) for value in trial.values)
        and (not trial.origin.startswith(IMPORTED) or _is_comparable(trial, wanted))
    ]


def _is_comparable(trial: TrialRecord, wanted: Sequence[Goal]) -> bool:
    """Whether an imported result says what our own say: what it cost, and how sure every other objective is."""
    costs = any(getattr(trial.cost, name) for name in CURRENCIES)
    return costs and all(goal.is_cost or _error(trial, goal) is not None for goal in wanted)


def _error(trial: TrialRecord, goal: Goal) -> float | None:
    error = trial.metrics.get(f"{goal.metric}_se")
    return error if error is not None and math.isfinite(error) and error >= 0 else None


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The points that no other dominates, cheapest first; points with equal values are all kept.

    The order is by the minimised objectives, then the others, then the number: for accuracy against cost both
    rise along the front.
    """
    front: list[tuple[tuple[float, ...], int, Point]] = []
    for losses, number, point in sorted(
        ((point.losses, point.number, point) for point in points), key=lambda found: found[:2]
    ):
        # In lexicographic order a point can be dominated only by one that came before it; most are by the latest.
        if not any(_dominates(better, losses) for better, _, _ in reversed(front)):
            front.append((losses, number, point))
    return sorted((point for _, _, point in front), key=_cheapest_first)


def _dominates(losses: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return losses != others and all(a <= b for a, b in zip(losses, others, strict=True))


def _cheapest_first(point: Point) -> tuple[list[float], tuple[float, ...], int]:
    costs = [v for g, v in zip(point.goals, point.values, strict=True) if not g.maximize]
    return costs, point.losses, point.number


def indistinguishable(point: Point, others: Iterable[Point], z: float = 1.0) -> list[int]:
    """Numbers of the other points that the measurement can't tell from this one.

    Two points can't be told apart if in every objective that carries a standard error they differ by less
    than z times the combined error sqrt(se_a^2 + se_b^2). Costs don't count: two trials of equal accuracy
    differ in cost, and this is about whether more was bought for it.
    """
    return _alike(_gaps(point, others), z)


def _alike(gaps: Mapping[int, float], z: float) -> list[int]:
    return sorted(number for number, gap in gaps.items() if gap < z)


def _gaps(point: Point, others: Iterable[Point]) -> dict[int, float]:
    """By number of another point: in how many combined standard errors it differs, where it differs most."""
    counted = [index for index, goal in enumerate(point.goals) if not goal.is_cost]
    return {other.number: _gap(point, other, counted) for other in others if other.number != point.number}


def _gap(a: Point, b: Point, counted: Iterable[int]) -> float:
    widest = -1.0
    for index in counted:
        error_a, error_b = a.errors[index], b.errors[index]
        if error_a is None and error_b is None:
            continue
        error = math.hypot(error_a or 0.0, error_b or 0.0)
        widest = max(widest, abs(a.values[index] - b.values[index]) / error if error else math.inf)
    return math.inf if widest < 0 else widest  # nothing is known of how sure any value is


def knee(front: Sequence[Point]) -> Point:
    """The point where paying more stops being worth it.

    Each objective is normalised over the front to 0 (worst) … 1 (best), minimised ones on a log scale where
    all their values are positive; the knee has the greatest sum. With two objectives that is the point
    furthest beyond the chord between the front's ends. Equal sums (always so with two points) go to the
    point that is better in the sweep's first objective, then to the lower number.

    Raises:
        NoFeasibleTrial: the front is empty.
    """
    if not front:
        raise NoFeasibleTrial("the frontier is empty: no trial is complete")
    scales = [_scale([p.values[i] for p in front], goal) for i, goal in enumerate(front[0].goals)]
    totals = [sum(column) for column in zip(*scales, strict=True)]
    best = max(totals)
    tied = [p for p, total in zip(front, totals, strict=True) if math.isclose(total, best, abs_tol=1e-9)]
    return min(tied, key=lambda point: (point.losses, point.number))


def _scale(values: list[float], goal: Goal) -> list[float]:
    """Goodness of each value, 0…1 over the front."""
    shown = [math.log(v) for v in values] if not goal.maximize and min(values) > 0 else values
    low, high = min(shown), max(shown)
    if not high > low:
        return [0.0] * len(values)
    # Halves first: the range of two finite floats may overflow.
    risen = [(v / 2 - low / 2) / (high / 2 - low / 2) for v in shown]
    return risen if goal.maximize else [1.0 - r for r in risen]


def with_judgement(point: Point, judged: Judged | None, confirmed: bool) -> Point:
    """The point with what the bootstrap says of it, if it says anything."""
    if judged is None:
        return point
    if not confirmed:
        return replace(point, probability=judged.probability)
    return replace(
        point,
        values=judged.values,
        errors=judged.errors,
        runs=judged.runs,
        probability=judged.probability,
        covariance=judged.covariance,
    )


@dataclass(frozen=True)
class Frontier:
    """A sweep's comparable trials, its front (cheapest first) and the knee."""

    address: str
    """`name@version` of the sweep."""
    goals: tuple[Goal, ...]
    points: tuple[Point, ...]
    """All complete trials, by number."""
    states: Mapping[str, int]
    """How many candidates are in each state, complete ones included."""
    unconfirmed: tuple[int, ...] = ()
    """Candidates on the front by the search's own runs that have no confirming one where others have: found after the
    front was confirmed, or still to be confirmed. They are no part of `front`, and nothing says that they are worse."""

    @classmethod
    def of(
        cls,
        sweep: SweepRecord,
        trials: Sequence[TrialRecord],
        judged: Sequence[Judged] = (),
        *,
        confirmed: bool = False,
    ) -> Frontier:
        """Compare a sweep's candidates.

        Args:
            sweep: the sweep.
            trials: all of its trials.
            judged: what the bootstrap says of the candidates; `evidence.judge_trials`.
            confirmed: whether confirming runs say it: their means are then the values, and the front is made of the
                candidates that have such runs.

        Raises:
            NoFeasibleTrial: none is complete.
            AllTrialsFailed: none is, and all there are failed.
        """
        searched = points(sweep, trials)
        by_number = {item.number: item for item in judged}
        found = [with_judgement(point, by_number.get(point.number), confirmed) for point in searched]
        states = Counter(str(trial.state) for trial in trials if trial.replicate == 0)
        if not found:
            told = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none yet"
            failed = bool(states) and set(states) <= {"failed", "lost"}
            raise (AllTrialsFailed if failed else NoFeasibleTrial)(
                f"{sweep.address}: no complete trial to choose from (trials: {told}); "
                f"let the sweep finish, or see why trials ended with `platform status {sweep.address}`"
            )
        again = {point.number for point in found if point.runs}
        left = [point.number for point in pareto_front(searched) if point.number not in again] if again else []
        return cls(sweep.address, goals(sweep), tuple(found), dict(states), tuple(left))

    @cached_property
    def front(self) -> tuple[Point, ...]:
        """The points that nothing dominates, cheapest first; of the confirmed ones, if there are any."""
        return tuple(pareto_front([point for point in self.points if point.runs] or self.points))

    @property
    def confirmed(self) -> bool:
        """Whether the front's values are those of confirming runs."""
        return any(point.runs for point in self.points)

    @cached_property
    def knee(self) -> Point:
        """The front's knee."""
        return knee(self.front)

    def to_json(self) -> dict[str, Any]:
        """The form of `platform pareto --json`: the front, cheapest first, then what it dominates, by number."""
        front = {point.number for point in self.front}
        return {
            "sweep": self.address,
            "objectives": [{"metric": goal.metric, "direction": goal.direction} for goal in self.goals],
            "knee": self.knee.number,
            "confirmed": self.confirmed,
            "unconfirmed": list(self.unconfirmed),
            "points": [self.point_json(point) for point in self.front],
            "dominated": [self.point_json(point) for point in self.points if point.number not in front],
            "states": dict(self.states),
        }

    def point_json(self, point: Point) -> dict[str, Any]:
        """One trial: values, errors, costs and params, and which points of the front it can't be told from."""
        metrics = [goal.metric for goal in self.goals]
        errors = zip(metrics, point.errors, strict=True)
        gaps = _gaps(point, self.front)
        return {
            "number": point.number,
            "values": dict(zip(metrics, point.values, strict=True)),
            "errors": {metric: error for metric, error in errors if error is not None},
            "cost": dict(point.cost),
            "params": dict(point.params),
            "origin": point.origin,
            "knee": point.number == self.knee.number,
            "confirming_runs": point.runs,
            "probability": point.probability,
            "indistinguishable_from": _alike(gaps, 1.0),
            "indistinguishable_from_2se": _alike(gaps, 2.0),
        }
