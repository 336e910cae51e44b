"""What the frontier picture shows, before anything draws it: the same for page and image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweep_platform import units
from sweep_platform.frontier import Frontier, Goal, Point, goal_index

if TYPE_CHECKING:
    from run_ledger import EvaluationRecord

# Colour-blind safe (Okabe and Ito).
FRONT_COLOUR = "#0072b2"
KNEE_COLOUR = "#d55e00"
OTHER_COLOUR = "#9aa0a6"
SHADES = ("#3b3f8f", "#8a3f9e", "#c8487f", "#e8754f", "#f3a738")
"""From the worst to the best: told apart by lightness too, and on light and dark ground."""

_ELLIPSE = 48
"""Corners of an ellipse."""
TICK_GAP = 0.12
"""Least distance of two ticks, as a share of the axis: the width of a label."""
_TICK_FACTORS = (
    (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
    (1.0, 1.5, 2.0, 3.0, 5.0),
    (1.0, 2.0, 5.0),
    (1.0,),
)
_TITLES = {
    "val/accuracy": "validation accuracy",
    "cost/flops": "training compute",
    "cost/tokens": "generated tokens",
    "cost/device_seconds": "training time",
}


@dataclass(frozen=True, slots=True)
class Dot:
    """One trial in the picture."""

    number: int
    x: float
    y: float
    error: float | None
    """One standard error of y."""
    on_front: bool
    knee: bool
    hover: str
    """Lines about the trial, joined by `<br>`."""
    ellipse: tuple[tuple[float, float], ...] = ()
    """Corners of the region of one standard error in any direction, where confirming runs tell it; closed."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the picture."""

    title: str
    metric: str
    log: bool
    ticks: tuple[float, ...]
    """Where to put ticks; empty leaves them to the renderer."""
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrontierPicture:
    """Everything the frontier picture shows."""

    title: str
    caption: str
    x: Axis
    y: Axis
    dots: tuple[Dot, ...]
    steps: tuple[tuple[float, float], ...]
    """Corners of the front's step line: the best y that x buys. Empty unless there are two objectives."""

    @classmethod
    def of(cls, frontier: Frontier, evaluated: tuple[int, int] | None = None) -> FrontierPicture:
        """Prepare the picture of a frontier.

        Args:
            frontier: The sweep's frontier.
            evaluated: Problems and samples a problem of each evaluation, for the caption.
        """
        x_at, y_at = axes_of(frontier.goals)
        on_front = {point.number for point in frontier.front}
        dots = tuple(
            Dot(
                number=point.number,
                x=float(point.number) if x_at is None else point.values[x_at],
                y=point.values[y_at],
                error=point.errors[y_at],
                on_front=point.number in on_front,
                knee=point.number == frontier.knee.number,
                hover=hover(point),
                ellipse=() if x_at is None else _ellipse(point, x_at, y_at),
            )
            for point in frontier.points
        )
        front = [(dot.x, dot.y) for dot in dots if dot.on_front]
        y_title = title(frontier.goals[y_at].metric)
        against = "trial" if x_at is None else title(frontier.goals[x_at].metric)
        return cls(
            title=f"{frontier.address}: {y_title} against {against}",
            caption=_caption(frontier, evaluated, dots),
            x=Axis("trial", "", False, (), ())
            if x_at is None
            else axis_of(frontier.goals[x_at], [dot.x for dot in dots]),
            y=Axis(y_title, frontier.goals[y_at].metric, False, (), ()),
            dots=dots,
            steps=step_line(front, max(dot.x for dot in dots)) if is_trade_off(frontier.goals) else (),
        )


def evaluation_size(evaluations: Sequence[EvaluationRecord]) -> tuple[int, int] | None:
    """Problems and samples a problem in one evaluation; None without samples."""
    if not evaluations:
        return None
    problems = {(sample.data_source, sample.problem_id) for sample in evaluations}
    return len(problems), round(len(evaluations) / len(problems))


def is_trade_off(goals: Sequence[Goal]) -> bool:
    """Whether the goals are two, one for more and one for less: then there is a front line."""
    return len(goals) == 2 and {goal.direction for goal in goals} == {"maximize", "minimize"}


def axes_of(goals: Sequence[Goal]) -> tuple[int | None, int]:
    """Indices of the objectives shown: cost across, accuracy up; a lone one stands over the trial number."""
    if len(goals) == 1:
        return None, 0
    across, up = goal_index(goals, "minimize"), goal_index(goals, "maximize")
    return (0, 1) if across is None or up is None else (across, up)


def title(metric: str) -> str:
    """A metric in words."""
    return _TITLES.get(metric, metric)


