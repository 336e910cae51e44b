"""The interface that every trainer of the platform has, and the entry point that names it.

It is a module of its own because importing the submodule `dapo.train` puts that module in the place of any
function `dapo.train` of the package.
"""

from __future__ import annotations

from dapo.batch import Fault, Progress, Report, StepMetrics
from dapo.config import Config

__all__ = ["Config", "Fault", "Progress", "Report", "StepMetrics", "describe", "preflight", "prepare", "train"]


def preflight(config: Config, devices: int = 1) -> list[Fault]:
    """Check what pydantic can't: files, lengths, sizes against `devices`. Reads data, loads no torch."""
    from dapo.preflight import preflight as run

    return run(config, devices)


def describe(config: Config) -> str:
    """What is worth knowing of a valid config before it costs anything, in one line; perhaps empty. Loads no torch."""
    from dapo.expected_rounds import describe_rounds

    return describe_rounds(config)


def prepare(config: Config, progress: Progress | None = None) -> None:
    """Make what the run needs and lacks (the embedded model), once per machine; safe to repeat."""
    from dapo.prepare import prepare as run

    run(config, progress)


def train(config: Config, report: Report) -> None:
    """Train from `config`, or from its latest checkpoint, calling `report` after each update.

    Returns when the run is complete or `report` returned False.

    Raises:
        DapoError: the run can't go on (see `dapo.errors`).
        KeyboardInterrupt: on Ctrl-C, after the update that it came in and a checkpoint; on a second one, at once.
    """
    from dapo.train import train as run

    run(config, report)
