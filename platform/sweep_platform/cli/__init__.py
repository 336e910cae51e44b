"""The command `platform`: one file a group of commands, errors and exit codes in one place.

Exit codes: 0 done, 1 a trainer or the platform failed, 2 bad input, 3 finished with no feasible trial,
130 interrupted (state is saved; the same command resumes).
"""

from __future__ import annotations

import sys
from io import TextIOWrapper

from sweep_platform.cli import choose, confirm, data, explore, models, production, report, serve, study, sweep
from sweep_platform.cli.app import app
from sweep_platform.errors import PlatformError

__all__ = [
    "app",
    "choose",
    "confirm",
    "data",
    "explore",
    "main",
    "models",
    "production",
    "report",
    "serve",
    "study",
    "sweep",
]


def main() -> None:
    """Run the command line; the console script `platform`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a `±` is no reason to fail where the terminal knows ASCII only
    try:
        app()
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
