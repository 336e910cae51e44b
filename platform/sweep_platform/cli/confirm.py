"""The command confirm: the front again, under other seeds, before it is trusted."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sweep_platform.cli.app import app, examples
from sweep_platform.cli.explore import Address
from sweep_platform.cli.running import AddressOption, ExecutorOption, Plain, check_here, executor_of, watched
from sweep_platform.cli.sweep import conclude
from sweep_platform.errors import BadInput, Fault
from sweep_platform.home import PATIENCE_S, Home, find_sweep

Runs = Annotated[int | None, typer.Option(min=2, help="Runs of each point before points are compared.")]
MaxRuns = Annotated[int | None, typer.Option(min=2, help="Runs of a point at most, while noise hides which is better.")]


@app.command(epilog=examples("platform confirm aime", "platform confirm aime --runs 3 --max-runs 8"))
def confirm(
    sweep: Address,
    *,
    runs: Runs = None,
    max_runs: MaxRuns = None,
    executor: ExecutorOption = "ray",
    address: AddressOption = None,
    plain: Plain = False,
) -> None:
    """Train the frontier again under new seeds, on held-out problems, until its points are told apart."""
    from sweep_platform.driver import open_confirmation
    from sweep_platform.spec import SweepSpec

    runner, home = executor_of(executor, address), Home.locate()
    with home.ledger(patience_s=PATIENCE_S) as ledger:
        record = find_sweep(ledger, sweep)
        spec = SweepSpec.from_dict(record.spec)
        check_here(spec, address)
        wanted = spec.confirm.model_copy(update=_given(runs=runs, max_runs=max_runs))
        if wanted.max_runs < wanted.runs:
            need = f"at least --runs, which is {wanted.runs}"
            raise BadInput([Fault("--max-runs", str(wanted.max_runs), need, "raise it, or lower --runs")])
        if not wanted.config:
            note = "confirm.config names no held-out data; the runs are evaluated on the problems that the search saw"
            typer.echo(f"note: {note}", err=True)
        spec = spec.model_copy(update={"confirm": wanted})
        with (
            watched(ledger, home, plain=plain, confirming=True) as observers,
            open_confirmation(ledger, record, spec, home, observers=observers) as driver,
        ):
            runner.run(driver)
        conclude(ledger, record)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
