"""Commands on MLflow: its page, and its repair."""

from __future__ import annotations

from typing import Annotated

import typer

from sweep_platform.cli.app import app, examples
from sweep_platform.cli.explore import Address
from sweep_platform.home import Home

mlflow = typer.Typer(no_args_is_help=True, help="MLflow's view of the sweeps.")
app.add_typer(mlflow, name="mlflow")


@app.command(epilog=examples("platform ui", "platform ui --port 5001"))
def ui(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port on 127.0.0.1; 5000 or a free one by default.")
    ] = None,
) -> None:
    """Open MLflow's page on the sweeps: trials side by side, metrics by step, artifacts. Ctrl-C stops it."""
    from sweep_platform.tracking import Store, serve

    home = Home.locate()
    typer.echo("MLflow is starting, which takes some seconds", err=True)
    serve(Store(home.mlflow_uri, home.artifacts), port, announce=lambda url: typer.echo(f"MLflow: {url}"))


@mlflow.command(epilog=examples("platform mlflow sync aime"))
def sync(sweep: Address) -> None:
    """Write into MLflow what it lacks of a sweep, from the ledger; everything, if its database is gone."""
    from sweep_platform.tracking import Store
    from sweep_platform.tracking import sync as write

    home = Home.locate()
    with home.ledger() as ledger:
        count = write(ledger, sweep, Store(home.mlflow_uri, home.artifacts), home)
    typer.echo(f"{count} trials of {sweep} are in MLflow; see them with platform ui")
