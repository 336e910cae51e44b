"""The frontier over time: hypervolume against compute spent by the sweep, and the front at several moments."""

from __future__ import annotations

from collections.abc import Sequence

from run_ledger import TrialRecord

from sweep_platform import units
from sweep_platform.driver.spending import ran
from sweep_platform.frontier import CURRENCIES, Point, pareto_front
from sweep_platform.hypervolume import MARGIN, hypervolume, normalised
from sweep_platform.insight.material import Absent, Material
from sweep_platform.plots.insight_pictures import HistoryPicture, Moment
from sweep_platform.plots.picture import Axis, axes_of, axis_of, hover, is_trade_off, linear_ticks, step_line, title

MOMENTS = (0.25, 0.5, 1.0)
"""Shares of the complete trials after which the front is shown."""


def history(material: Material) -> HistoryPicture | Absent:
    """How the frontier grew, trial by trial in the order in which they ended."""
    if len(material.points) < 2:
        return Absent(f"needs two complete trials; there are {len(material.points)}")
    spent = _spent(material)
    points = sorted(material.points, key=lambda point: (spent[point.number], point.number))
    volumes = _grown(material, points)
    dots = [(spent[point.number], volume) for point, volume in zip(points, volumes, strict=True)]
    traded = is_trade_off(material.goals)
    across, up = axes_of(material.goals) if traded else (None, 0)
    front_x = None if across is None else axis_of(material.goals[across], [point.values[across] for point in points])
    currency = _currency(material)
    told = [f"{hover(p)}<br>after {units.metric(currency, x)}" for p, (x, _) in zip(points, dots, strict=True)]
    what, whose = _measure(material), material.whose_front
    return HistoryPicture(
        f"{material.address}: the frontier over time",
        f"{what} against all that the sweep's trials had cost, stopped and failed ones included"
        + (f"; below, the front{whose} after a quarter, half and all of the complete trials" if traded else ""),
        x=_linear(f"{title(currency)} spent by the sweep", currency, max(x for x, _ in dots)),
        y=Axis(what, "", False, (), ()),
        curve=step_line(_tops(dots), max(spent.values())),
        dots=tuple((x, y, text) for (x, y), text in zip(dots, told, strict=True)),
        front_x=front_x,
        front_y=axis_of(material.goals[up], []) if traded else None,
        moments=() if across is None else _moments(points, across, up),
    )


def _measure(material: Material) -> str:
    if len(material.goals) == 1:
        return f"best {title(material.goals[0].metric)} so far"
    return "hypervolume, as a share of the last"


def _currency(material: Material) -> str:
    """The cost that the sweep is about; FLOPs if it is about none."""
    return next(
        (goal.metric for goal in material.goals if goal.metric in {f"cost/{c}" for c in CURRENCIES}), "cost/flops"
    )


def _spent(material: Material) -> dict[int, float]:
    """What the sweep had spent when each candidate ended; results of other sweeps cost it nothing."""
    field, total, found = _currency(material).removeprefix("cost/"), 0.0, {}
    for trial in sorted(material.candidates, key=_ended):
        total += float(getattr(trial.cost, field)) if ran(trial) else 0.0
        found[trial.number] = total
    return found


def _ended(trial: TrialRecord) -> tuple[bool, bool, float, int]:
    """Results of other sweeps were there first; open trials come last."""
    at = trial.ended_at.timestamp() if trial.ended_at is not None else 0.0
    return not trial.state.final, ran(trial), at, trial.number


def _grown(material: Material, points: Sequence[Point]) -> list[float]:
    """The hypervolume after each point as a share of the last; with one goal, the best value."""
    if len(material.goals) == 1:
        pick = max if material.goals[0].maximize else min
        return [pick(point.values[0] for point in points[: count + 1]) for count in range(len(points))]
    goals = material.goals
    losses = [tuple(g.loss(v) for g, v in zip(goals, point.values, strict=True)) for point in points]
    scaled, reference = normalised(losses), (MARGIN,) * len(goals)
    grown = [hypervolume(scaled[: count + 1], reference) for count in range(len(points))]
    return [volume / grown[-1] for volume in grown]


def _tops(dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The last dot of those at one place."""
    return list(dict(dots).items())


def _linear(name: str, metric: str, high: float) -> Axis:
    ticks = linear_ticks(0.0, high)
    return Axis(name, metric, False, ticks, tuple(units.metric(metric, tick) for tick in ticks))


def _moments(points: Sequence[Point], across: int, up: int) -> tuple[Moment, ...]:
    counts = sorted({max(1, round(share * len(points))) for share in MOMENTS})
    right, found = max(point.values[across] for point in points), []
    for count in counts:
        dots = [(point.values[across], point.values[up]) for point in pareto_front(points[:count])]
        found.append(Moment(f"after {units.count(count, 'trial')}", step_line(dots, right), tuple(dots)))
    return tuple(found)
