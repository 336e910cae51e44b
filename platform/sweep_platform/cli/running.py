"""What the commands share that run trials: where they run, and who watches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from sweep_platform.errors import BadInput, Fault
from sweep_platform.executors.address import check_address
from sweep_platform.home import Home
from sweep_platform.trainers import load_trainer, machine_faults

if TYPE_CHECKING:
    from run_ledger import Ledger

    from sweep_platform.events import Observer
    from sweep_platform.executors import Executor, ExecutorName
    from sweep_platform.spec import SweepSpec

ExecutorOption = Annotated[
    str, typer.Option("--executor", help="ray (trials at once) or inline (one by one, in this process).")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Ray cluster to join; without it Ray starts here.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live table.")]


def executor_of(name: str, address: str | None) -> Executor:
    """The executor that the options name.

    Raises:
        BadInput: there is no such one, or nothing answers at the address.
    """
    if name not in ("ray", "inline"):
        raise BadInput([Fault("--executor", repr(name), "ray or inline", "choose one of these")])
    if address is not None:
        check_address(address)
    from sweep_platform.executors import make_executor

    return make_executor(cast("ExecutorName", name), address=address)


def check_here(spec: SweepSpec, address: str | None) -> None:
    """Refuse trials that would run on this machine and can't; what a cluster has is seen once it is joined.

    Raises:
        BadInput: it lacks what they need, such as a device.
    """
    if address is not None:
        return
    from sweep_platform.driver.placing import spread

    trainer = load_trainer(spec.trainer)
    config = spread(spec.trial_config({}), spec.hardware.devices, spec.threads)
    do = "correct it, or name a cluster that can by --address"
    if found := machine_faults(trainer, trainer.Config.model_validate(config)):
        raise BadInput([Fault(fault.key, fault.got, fault.need, do) for fault in found])


@contextmanager
def watched(ledger: Ledger, home: Home, *, plain: bool, confirming: bool = False) -> Iterator[tuple[Observer, ...]]:
    """The screen and MLflow, as observers of a driver."""
    from sweep_platform.cli.display import display
    from sweep_platform.tracking import MLflowObserver, Store

    warnings = Warnings()
    warnings.setLevel(logging.WARNING)  # what a trainer says beside goes to its trial's folder
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[warnings])
    store = Store(home.mlflow_uri, home.artifacts)
    with (
        display(Console(), plain=plain, confirming=confirming) as shown,
        MLflowObserver(ledger, store, warn=_warn) as mlflow,
    ):
        yield shown, mlflow


def _warn(line: str) -> None:
    typer.echo(line, err=True)


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