def axis_of(goal: Goal, values: Sequence[float]) -> Axis:
    """The axis of an objective; logarithmic for what is minimised, where all its values are positive."""
    if goal.maximize or not values or min(values) <= 0:
        return Axis(title(goal.metric), goal.metric, False, (), ())
    ticks = log_ticks(min(values), max(values))
    return Axis(title(goal.metric), goal.metric, True, ticks, tuple(units.metric(goal.metric, tick) for tick in ticks))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round numbers in low … high for a log axis: two to seven of them over any range.

    The densest that fit of tenths of a decade, fifths, 1-2-5, decades, and every so many decades, less those with no
    room for a label; over a range too narrow to hold two, its ends.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = range(first, last + 1)
    for factors in _TICK_FACTORS:
        ticks = tuple(tick for e in decades for f in factors if low <= (tick := f * 10.0**e) <= high)
        if len(ticks) < 2:
            return tuple(dict.fromkeys((low, high)))
        if len(ticks) < 8:
            return _apart(ticks, TICK_GAP * math.log(high / low))
    return tuple(10.0**e for e in decades[:: math.ceil(len(decades) / 7)] if low <= 10.0**e <= high)


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round numbers in low … high for a linear axis: a handful of them, or the one number that there is."""
    if not high > low:
        return (low,)
    step = 10.0 ** math.floor(math.log10((high - low) / 6))
    while high / step - low / step > 6:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{place * step:.12g}") for place in range(first, last + 1)) or (low, high)


def _apart(ticks: tuple[float, ...], gap: float) -> tuple[float, ...]:
    """Leave out ticks whose labels would run into the one before; two stay in any case."""
    kept = [ticks[0]]
    for tick in ticks[1:]:
        if math.log(tick / kept[-1]) >= gap:
            kept.append(tick)
    return tuple(kept) if len(kept) > 1 else (ticks[0], ticks[-1])


def step_line(dots: Iterable[tuple[float, float]], right: float) -> tuple[tuple[float, float], ...]:
    """Corners of a line that is flat from each dot (x, y) to the next one, and on to `right`.

    Of a front, it is the line under which nothing measured lies.
    """
    corners: list[tuple[float, float]] = []
    for x, y in sorted(dots):
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    if corners and corners[-1][0] < right:
        corners.append((right, corners[-1][1]))
    return tuple(corners)


def _ellipse(point: Point, x_at: int, y_at: int) -> tuple[tuple[float, float], ...]:
    """The ellipse of one standard error around a confirmed point; relative in x where costs are on a log axis."""
    if not point.covariance:
        return ()
    var_x, cov, var_y = point.covariance[x_at][x_at], point.covariance[x_at][y_at], point.covariance[y_at][y_at]
    x, y, wide, high = point.values[x_at], point.values[y_at], math.sqrt(var_x), math.sqrt(var_y)
    tilt = cov / (wide * high) if wide and high else 0.0
    corners = []
    for step in range(_ELLIPSE + 1):
        turn = 2 * math.pi * step / _ELLIPSE
        across, up = math.cos(turn), tilt * math.cos(turn) + math.sqrt(max(0.0, 1 - tilt**2)) * math.sin(turn)
        there = x * math.exp(wide / x * across) if point.goals[x_at].is_cost and x > 0 else x + wide * across
        corners.append((there, y + high * up))
    return tuple(corners)


def hover(point: Point) -> str:
    """Lines about a point, for plotly."""
    lines = [f"trial {point.number} ({point.origin})" if point.origin else f"trial {point.number}"]
    for goal, value, error in zip(point.goals, point.values, point.errors, strict=True):
        shown = units.metric(goal.metric, value, error)
        lines.append(f"{goal.metric}: {shown}")
    if point.probability is not None:
        lines.append(f"on the front with probability {point.probability:.2f}")
    for path, value in point.params.items():
        lines.append(f"{path} = {value:.4g}" if isinstance(value, float) else f"{path} = {value}")
    return "<br>".join(map(safe, lines))


def safe(text: str) -> str:
    """A text in which plotly finds no tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _caption(frontier: Frontier, evaluated: tuple[int, int] | None, dots: Sequence[Dot]) -> str:
    parts = [units.count(len(frontier.points), "complete trial")]
    if frontier.confirmed:
        least = min(point.runs for point in frontier.points if point.runs)
        parts.append(f"the front is of confirming runs, {least} or more of each point")
    if frontier.unconfirmed:
        parts.append(f"not confirmed yet: {', '.join(map(str, frontier.unconfirmed))}")
    others = {state: n for state, n in frontier.states.items() if state != "complete"}
    if others:
        told = ", ".join(f"{n} {state}" for state, n in sorted(others.items()))
        parts.append(f"not shown: {told}")
    if evaluated is not None:
        problems, samples = evaluated
        parts.append(f"each evaluated on {units.count(problems, 'problem')} × {units.count(samples, 'sample')}")
    if any(dot.ellipse for dot in dots):
        parts.append("ellipses and error bars: 1 standard error")
    elif any(dot.error is not None for dot in dots):
        parts.append("error bars: ±1 standard error")
    return "; ".join(parts)
