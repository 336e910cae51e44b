"""Commands on the frontier: pareto, pick, and how export names a trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sweep_platform import units
from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.cli.explore import Address, AsJson, short_params
from sweep_platform.errors import BadInput, Fault
from sweep_platform.evidence import judged_frontier
from sweep_platform.frontier import Frontier, Point, indistinguishable
from sweep_platform.home import Home, find_sweep, production_file
from sweep_platform.pick import pick as pick_point

if TYPE_CHECKING:
    from run_ledger import Ledger

Promotable = Annotated[
    str, typer.Argument(help="A sweep's name, or name@version; or, without an option that chooses, an alias.")
]
Trial = Annotated[int | None, typer.Option("--trial", help="A complete trial's number.")]
Knee = Annotated[bool, typer.Option("--knee", help="The point where paying more stops being worth it.")]
MaxCost = Annotated[float | None, typer.Option(help="Most accurate point that costs no more, in the cost's own unit.")]
MinAccuracy = Annotated[float | None, typer.Option(help="Cheapest point at least this accurate, as a fraction.")]


def frontier(ledger: Ledger, address: str) -> Frontier:
    """Compare a sweep's trials.

    Raises:
        BadInput: no such sweep.
        NoFeasibleTrial: no trial is complete.
    """
    return judged_frontier(ledger, find_sweep(ledger, address))


def choose(found: Frontier, *, knee: bool, max_cost: float | None, min_accuracy: float | None) -> Point:
    """The point that the options name.

    Raises:
        BadInput: `--knee` together with a bound, or a bound that no point meets.
    """
    if knee and (max_cost is not None or min_accuracy is not None):
        raise BadInput([Fault("--knee", "--knee and a bound", "one of them", "leave one out")])
    return pick_point(found.front, max_cost=max_cost, min_accuracy=min_accuracy)


@dataclass(frozen=True, slots=True)
class Selected:
    """A trial that the user named, one way or another."""

    address: str
    number: int
    rule: str
    """How, as options."""


def selected(
    ledger: Ledger,
    name: str,
    command: str,
    *,
    trial: int | None,
    knee: bool,
    max_cost: float | None,
    min_accuracy: float | None,
) -> Selected:
    """The trial of the sweep `name` that the options name; without one, the trial that the alias `name` stands for.

    Raises:
        BadInput: no such sweep or alias, options that exclude one another, or a bound that no point meets.
        NoFeasibleTrial: no trial is complete.
    """
    from sweep_platform.production.promotion import current

    bounds = {"--max-cost": max_cost, "--min-accuracy": min_accuracy}
    rule = " ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None) or "--knee" * knee
    need = "one of --trial N, --knee, --max-cost X, --min-accuracy Y"
    if trial is not None and rule:
        raise BadInput([Fault(command, "--trial and another", need, "say which trial")])
    if trial is not None:
        return Selected(find_sweep(ledger, name).address, trial, f"--trial {trial}")
    if rule:
        found = frontier(ledger, name)
        point = choose(found, knee=knee, max_cost=max_cost, min_accuracy=min_accuracy)
        return Selected(found.address, point.number, rule)
    if (held := current(ledger, name)) is None:
        find_sweep(ledger, name)
        raise BadInput([Fault(command, "none", need, "say which trial")])
    return Selected(held.sweep.address, held.trial.number, f"{name}, promotion {held.record.id}")


def frontier_table(found: Frontier) -> Table:
    """The front, cheapest first, as a table."""
    metrics = [goal.metric for goal in found.goals]
    title = f"{found.address} frontier{', confirmed' if found.confirmed else ''}"
    runs = ("runs",) if found.confirmed else ()
    table = Table("trial", *runs, *metrics, "on the front", "can't be told from", "params", title=title)
    table.title_justify = "left"
    for point in found.front:
        cells = shown_values(point)
        alike = ", ".join(str(number) for number in indistinguishable(point, found.front)) or "-"
        knee = " (knee)" if point.number == found.knee.number else ""
        knee += " (imported)" if point.imported else ""
        likely = "-" if point.probability is None else f"{point.probability:.0%}"
        times = (str(point.runs),) if found.confirmed else ()
        table.add_row(f"{point.number}{knee}", *times, *cells, likely, alike, short_params(point.params))
    return table


def unconfirmed_note(found: Frontier) -> str | None:
    """What a confirmed front doesn't show; None if it shows all."""
    if not found.unconfirmed:
        return None
    numbers = ", ".join(map(str, found.unconfirmed))
    return f"on the search's front, but not confirmed and not shown: {numbers}; run platform confirm {found.address}"


def shown_values(point: Point) -> list[str]:
    """A point's values with their errors and units."""
    return [
        units.metric(goal.metric, value, error)
        for goal, value, error in zip(point.goals, point.values, point.errors, strict=True)
    ]


@app.command(
    epilog=examples("platform pareto aime", "platform pareto aime --json", "platform pareto aime --plot front.html")
)
def pareto(
    sweep: Address,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .html (interactive), .png, .svg or .pdf.")] = None,
) -> None:
    """Show the frontier between quality and compute: the trials that no other beats in every objective."""
    with Home.locate().ledger() as ledger:
        found = frontier(ledger, sweep)
        if plot is not None:
            from sweep_platform.plots import evaluation_size, save_frontier

            trials = ledger.trials(find_sweep(ledger, sweep).id)
            knee = next(trial for trial in trials if trial.number == found.knee.number)
            save_frontier(found, plot, evaluation_size(ledger.evaluations(knee.id)))
    if as_json:
        echo_json(found.to_json())
        return
    console().print(frontier_table(found))
    if note := unconfirmed_note(found):
        typer.echo(f"note: {note}")
    if plot is not None:
        typer.echo(f"drawn: {plot}")


@app.command(
    epilog=examples("platform pick aime", "platform pick aime --max-cost 1e12", "platform pick aime --min-accuracy 0.4")
)
def pick(
    sweep: Address,
    knee: Knee = False,
    max_cost: MaxCost = None,
    min_accuracy: MinAccuracy = None,
    as_json: AsJson = False,
) -> None:
    """Choose one trial of the frontier: its knee (the default), or the best within a bound."""
    with Home.locate().ledger() as ledger:
        found = frontier(ledger, sweep)
    point = choose(found, knee=knee, max_cost=max_cost, min_accuracy=min_accuracy)
    if as_json:
        echo_json({"sweep": found.address, "point": found.point_json(point)})
        return
    named = ", ".join(f"{goal.metric} {shown}" for goal, shown in zip(found.goals, shown_values(point), strict=True))
    basis = f"confirmed by {units.count(point.runs, 'run')}" if point.runs else "one run, not confirmed"
    basis += f"; {point.origin}, not trained here" if point.imported and not point.runs else ""
    typer.echo(f"trial {point.number}: {named} ({basis})")
    for path, value in point.params.items():
        typer.echo(f"  {path}: {value}")
    if note := unconfirmed_note(found):
        typer.echo(f"note: {note}")
    if not point.runs:
        typer.echo(f"next: platform confirm {sweep} tells noise from merit, under new seeds")
    typer.echo(f"next: platform export {sweep} --trial {point.number} --out {production_file(found.address)}")
    if point.runs:
        typer.echo(f"next: platform promote {sweep} --trial {point.number} --as production")
