"""The root command, what Ctrl-C means, and how commands write."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from sweep_platform.errors import PlatformError

INTERRUPTED = 130
STOPPED = "interrupted; state is saved, the same command goes on from here\n"
_ORDER = (
    *("sweep", "validate", "estimate", "status", "pareto", "confirm", "pick", "report", "doctor", "diff"),
    *("export", "promote", "promotions", "rollback", "train"),
    *("warmstart", "model", "data", "ui", "mlflow", "study"),
)
_PIPE_WIDTH = 1000
"""Columns where there is no terminal: rows are never folded, so that each is one line."""


class _Group(TyperGroup):
    """Turns an interrupt into exit code 130, which Typer would report as 1, and errors into their own code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order in which one needs them."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write(STOPPED)
            ctx.exit(INTERRUPTED)
        except PlatformError as error:
            sys.stderr.write(f"{error}\n")
            ctx.exit(error.exit_code)


app = typer.Typer(
    name="platform",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def console() -> Console:
    """Standard output; tables are cut to the terminal's width only where there is a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def examples(*commands: str) -> str:
    """Commands for the end of a help text, one a line."""
    return "\n\n".join(["Examples:", *commands])


def progress_lines() -> Callable[[str, int, int], None]:
    """What trainers call during long preparation: a line for each tenth that is done."""
    shown: tuple[str, int] | None = None

    def progress(what: str, done: int, total: int) -> None:
        nonlocal shown
        if (now := (what, 10 * done // max(total, 1))) != shown:
            shown = now
            typer.echo(f"{what}: {10 * now[1]}%")

    return progress


def echo_json(tree: Any) -> None:
    """Write a tree as JSON on one line; numbers that JSON doesn't have (NaN, infinity) as null."""
    try:
        text = json.dumps(tree, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(tree), allow_nan=False)
    typer.echo(text)


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(version("sweep-platform"))
        raise typer.Exit


@app.callback(
    epilog=examples(
        "platform sweep sweeps/aime.yaml",
        "platform pareto aime",
        "platform export aime --knee --out best.yaml",
        "platform train best.yaml",
        "Exit codes: 0 done, 1 failed, 2 bad input, 3 no feasible trial, 130 interrupted (run again to resume).",
    )
)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the DAPO configuration with the best accuracy for its compute."""
