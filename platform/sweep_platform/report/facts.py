"""What the report says of a sweep in words and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from run_ledger import SweepRecord, TrialRecord

from sweep_platform import units
from sweep_platform.driver.spending import budget_left, ran
from sweep_platform.frontier import Frontier, Point, indistinguishable
from sweep_platform.home import production_file
from sweep_platform.plots.picture import title
from sweep_platform.report.tables import Table, pairs
from sweep_platform.spec import SweepSpec

if TYPE_CHECKING:
    from run_ledger import Ledger

_SHOWN_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """The config that the report is about in the end."""

    point: Point
    why: str
    commands: tuple[str, ...]


def states(trials: Sequence[TrialRecord]) -> str:
    """How many candidates are in which state."""
    counts = Counter(trial.state.value for trial in trials if trial.replicate == 0)
    confirming = sum(trial.replicate > 0 for trial in trials)
    told = [f"{count} {state}" for state, count in sorted(counts.items())]
    return ", ".join(told + ([f"{confirming} confirming"] if confirming else [])) or "none yet"


def objectives(spec: SweepSpec) -> Table:
    """What was asked for."""
    return Table(
        ("objective", "metric"), tuple((f"{o.direction} {title(o.metric)}", o.metric) for o in spec.objectives)
    )


def space(spec: SweepSpec) -> Table:
    """What was searched."""
    rows = tuple(
        (path, f"{domain}{', log scale' if getattr(domain, 'log', False) else ''}", domain.when or "")
        for path, domain in spec.search.items()
    )
    return Table(("parameter", "values", "searched only when"), rows)


def setting(sweep: SweepRecord, spec: SweepSpec, versions: Mapping[str, str]) -> Table:
    """What it ran with."""
    hardware = spec.hardware
    memory = "" if hardware.memory_gb is None else f", {hardware.memory_gb:g} GB each"
    machine = f"{hardware.name}: {units.count(hardware.devices, 'device')} a trial{memory}"
    started = sweep.created_at.strftime("%Y-%m-%d %H:%M UTC")
    return pairs(
        [
            ("trainer", spec.trainer),
            ("model", _named(spec.model, "path", "revision")),
            ("training problems", _named(spec.data, "train")),
            ("validation problems", _named(spec.data, "val")),
            ("hardware", machine),
            ("trials at once", str(spec.budget.concurrency)),
            ("sampler", spec.sampler.name),
            (
                "early stopping",
                "" if spec.pruning is None else f"at {', '.join(f'{r:.0%}' for r in spec.pruning.rungs)}",
            ),
            ("constraints", "; ".join(spec.constraints)),
            ("priors", ", ".join(prior.name for prior in spec.priors)),
            ("seed", str(spec.seed)),
            ("started", started),
            ("commit", sweep.commit or "not known (not run from a git checkout)"),
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ]
    )


def _named(section: Mapping[str, Any], *keys: str) -> str:
    return ", ".join(str(section[key]) for key in keys if section.get(key) is not None)


def budget(ledger: Ledger, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> Table:
    """Each limit: how much of it is used, and what is left."""
    left = budget_left(ledger, sweep, trials)
    limits = spec.budget.model_dump()
    rows = tuple(
        (
            key.replace("_", " "),
            units.amount(key, limits[key]),
            units.amount(key, limits[key] - rest),
            units.amount(key, rest),
        )
        for key, rest in left.items()
    )
    bars = tuple(min(1.0, max(0.0, 1 - rest / limits[key])) for key, rest in left.items())
    spent = {name: sum(float(getattr(t.cost, name)) for t in trials if ran(t)) for name in ("flops", "device_seconds")}
    note = (
        f"Spent by all trials, confirming ones included: {units.metric('cost/flops', spent['flops'])}, "
        f"{units.metric('cost/device_seconds', spent['device_seconds'])} of training."
    )
    return Table(("limit", "set to", "used", "left"), rows, note, bars)


def front(found: Frontier) -> Table:
    """The points of the front, cheapest first."""
    metrics = [title(goal.metric) for goal in found.goals]
    rows = []
    for point in found.front:
        alike = ", ".join(map(str, indistinguishable(point, found.front))) or "none"
        likely = "" if point.probability is None else f"{point.probability:.0%}"
        name = f"{point.number} (knee)" if point.number == found.knee.number else str(point.number)
        runs = str(point.runs) if point.runs else "1, not confirmed"
        rows.append((name, *shown(point), runs, likely, alike, point.origin))
    head = ("trial", *metrics, "runs", "on the front", "can't be told from", "proposed by")
    note = (
        "Values are means of confirming runs under other seeds."
        if found.confirmed
        else f"Values are of one run each: platform confirm {found.address} tells noise from merit."
    )
    if found.unconfirmed:
        numbers = ", ".join(map(str, found.unconfirmed))
        note += f" Also on the front by the search's own runs, and not confirmed yet: {numbers}."
    return Table(head, tuple(rows), f"{note} ± is one standard error.")


def values(found: Frontier, names: Mapping[str, str]) -> Table | None:
    """The parameters of the front's points, those that all have in common told once; None of a single point."""
    if len(found.front) == 1:
        return None
    same = {path for path in names if len({str(point.params.get(path, "not active")) for point in found.front}) == 1}
    apart = [path for path in names if path not in same]
    rows = [
        (str(point.number), *(_value(point.params[path]) if path in point.params else "-" for path in apart))
        for point in found.front
    ]
    common = ", ".join(
        f"{path} {_value(found.front[0].params[path])}" for path in names if path in same & set(found.front[0].params)
    )
    return Table(
        ("trial", *(names[path] for path in apart)), tuple(rows), f"The same in all: {common}." if common else ""
    )


