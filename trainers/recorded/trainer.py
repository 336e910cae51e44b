"""The interface that every trainer of the platform has; `dapo.trainer` documents it."""

from __future__ import annotations

from dapo.trainer import Config, Fault, Progress, Report, StepMetrics

__all__ = ["Config", "Fault", "Progress", "Report", "StepMetrics", "preflight", "prepare", "train"]


def preflight(config: Config, devices: int = 1) -> list[Fault]:
    """Check all that `dapo` checks, and that the table can tell what the config does. Loads no numpy."""
    from dapo.trainer import preflight as checks

    from recorded.limits import unrecorded

    faults = checks(config, devices)
    named = {fault.key for fault in faults}
    return [*faults, *(fault for fault in unrecorded(config) if fault.key not in named)]


def prepare(config: Config, progress: Progress | None = None) -> None:
    """Nothing is needed: the table comes with the package."""


def train(config: Config, report: Report) -> None:
    """Report what the run would have shown, from its latest checkpoint on, calling `report` after each update.

    Raises:
        NotRecorded: the table can't tell; the message names each fault.
    """
    from recorded.replay import replay

    replay(config, report)
