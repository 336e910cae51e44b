"""Reading the ledger: the command status, and what other commands show of trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sweep_platform import units
from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.frontier import CURRENCIES, outlined
from sweep_platform.home import Home, find_sweep

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord, TrialRecord

Address = Annotated[str, typer.Argument(help="A sweep's name, or name@version for an earlier version.")]
ROWS = 200
"""Trials that a table shows unless one asks for all: nobody reads more, and drawing 10,000 takes 10 s."""
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def _trial_json(trial: TrialRecord, metrics: list[str]) -> dict[str, Any]:
    values = None if trial.values is None else dict(zip(metrics, trial.values, strict=True))
    return {
        "number": trial.number,
        "state": trial.state.value,
        "params": dict(trial.params),
        "values": values,
        "errors": {m: trial.metrics[f"{m}_se"] for m in metrics if f"{m}_se" in trial.metrics},
        "cost": {name: getattr(trial.cost, name) for name in CURRENCIES},
        "step": trial.step,
        "total_steps": trial.total_steps,
        "origin": trial.origin,
        "replicate": trial.replicate,
        "attempts": trial.attempts,
        "reason": trial.reason,
    }


def objective_metrics(sweep: SweepRecord) -> list[str]:
    """Names of the sweep's objectives, in order."""
    return [objective["metric"] for objective in sweep.spec["objectives"]]


@app.command(epilog=examples("platform status", "platform status aime", "platform status aime@1 --json"))
def status(
    sweep: Annotated[str | None, typer.Argument(help="A sweep; without one, all are listed.")] = None,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help=f"All trials of a sweep with more than {ROWS}.")] = False,
) -> None:
    """Show the sweeps, or one sweep's trials with their state, values and cost."""
    from sweep_platform.driver.spending import budget_left

    with Home.locate().ledger() as ledger:
        if sweep is None:
            _list_sweeps(ledger, as_json)
            return
        record = find_sweep(ledger, sweep)
        metrics = objective_metrics(record)
        trials = ledger.outline(record.id, outlined(record))
        left = budget_left(ledger, record, trials)
        if as_json:
            rows = [_trial_json(trial, metrics) for trial in trials]
            promotions = _promotions(ledger, record, trials)
            echo_json({"sweep": record.address, "trials": rows, "budget_left": left, "promotions": promotions})
            return
        console().print(trial_table(record, trials if every else trials[-ROWS:]))
        if len(trials) > ROWS and not every:
            states = Counter(trial.state.value for trial in trials)
            told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            typer.echo(f"the last {ROWS} of {len(trials)} trials ({told}); --all or --json shows the others")
        typer.echo(f"left of the budget: {', '.join(units.amount(key, value) for key, value in left.items())}")
        for chosen in _promotions(ledger, record, trials):
            if chosen["current"]:
                mark = "" if chosen["confirmed"] else ", UNCONFIRMED"
                typer.echo(f"{chosen['alias']}: trial {chosen['trial']} by {chosen['who']} ({chosen['why']}){mark}")


def _promotions(ledger: Ledger, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """The promotions of the sweep's trials, oldest first; `platform promotions --json` has their evidence."""
    numbers = {trial.id: trial.number for trial in trials}
    history = ledger.promotions()
    current = {chosen.alias: chosen.id for chosen in history}
    return [
        {
            "trial": numbers[chosen.trial_id],
            "alias": chosen.alias,
            "who": chosen.who,
            "why": chosen.why,
            "at": chosen.at.isoformat(timespec="seconds"),
            "confirmed": chosen.confirmed,
            "current": current[chosen.alias] == chosen.id,
        }
        for chosen in history
        if chosen.sweep_id == sweep.id
    ]


def _list_sweeps(ledger: Ledger, as_json: bool) -> None:
    counts = {
        record.address: Counter(trial.state.value for trial in ledger.outline(record.id)) for record in ledger.sweeps()
    }
    if as_json:
        echo_json({"sweeps": [{"sweep": address, "trials": dict(states)} for address, states in counts.items()]})
        return
    table = Table("sweep", "trials")
    for address, states in counts.items():
        table.add_row(address, ", ".join(f"{n} {state}" for state, n in sorted(states.items())) or "none yet")
    console().print(table)


def trial_table(sweep: SweepRecord, trials: list[TrialRecord]) -> Table:
    """All trials with state, objective values and the searched parameters."""
    metrics = objective_metrics(sweep)
    table = Table("trial", "state", "step", *metrics, "params / reason", title=sweep.address, title_justify="left")
    for trial in trials:
        values: Sequence[float | None] = trial.values or [trial.metrics.get(name) for name in metrics]
        cells = []
        for name, value in zip(metrics, values, strict=True):
            error = trial.metrics.get(f"{name}_se")
            if value is None:
                cells.append("-")
            else:
                cells.append(units.metric(name, value, error))
        detail = trial.reason or short_params(trial.params)
        table.add_row(str(trial.number), trial.state.value, f"{trial.step}/{trial.total_steps}", *cells, detail)
    return table


def short_params(params: Any) -> str:
    """The params by the last part of their path: `metric=acc threshold=0.2`."""
    parts = []
    for path, value in params.items():
        shown = f"{value:.3g}" if isinstance(value, float) else str(value)
        parts.append(f"{path.rsplit('.', 1)[-1]}={shown}")
    return " ".join(parts)
