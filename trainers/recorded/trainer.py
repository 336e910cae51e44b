"""The interface that every trainer of the platform has; `dapo.trainer` documents it."""

from __future__ import annotations

from collections.abc import Sequence

from dapo.trainer import HELD_OUT, Config, Fault, Progress, Report, StepMetrics, confirming_faults

__all__ = ["HELD_OUT", "Config", "Fault", "Progress", "Report", "StepMetrics"]
__all__ += ["confirming_faults", "preflight", "prepare", "train", "unreported"]


def preflight(config: Config, devices: int = 1) -> list[Fault]:
    """Check all that `dapo` checks, and that the table can tell what the config does. Loads no numpy."""
    from dapo.trainer import preflight as checks

    from recorded.limits import unrecorded

    faults = checks(config, devices)
    named = {fault.key for fault in faults}
    return [*faults, *(fault for fault in unrecorded(config) if fault.key not in named)]


def unreported(config: Config, metrics: Sequence[str]) -> list[Fault]:
    """Return a fault, its key the metric, for each of `metrics` that wasn't recorded."""
    from recorded.limits import METRICS

    need, do = f"one that was recorded: {', '.join(METRICS)}", "name one of these, or train with trainer: dapo"
    return [Fault(metric, "a metric of no recorded run", need, do) for metric in metrics if metric not in METRICS]


def prepare(config: Config, progress: Progress | None = None) -> None:
    """Nothing is needed: the table comes with the package."""


def train(config: Config, report: Report) -> None:
    """Report what the run would have shown, from its latest checkpoint on, calling `report` after each update.

    Raises:
        NotRecorded: the table can't tell; the message names each fault.
    """
    from recorded.replay import replay

    replay(config, report)
