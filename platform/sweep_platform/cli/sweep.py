"""Commands that take a spec: sweep, validate."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from sweep_platform import units
from sweep_platform.cli.app import app, console, examples
from sweep_platform.errors import BadInput, Fault
from sweep_platform.executors.address import check_address
from sweep_platform.home import Home
from sweep_platform.spec import load_spec
from sweep_platform.trainers import describe_config, load_trainer

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord

    from sweep_platform.executors import ExecutorName
    from sweep_platform.spec import SweepSpec

Spec = Annotated[Path, typer.Argument(help="A sweep spec (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Hydra overrides: budget.trials=4 model=tiny", show_default=False)
]


@app.command(
    epilog=examples(
        "platform sweep sweeps/aime.yaml",
        "platform sweep sweeps/aime.yaml budget.trials=4 sampler=random --new",
        "platform sweep sweeps/aime.yaml name=debug --executor inline",
    )
)
def sweep(
    spec: Spec,
    overrides: Overrides = None,
    *,
    executor: Annotated[
        str, typer.Option(help="ray (trials at once) or inline (one by one, in this process).")
    ] = "ray",
    address: Annotated[str | None, typer.Option(help="Ray cluster to join; without it Ray starts here.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new version of the sweep.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live table.")] = False,
) -> None:
    """Search: train the candidates, record them, show the frontier. Run it again to resume."""
    if executor not in ("ray", "inline"):
        raise BadInput([Fault("--executor", repr(executor), "ray or inline", "choose one of these")])
    loaded = _checked(spec, overrides)
    if address is not None:
        check_address(address)
    home = Home.locate()
    with home.ledger(must_exist=False) as ledger:
        record = _run(ledger, loaded, home, cast("ExecutorName", executor), address, new=new, plain=plain)
        _conclude(ledger, record)


class Warnings(logging.Handler):
    """Log lines on stderr, each once: every trial says the same of the data it reads."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line to what is stderr now, which a live table puts above itself."""
        line = self.format(record)
        if line not in self._told:
            self._told.add(line)
            typer.echo(line, err=True)


def _checked(spec: Path, overrides: list[str] | None) -> SweepSpec:
    """Load a spec with every check there is, and say what is worth knowing about it.

    Raises:
        BadInput: with all faults.
    """
    from sweep_platform.search import Feasibility

    loaded = load_spec(spec, overrides or (), preflight=True)
    impossible = Feasibility(loaded, load_trainer(loaded.trainer)).impossible()
    faults = []
    for path, reasons in impossible.items():
        domain = loaded.search[path]
        if domain.when is None and len(reasons) == domain.size:
            need = f"a value that can run ({next(iter(reasons.values()))})"
            faults.append(Fault(f"{spec}:search.{path}", str(domain), need, "add one"))
    if faults:
        raise BadInput(faults)
    for note in loaded.notes:
        typer.echo(f"note: {spec}: {note}", err=True)
    return loaded


def _run(
    ledger: Ledger, spec: SweepSpec, home: Home, executor: ExecutorName, address: str | None, *, new: bool, plain: bool
) -> SweepRecord:
    from sweep_platform.cli.display import display
    from sweep_platform.driver import open_sweep
    from sweep_platform.executors import make_executor
    from sweep_platform.tracking import MLflowObserver, Store

    errors = Console(stderr=True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[Warnings()])
    runner = make_executor(executor, address=address)
    store = Store(home.mlflow_uri, home.artifacts)
    with (
        display(Console(), plain=plain) as shown,
        MLflowObserver(ledger, store, warn=errors.print) as mlflow,
        open_sweep(ledger, spec, home, observers=(shown, mlflow), new=new) as driver,
    ):
        runner.run(driver)
    return driver.sweep


def _conclude(ledger: Ledger, record: SweepRecord) -> None:
    """Show the frontier and the next step.

    Raises:
        NoFeasibleTrial: no trial is complete.
    """
    from sweep_platform.cli.choose import frontier_table, production_file
    from sweep_platform.frontier import Frontier

    found = Frontier.of(record, ledger.trials(record.id))
    console().print(frontier_table(found))
    typer.echo(f"next: platform export {record.name} --knee --out {production_file(record.name)}, or platform ui")


@app.command(
    epilog=examples(
        "platform validate sweeps/aime.yaml", "platform validate sweeps/aime.yaml budget.trials=4 model=tiny"
    )
)
def validate(spec: Spec, overrides: Overrides = None) -> None:
    """Check a spec in full: keys, values, the trainer's config, the data's files. Trains and writes nothing."""
    loaded = _checked(spec, overrides)
    objectives = ", ".join(f"{o.direction} {o.metric}" for o in loaded.objectives)
    trials, parameters = units.count(loaded.budget.trials, "trial"), units.count(len(loaded.search), "parameter")
    typer.echo(f"{spec}: valid; {trials} over {parameters}; {objectives}")
    if told := describe_config(load_trainer(loaded.trainer), loaded.trial_config({})):
        typer.echo(f"base config: {told}")
