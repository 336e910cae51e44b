"""Commands that take a spec: sweep, validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweep_platform import units
from sweep_platform.cli.app import app, console, examples
from sweep_platform.cli.running import AddressOption, ExecutorOption, Plain, check_here, executor_of, watched
from sweep_platform.errors import BadInput, Fault
from sweep_platform.home import PATIENCE_S, Home, find_sweep, production_file
from sweep_platform.spec import load_spec
from sweep_platform.trainers import describe_config, estimate_memory, load_trainer

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord

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
    executor: ExecutorOption = "ray",
    address: AddressOption = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new version of the sweep.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try trials again that failed under an earlier run.")
    ] = False,
    source: Annotated[
        list[str] | None, typer.Option("--from", help="Another sweep whose results count where the config is the same.")
    ] = None,
    plain: Plain = False,
) -> None:
    """Search: train the candidates, record them, show the frontier. Run it again to resume."""
    from sweep_platform.driver import open_sweep

    loaded, runner = checked(spec, overrides), executor_of(executor, address)
    check_here(loaded, address)
    home = Home.locate()
    with home.ledger(must_exist=False, patience_s=PATIENCE_S) as ledger:
        sources = [find_sweep(ledger, address) for address in source or ()]
        with (
            watched(ledger, home, plain=plain) as observers,
            open_sweep(
                ledger,
                loaded,
                home,
                observers=observers,
                new=new,
                retry_failed=retry_failed,
                sources=sources,
            ) as driver,
        ):
            runner.run(driver)
        conclude(ledger, driver.sweep)


def checked(spec: Path, overrides: list[str] | None) -> SweepSpec:
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


def conclude(ledger: Ledger, record: SweepRecord) -> None:
    """Show the frontier and the next step.

    Raises:
        NoFeasibleTrial: no trial is complete.
    """
    from sweep_platform.cli.choose import frontier_table, unconfirmed_note
    from sweep_platform.evidence import judged_frontier

    found = judged_frontier(ledger, record)
    console().print(frontier_table(found))
    if note := unconfirmed_note(found):
        typer.echo(f"note: {note}")
    confirm = "" if found.confirmed and not found.unconfirmed else f"platform confirm {record.name}, or "
    promote = f"platform promote {record.name} --knee --as production, or " if found.confirmed else ""
    export = f"platform export {record.name} --knee --out {production_file(record.name)}"
    typer.echo(f"next: {confirm}{promote}{export}, or platform ui")


@app.command(
    epilog=examples(
        "platform validate sweeps/aime.yaml", "platform validate sweeps/aime.yaml budget.trials=4 model=tiny"
    )
)
def validate(spec: Spec, overrides: Overrides = None) -> None:
    """Check a spec in full: keys, values, the trainer's config, the data's files. Trains and writes nothing."""
    loaded = checked(spec, overrides)
    objectives = ", ".join(f"{o.direction} {o.metric}" for o in loaded.objectives)
    trials, parameters = units.count(loaded.budget.trials, "trial"), units.count(len(loaded.search), "parameter")
    typer.echo(f"{spec}: valid; {trials} over {parameters}; {objectives}")
    trainer, base = load_trainer(loaded.trainer), loaded.trial_config({})
    try:
        check_here(loaded, None)
    except BadInput as error:
        for fault in error.faults:
            typer.echo(f"note: not on this machine: {fault}", err=True)
    if told := describe_config(trainer, base):
        typer.echo(f"base config: {told}")
    devices = loaded.hardware.devices
    if (memory := estimate_memory(trainer, trainer.Config.model_validate(base), devices)) is not None:
        limit = loaded.hardware.memory_gb
        over = "" if limit is None or memory.total_gb <= limit else f", more than hardware.memory_gb, {limit:g}"
        where = "one device" if devices == 1 else f"each of {devices} devices"
        typer.echo(f"base config: about {memory} on {where}{over}")
