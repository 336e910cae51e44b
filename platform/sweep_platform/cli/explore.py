"""Reading the ledger: the command status, and what other commands show of trials."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sweep_platform import units
from sweep_platform.cli.app import app, console
from sweep_platform.errors import BadInput, Fault
from sweep_platform.home import Home

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord, TrialRecord

Address = Annotated[str, typer.Argument(help="A sweep's name, or name@version for an earlier version.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def find_sweep(ledger: Ledger, address: str) -> SweepRecord:
    """Return the sweep that `address` names.

    Raises:
        BadInput: there is none.
    """
    sweep = ledger.find_sweep(address)
    if sweep is None:
        known = sorted({record.name for record in ledger.sweeps()})
        raise BadInput([Fault("sweep", repr(address), f"one of {known}", "check the name, or run that sweep first")])
    return sweep


def _trial_json(trial: TrialRecord, metrics: list[str]) -> dict[str, Any]:
    values = None if trial.values is None else dict(zip(metrics, trial.values, strict=True))
    return {
        "number": trial.number,
        "state": trial.state.value,
        "params": dict(trial.params),
        "values": values,
        "errors": {m: trial.metrics[f"{m}_se"] for m in metrics if f"{m}_se" in trial.metrics},
        "cost": {
            "flops": trial.cost.flops,
            "tokens": trial.cost.tokens,
            "device_seconds": trial.cost.device_seconds,
        },
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


@app.command(epilog="Examples: platform status | platform status aime | platform status aime --json")
def status(
    sweep: Annotated[str | None, typer.Argument(help="A sweep; without one, all are listed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the sweeps, or one sweep's trials with their state, values and cost."""
    with Home.locate().ledger() as ledger:
        if sweep is None:
            _list_sweeps(ledger, as_json)
            return
        record = find_sweep(ledger, sweep)
        trials = ledger.trials(record.id)
        metrics = objective_metrics(record)
        if as_json:
            rows = [_trial_json(trial, metrics) for trial in trials]
            typer.echo(json.dumps({"sweep": record.address, "trials": rows}))
            return
        console().print(trial_table(record, trials))


def _list_sweeps(ledger: Ledger, as_json: bool) -> None:
    rows = []
    for record in ledger.sweeps():
        trials = ledger.trials(record.id)
        states = [trial.state.value for trial in trials]
        rows.append({"sweep": record.address, "trials": {state: states.count(state) for state in sorted(set(states))}})
    if as_json:
        typer.echo(json.dumps({"sweeps": rows}))
        return
    table = Table("sweep", "trials")
    for row in rows:
        table.add_row(str(row["sweep"]), ", ".join(f"{n} {state}" for state, n in dict(row["trials"]).items()))
    console().print(table)


def trial_table(sweep: SweepRecord, trials: list[TrialRecord]) -> Table:
    """All trials with state, objective values and the searched parameters."""
    metrics = objective_metrics(sweep)
    table = Table("trial", "state", "step", *metrics, "params / reason", title=sweep.address, title_justify="left")
    for trial in trials:
        values = trial.values or tuple(trial.metrics.get(name) for name in metrics)
        cells = []
        for name, value in zip(metrics, values, strict=True):
            error = trial.metrics.get(f"{name}_se")
            if value is None:
                cells.append("-")
            else:
                cells.append(units.metric(name, value) if error is None else units.accuracy(value, error))
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
