"""Commands on public data sets: which there are, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sweep_platform.cli.app import app, console, examples, progress_lines
from sweep_platform.errors import BadInput, Fault, PlatformError
from sweep_platform.trainers import load_data_trainer

data = typer.Typer(no_args_is_help=True, help="Public data sets, by name.")
app.add_typer(data, name="data")

Trainer = Annotated[str, typer.Option("--trainer", help="Whose data sets.")]


@data.command("list", epilog=examples("platform data list"))
def list_sets(trainer: Trainer = "dapo") -> None:
    """Show the data sets that can be fetched: source, licence, size, and where they lie if they are fetched."""
    table = Table("fetch", "data.train, data.val", "licence", "download", "source", "fetched")
    for item in load_data_trainer(trainer).list_data():
        where = "no" if item.folder is None else str(item.folder)
        table.add_row(item.name, ", ".join(item.parts), item.licence, item.size, item.source, where)
    console().print(table)


@data.command(epilog=examples("platform data fetch dapo-math-17k", "platform data fetch gsm8k --from downloads/gsm8k"))
def fetch(
    name: Annotated[str, typer.Argument(help="A set; platform data list names them.")],
    given: Annotated[
        Path | None, typer.Option("--from", help="The set's file, or a folder with its files, downloaded elsewhere.")
    ] = None,
    trainer: Trainer = "dapo",
) -> None:
    """Download a data set, or take it from files, and keep it under its name. Once per machine."""
    source = load_data_trainer(trainer)
    try:
        found = source.fetch_data(name, given=given, progress=progress_lines())
    except Exception as error:
        if faults := getattr(error, "faults", None):
            raise BadInput([Fault(f.key, f.got, f.need, f.do) for f in faults]) from error
        raise PlatformError(" ".join(str(error).split()) or type(error).__name__) from error
    typer.echo(f"{name}: {found.revision}, in {found.folder}")
    for part, counts in found.parts.items():
        repeated = f"{counts.rows - counts.problems} of {counts.rows} rows repeat one and are left out"
        conflicts = f", {counts.conflicts} of them with another answer" if counts.conflicts else ""
        typer.echo(f"{part}: {counts.problems} problems; {repeated}{conflicts}")
    names = list(found.parts)
    typer.echo(f"next: data.train={names[0]} or data.val={names[-1]}")
