"""Commands on the frontier: pareto, pick, and how export names a trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sweep_platform import units
from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.cli.explore import Address, AsJson, short_params
from sweep_platform.errors import BadInput, Fault
from sweep_platform.evidence import judge_trials
from sweep_platform.frontier import Frontier, Point, indistinguishable
from sweep_platform.home import Home, find_sweep
from sweep_platform.pick import pick as pick_point

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord

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


def judged_frontier(ledger: Ledger, sweep: SweepRecord) -> Frontier:
    """Compare a sweep's candidates, by their confirming runs where there are any, with what the bootstrap says.

    Raises:
        NoFeasibleTrial: no trial is complete.
    """
    trials = ledger.outline(sweep.id)
    judged, confirmed = judge_trials(ledger, sweep, trials)
    return Frontier.of(sweep, trials, judged, confirmed=confirmed)


def choose(found: Frontier, *, knee: bool, max_cost: float | None, min_accuracy: float | None) -> Point:
    """The point that the options name.

    Raises:
        BadInput: `--knee` together with a bound, or a bound that no point meets.
    """
    if knee and (max_cost is not None or min_accuracy is not None):
        raise BadInput([Fault("--knee", "--knee and a bound", "one of them", "leave one out")])
    return pick_point(found.front, max_cost=max_cost, min_accuracy=min_accuracy)


def production_file(address: str) -> Path:
    """Where a sweep's chosen config goes unless the user says otherwise: not to the spec's own name."""
    return Path("production") / f"{address.partition('@')[0]}.yaml"


def frontier_table(found: Frontier) -> Table:
    """The front, cheapest first, as a table."""
    metrics = [goal.metric for goal in found.goals]
    title = f"{found.address} frontier{', confirmed' if found.confirmed else ''}"
    runs = ("runs",) if found.confirmed else ()
    table = Table("trial", *runs, *metrics, "on the front", "can't be told from", "params", title=title)
    table.title_justify = "left"
    for point in found.front:
        cells = _shown_values(point)
        alike = ", ".join(str(number) for number in indistinguishable(point, found.front)) or "-"
        knee = " (knee)" if point.number == found.knee.number else ""
        likely = "-" if point.probability is None else f"{point.probability:.0%}"
        times = (str(point.runs),) if found.confirmed else ()
        table.add_row(f"{point.number}{knee}", *times, *cells, likely, alike, short_params(point.params))
    return table


def _shown_values(point: Point) -> list[str]:
    return [
        units.metric(goal.metric, value) if error is None else units.accuracy(value, error)
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
    named = ", ".join(f"{goal.metric} {shown}" for goal, shown in zip(found.goals, _shown_values(point), strict=True))
    basis = f"confirmed by {units.count(point.runs, 'run')}" if point.runs else "one run, not confirmed"
    typer.echo(f"trial {point.number}: {named} ({basis})")
    for path, value in point.params.items():
        typer.echo(f"  {path}: {value}")
    if not point.runs:
        typer.echo(f"next: platform confirm {sweep} tells noise from merit, under new seeds")
    typer.echo(f"next: platform export {sweep} --trial {point.number} --out {production_file(found.address)}")
