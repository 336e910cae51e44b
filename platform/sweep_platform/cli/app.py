"""The root command, and what Ctrl-C means."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from sweep_platform.errors import PlatformError

INTERRUPTED = 130


class _Group(TyperGroup):
    """Turns an interrupt into exit code 130, which Typer would report as 1, and errors into their own code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; state is saved, the same command goes on from here\n")
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
    return Console() if sys.stdout.isatty() else Console(width=160)


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(version("sweep-platform"))
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 3 no feasible trial, 130 interrupted (run again to resume)."
)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the DAPO configuration with the best accuracy for its compute.

    Example: platform sweep sweeps/aime.yaml, then platform pareto aime, then platform export aime --knee --out best.yaml
    """
