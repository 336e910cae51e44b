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

if TYPE_CHECKING:
    from run_ledger import Ledger

    from sweep_platform.events import Observer
    from sweep_platform.executors import Executor, ExecutorName

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


@contextmanager
def watched(ledger: Ledger, home: Home, *, plain: bool) -> Iterator[tuple[Observer, ...]]:
    """The screen and MLflow, as observers of a driver."""
    from sweep_platform.cli.display import display
    from sweep_platform.tracking import MLflowObserver, Store

    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[Warnings()])
    store = Store(home.mlflow_uri, home.artifacts)
    with (
        display(Console(), plain=plain) as shown,
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
