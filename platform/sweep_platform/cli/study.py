"""Commands on Optuna studies: a sweep as one, and one as a sweep's earlier results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated

import typer

from sweep_platform import units
from sweep_platform.cli.app import app, examples
from sweep_platform.cli.explore import Address
from sweep_platform.cli.sweep import Overrides, Spec, checked
from sweep_platform.home import Home, find_sweep

study = typer.Typer(no_args_is_help=True, help="Optuna studies, as optuna-dashboard shows them.")
app.add_typer(study, name="study")

Storage = Annotated[str, typer.Option("--storage", help="A database's URL, as Optuna has it: sqlite:///studies.db")]


@study.command(
    epilog=examples(
        "platform study export aime --storage sqlite:///studies.db",
        "optuna-dashboard sqlite:///studies.db",
    )
)
def export(
    sweep: Address,
    storage: Storage,
    study_name: Annotated[str | None, typer.Option(help="The study's name; NAME@VERSION by default.")] = None,
) -> None:
    """Write a sweep's trials into an Optuna storage. Again, it replaces what it wrote before."""
    with Home.locate().ledger() as ledger:
        record = find_sweep(ledger, sweep)
        from sweep_platform.studies import export_study

        done = export_study(ledger, record, storage, study_name)
    told = "replaced" if done.replaced else "written"
    typer.echo(f"{units.count(done.trials, 'trial')} of {record.address} {told} as study {done.study!r}")
    typer.echo(f"next: optuna-dashboard {storage}")


@study.command(
    "import",
    epilog=examples(
        "platform study import sweeps/aime.yaml --storage sqlite:///studies.db --study-name earlier",
        "Costs and standard errors: trial.set_user_attr('cost', {'flops': 1e12}) and",
        "trial.set_user_attr('standard_errors', {'val/accuracy': 0.02}).",
        "Without them a trial informs the search and can't be on the front.",
    ),
)
def import_(
    spec: Spec,
    overrides: Overrides = None,
    *,
    storage: Storage,
    study_name: Annotated[str, typer.Option(help="The study.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out trials with params that the spec's space doesn't have.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new version of the sweep.")] = False,
) -> None:
    """Take an Optuna study's trials as earlier results of a sweep: they inform its search and cost it nothing."""
    from sweep_platform.driver import open_roster
    from sweep_platform.studies import import_study
    from sweep_platform.studies.importing import read_study

    loaded = checked(spec, overrides)
    found, left = read_study(loaded, storage, study_name, partial=partial)
    with Home.locate().ledger(must_exist=False) as ledger, open_roster(ledger, loaded, new=new) as roster:
        done = import_study(roster, loaded, study_name, found, left)
        address = roster.sweep.address
    typer.echo(f"{address} has {_told(done.taken) or 'nothing more'} of study {study_name!r}")
    if done.left_out:
        typer.echo(f"left out: {_told(done.left_out)}")
    typer.echo(f"next: {shlex.join(['platform', 'sweep', str(spec), *(overrides or ())])}")


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())