def shown(point: Point) -> list[str]:
    """A point's values with their errors."""
    return [
        units.metric(goal.metric, value, error)
        for goal, value, error in zip(point.goals, point.values, point.errors, strict=True)
    ]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def chosen(ledger: Ledger, sweep: SweepRecord, found: Frontier, trials: Sequence[TrialRecord]) -> Choice:
    """The trial that is promoted, or else the knee; and how to run it."""
    numbers = {trial.id: trial.number for trial in trials}
    by_number = {point.number: point for point in found.points}
    current = {record.alias: record for record in ledger.promotions()}
    for record in sorted(current.values(), key=lambda record: record.id, reverse=True):
        if record.sweep_id == sweep.id and numbers[record.trial_id] in by_number:
            mark = "" if record.confirmed else ", unconfirmed"
            why = f"promoted as {record.alias}{mark} by {record.who} on {record.at:%Y-%m-%d} ({record.why})"
            return Choice(by_number[numbers[record.trial_id]], why, (f"platform train {record.alias}",))
    point, file = found.knee, production_file(sweep.name)
    confirm = () if point.runs else (f"platform confirm {sweep.address}",)
    export = f"platform export {sweep.address} --trial {point.number} --out {file}"
    why = "the knee of the frontier, where paying more stops being worth it (nothing was promoted yet)"
    return Choice(point, why, (*confirm, export, f"platform train {file}"))


def params(point: Point) -> Table:
    """A point's searched values."""
    return pairs([(path, _value(value)) for path, value in point.params.items()])


def unfinished(trials: Sequence[TrialRecord]) -> Table:
    """Candidates without a result that counts, and why."""
    rows = tuple(
        (str(trial.number), trial.state.value, f"{trial.step}/{trial.total_steps}", trial.reason or "")
        for trial in trials
        if trial.replicate == 0 and trial.state != "complete"
    )
    return Table(("trial", "state", "step", "why"), rows)


def samples(ledger: Ledger, trial: TrialRecord) -> Table:
    """A few answers of a trial's last evaluation, right and wrong ones."""
    told = sorted(ledger.evaluations(trial.id), key=lambda s: (s.data_source, s.problem_id, s.sample_index))
    kept = [s for right in (True, False) for s in [s for s in told if s.correct is right][:_SHOWN_SAMPLES]]
    rows = tuple(("right" if s.correct else "wrong", s.prompt, s.response, s.answer, s.ground_truth) for s in kept)
    return Table(("graded", "prompt", "response", "answer", "truth"), rows)
