"""The command `platform`: one file a group of commands, errors and exit codes in one place.

Exit codes: 0 done, 1 the trainer (in every trial of a sweep) or the platform failed, 2 bad input, 3 finished with no
feasible trial, 130 interrupted (state is saved; the same command resumes).
"""

from __future__ import annotations

import gc
import sys
from io import TextIOWrapper

from sweep_platform.cli import (
    choose,
    confirm,
    data,
    diff,
    doctor,
    estimate,
    explore,
    models,
    production,
    promotion,
    report,
    serve,
    study,
    sweep,
)
from sweep_platform.cli.app import INTERRUPTED, STOPPED, app
from sweep_platform.errors import PlatformError

__all__ = [
    "app",
    "choose",
    "confirm",
    "data",
    "diff",
    "doctor",
    "estimate",
    "explore",
    "main",
    "models",
    "production",
    "promotion",
    "report",
    "serve",
    "study",
    "sweep",
]


def main() -> None:
    """Run the command line; the console script `platform`."""
    gc.set_threshold(50_000, 50, 50)  # a sweep of 10,000 trials is no garbage: a tenth of a command's time
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a `±` is no reason to fail where the terminal knows ASCII only
    try:
        app()
    except KeyboardInterrupt:  # before a command began
        sys.stderr.write(STOPPED)
        sys.exit(INTERRUPTED)
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
