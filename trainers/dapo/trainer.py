"""The interface that every trainer of the platform has, and the entry point that names it.

It is a module of its own because importing the submodule `dapo.train` puts that module in the place of any
function `dapo.train` of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.batch import Fault, Progress, Report, StepMetrics
from dapo.config import Config
from dapo.config_warmstart import WarmstartConfig
from dapo.resuming import free_to_change

if TYPE_CHECKING:
    from dapo.doctor import Finding
    from dapo.estimate import LayoutEstimate
    from dapo.fetch import FetchedSet
    from dapo.memory import MemoryEstimate
    from dapo.public_data import ListedSet
    from dapo.step_time import Workload
    from dapo.supervised import WarmstartResult

__all__ = ["HELD_OUT", "Config", "Fault", "Progress", "Report", "StepMetrics", "WarmstartConfig"]
__all__ += [
    "confirming_faults",
    "describe",
    "estimate_layouts",
    "estimate_memory",
    "examine",
    "fetch_data",
    "fetch_model",
    "free_to_change",
    "list_data",
    "machine_faults",
    "preflight",
    "prepare",
    "train",
    "trained_model",
    "unreported",
    "warmstart",
]


HELD_OUT = {"data.train": ("arithmetic-heldout",), "data.val": ("arithmetic-heldout",)}
"""By path in `Config`: values that no search may use, since what is chosen by them can't be measured by them."""


def preflight(config: Config, devices: int = 1) -> list[Fault]:
    """Check what pydantic can't: files, lengths, sizes against `devices`. Reads data, loads no torch."""
    from dapo.preflight import preflight as run

    return run(config, devices)


def machine_faults(config: Config) -> list[Fault]:
    """Return what keeps a run of `config` from starting on this machine: devices that it hasn't. Loads no torch."""
    from dapo.machine import machine_faults as run

    return list(run(config))


def confirming_faults(config: Config, confirming: Config) -> list[Fault]:
    """Return what keeps runs of `confirming` from confirming those of `config` on problems that they haven't seen."""
    from dapo.preflight import confirming_faults as run

    return run(config, confirming)


def unreported(config: Config, metrics: Sequence[str]) -> list[Fault]:
    """Return a fault, its key the metric, for each of `metrics` that no run of a valid config reports.

    Such as one of a data set that isn't evaluated on, or of more samples than are drawn. Loads no torch.
    """
    from dapo.preflight import unreported_metrics

    return unreported_metrics(config, metrics)


def describe(config: Config) -> str:
    """What is worth knowing of a valid config before it costs anything, in one line; perhaps empty. Loads no torch."""
    from dapo.expected_rounds import describe_rounds

    return describe_rounds(config)


def estimate_memory(config: Config, devices: int = 1) -> MemoryEstimate | None:
    """Estimate the peak memory of one of so many devices; None where the model isn't here yet, or says no size."""
    from dapo.memory import estimate_memory as run

    return run(config, devices)


def examine(config: Config, history: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Return what is wrong with a run by its steps' metrics, what to see to first at the front. Loads no torch."""
    from dapo.doctor import examine as run

    return run(config, history)


def estimate_layouts(
    config: Config,
    hardware: Mapping[str, Any],
    searched: Mapping[str, Sequence[Any]],
    assumed: Mapping[str, float | None],
) -> tuple[list[LayoutEstimate], Workload]:
    """Estimate memory and time for each size of tensor and sequence parallelism, and what was assumed for it.

    Args:
        config: valid by its types.
        hardware: of a sweep, as it is written.
        searched: by path, the values that a search chooses among.
        assumed: by field of `dapo.step_time.Workload`; None takes what is usual.

    Raises:
        DataError: the model's size isn't known, or a figure of the hardware; its `faults` say which.
    """
    from dapo.estimate import estimate_layouts as run

    return run(config, hardware, searched, assumed)


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
    from dapo.launch import processes_of, train_together

    processes = processes_of(config)
    if processes > 1:
        train_together(config, report, processes)
        return
    from dapo.train import train as run

    run(config, report)


def trained_model(folder: Path) -> Path | None:
    """Return the newest model in a run's folder, itself a folder for `model.path`; None without one."""
    from dapo.checkpoint import Checkpoints

    return Checkpoints(folder, keep=1).newest_model()


def list_data() -> list[ListedSet]:
    """Return the public data sets that `fetch_data` knows."""
    from dapo.public_data import listed_sets

    return listed_sets()


def fetch_data(name: str, *, given: Path | None = None, progress: Progress | None = None) -> FetchedSet:
    """Fetch a public data set into the cache, by download or from files that are `given`.

    Raises:
        DataError: the set or the files are wrong; its `faults` say how.
        FetchError: no network, or something else than what is pinned came over it.
    """
    from dapo.fetch import fetch

    return fetch(name, given=given, progress=progress)


def fetch_model(name: str, *, revision: str | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of a model by name or id, made or downloaded first where this machine lacks it.

    Raises:
        DataError: no such name, or a revision of something that has none; its `faults` say how.
        ModelError: it can't be made or downloaded.
    """
    from dapo.model_folder import fetch

    return fetch(name, revision, progress)


def warmstart(
    config: Config, settings: WarmstartConfig, out: Path, progress: Progress | None = None
) -> WarmstartResult:
    """Teach the model of `config` its training problems' solutions, and save it as a folder for `model.path`.

    Raises:
        DapoError: it can't be done (see `dapo.errors`); `out` isn't there then.
    """
    from dapo.supervised import warmstart as run

    return run(config, settings, out, progress)
