"""The trainer interface, and how a trainer is found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError

from sweep_platform.errors import BadInput, Fault

GROUP = "sweep_platform.trainers"
_MEMBERS = ("Config", "preflight", "prepare", "train")
_DATA_MEMBERS = ("list_data", "fetch_data")


class TrainerFault(Protocol):
    """A fault in a trainer's config, as the trainer tells it."""

    @property
    def key(self) -> str: ...
    @property
    def got(self) -> str: ...
    @property
    def need(self) -> str: ...
    @property
    def do(self) -> str: ...


class EvaluatedSample(Protocol):
    """One sampled answer to one validation problem."""

    @property
    def data_source(self) -> str: ...
    @property
    def problem_id(self) -> str: ...
    @property
    def sample_index(self) -> int: ...
    @property
    def prompt(self) -> str: ...
    @property
    def response(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def ground_truth(self) -> str: ...
    @property
    def correct(self) -> bool: ...
    @property
    def response_length(self) -> int: ...


class Cost(Protocol):
    """Cumulative cost of a run."""

    @property
    def flops(self) -> float: ...
    @property
    def tokens(self) -> int: ...
    @property
    def device_seconds(self) -> float: ...
    @property
    def evaluation_flops(self) -> float: ...
    @property
    def evaluation_tokens(self) -> int: ...
    @property
    def evaluation_device_seconds(self) -> float: ...


class StepMetrics(Protocol):
    """What a trainer reports after each update; `dapo.batch.StepMetrics` documents the fields."""

    @property
    def step(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def evaluation(self) -> Sequence[EvaluatedSample]: ...
    @property
    def final(self) -> bool: ...


class MemoryEstimate(Protocol):
    """What a run is expected to need at its peak; `str` of it says what for."""

    @property
    def total_gb(self) -> float: ...


class Finding(Protocol):
    """Something that a trainer finds wrong with a run; `dapo.doctor.Finding` documents the fields."""

    @property
    def name(self) -> str: ...
    @property
    def evidence(self) -> str: ...
    @property
    def advice(self) -> Sequence[str]: ...


class Trainer(Protocol):
    """A module that trains: `dapo.trainer` documents each member.

    Where its config has a section `trainer` with `default_local_dir` (a folder for one run), `num_threads` (of one
    process) and `n_gpus_per_node` (processes, one a device), the driver sets them. What it may have besides: `HELD_OUT`
    (see `held_out`), the members of `DataTrainer` or `estimates.EstimatingTrainer`, and these functions:

    - `describe(config) -> str`, which `platform validate` shows;
    - `estimate_memory(config, devices) -> MemoryEstimate | None`, of one of so many devices, for limits on memory
      before a candidate is trained;
    - `unreported(config, metrics) -> Sequence[TrainerFault]`, which names, each as a fault's key, the metrics that no
      run of a valid config reports;
    - `machine_faults(config) -> Sequence[TrainerFault]`, what keeps a run of a valid config from starting on this
      machine, such as a device that isn't here;
    - `free_to_change(path) -> bool`, whether `train` goes on from a checkpoint though the value at that path of the
      config is another one; without it, none may be;
    - `examine(config, history) -> Sequence[Finding]`, what is wrong with a run by the metrics of its steps, each with
      `name`, `evidence` and `advice`;
    - `trained_model(folder) -> Path | None`, the newest model among a run's checkpoints, as a Hugging Face folder;
    - `confirming_faults(config, confirming) -> Sequence[TrainerFault]`, what keeps runs of the second config from
      confirming those of the first on problems that they haven't seen.

    `Config` may have `REPLACED`: by a key's name that it doesn't know, in whatever section, what to say: need, do.
    """

    Config: type[BaseModel]

    def preflight(self, config: Any, devices: int = 1) -> Sequence[TrainerFault]: ...
    def prepare(self, config: Any, progress: Callable[[str, int, int], None] | None = None) -> None: ...
    def train(self, config: Any, report: Callable[[Any], bool]) -> None: ...


class ModelTrainer(Protocol):
    """What a trainer has besides if it can fetch models. An exception with `faults` is about the user's input."""

    def fetch_model(
        self, name: str, *, revision: str | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> Path: ...


class WarmstartResult(Protocol):
    """A supervised warm start that is over."""

    @property
    def folder(self) -> Path: ...
    @property
    def before(self) -> Mapping[str, float]: ...
    @property
    def after(self) -> Mapping[str, float]: ...
    @property
    def steps(self) -> int: ...
    @property
    def examples(self) -> int: ...
    @property
    def solutions(self) -> int: ...
    @property
    def left_out(self) -> int: ...


class WarmstartTrainer(Trainer, Protocol):
    """What a trainer has besides if it can warm-start a model. An exception with `faults` is about the user's input."""

    WarmstartConfig: type[BaseModel]

    def warmstart(
        self, config: Any, settings: Any, out: Path, progress: Callable[[str, int, int], None] | None = None
    ) -> WarmstartResult: ...


class ListedData(Protocol):
    """A public data set that a trainer can fetch."""

    @property
    def name(self) -> str: ...
    @property
    def parts(self) -> Sequence[str]: ...
    @property
    def source(self) -> str: ...
    @property
    def licence(self) -> str: ...
    @property
    def size(self) -> str: ...
    @property
    def folder(self) -> Path | None: ...


class DataPart(Protocol):
    """The rows of a fetched set that go under one name: as published, distinct, and at odds with an earlier one."""

    @property
    def rows(self) -> int: ...
    @property
    def problems(self) -> int: ...
    @property
    def conflicts(self) -> int: ...


class FetchedData(Protocol):
    """A public data set in the trainer's cache."""

    @property
    def folder(self) -> Path: ...
    @property
    def revision(self) -> str: ...
    @property
    def parts(self) -> Mapping[str, DataPart]: ...


class DataTrainer(Protocol):
    """What a trainer has besides if it knows public data sets. An exception with `faults` is about the user's input."""

    def list_data(self) -> Sequence[ListedData]: ...
    def fetch_data(
        self, name: str, *, given: Path | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> FetchedData: ...


def held_out(trainer: Trainer) -> Mapping[str, Sequence[Any]]:
    """Values by path in the trainer's config that are kept for the final evaluation, and that no sweep may use."""
    found: Mapping[str, Sequence[Any]] = getattr(trainer, "HELD_OUT", {})
    return found


def confirming_faults(trainer: Trainer, config: BaseModel, confirming: BaseModel) -> Sequence[TrainerFault]:
    """What keeps runs of `confirming` from confirming those of `config`, as far as the trainer can tell."""
    find: Callable[[BaseModel, BaseModel], Sequence[TrainerFault]] | None = getattr(trainer, "confirming_faults", None)
    return () if find is None else find(config, confirming)


def machine_faults(trainer: Trainer, config: BaseModel) -> Sequence[TrainerFault]:
    """What keeps a run of `config` from starting on this machine, as far as the trainer can tell."""
    find: Callable[[BaseModel], Sequence[TrainerFault]] | None = getattr(trainer, "machine_faults", None)
    return () if find is None else find(config)


def trained_model(trainer: Trainer, folder: Path) -> Path | None:
    """The newest model among the checkpoints of a run in `folder`; None where there is none here."""
    find: Callable[[Path], Path | None] | None = getattr(trainer, "trained_model", None)
    return None if find is None or not folder.is_dir() else find(folder)


def free_to_change(trainer: Trainer, path: str) -> bool:
    """Whether a run may be resumed with another value at a path of its config."""
    allows: Callable[[str], bool] | None = getattr(trainer, "free_to_change", None)
    return allows is not None and allows(path)


def load_data_trainer(name: str) -> DataTrainer:
    """Return a trainer that can fetch public data.

    Raises:
        BadInput: as `load_trainer`, or it can't.
    """
    trainer = load_trainer(name)
    if all(hasattr(trainer, member) for member in _DATA_MEMBERS):
        return cast(DataTrainer, trainer)
    got, need = f"{name!r}, which has no public data sets", f"a trainer with {' and '.join(_DATA_MEMBERS)}"
    raise BadInput([Fault("--trainer", got, need, "name another, or set data.train and data.val to files")])


def load_model_trainer(name: str) -> ModelTrainer:
    """Return a trainer that can fetch models.

    Raises:
        BadInput: as `load_trainer`, or it can't.
    """
    trainer = load_trainer(name)
    if hasattr(trainer, "fetch_model"):
        return cast(ModelTrainer, trainer)
    need = "a trainer with fetch_model"
    raise BadInput([Fault("--trainer", f"{name!r}, which fetches no models", need, "name another, or set model.path")])


def warmstart_trainer(trainer: Trainer, name: str) -> WarmstartTrainer:
    """Return the same trainer, as one that can warm-start a model.

    Raises:
        BadInput: it can't.
    """
    if hasattr(trainer, "warmstart") and hasattr(trainer, "WarmstartConfig"):
        return cast(WarmstartTrainer, trainer)
    need = "a trainer with warmstart and WarmstartConfig"
    raise BadInput([Fault("trainer", f"{name!r}, which has no warm start", need, "name another")])


def describe_config(trainer: Trainer, config: Mapping[str, Any]) -> str:
    """What a trainer says of a valid config in one line, where it has a `describe`; or an empty string."""
    describe: Callable[[BaseModel], str] | None = getattr(trainer, "describe", None)
    return "" if describe is None else describe(trainer.Config.model_validate(config))


def estimate_memory(trainer: Trainer, config: BaseModel, devices: int = 1) -> MemoryEstimate | None:
    """What a run of `config` on so many devices is expected to need of each one's memory; None if nobody can tell."""
    estimate: Callable[[BaseModel, int], MemoryEstimate | None] | None = getattr(trainer, "estimate_memory", None)
    return None if estimate is None else estimate(config, devices)


def examine_config(
    trainer: Trainer, config: Mapping[str, Any], history: Sequence[Mapping[str, float]]
) -> Sequence[Finding]:
    """What a trainer finds wrong with a run; nothing where it has no `examine`, or the config is another version's."""
    look: Callable[[BaseModel, Sequence[Mapping[str, float]]], Sequence[Finding]] | None
    look = getattr(trainer, "examine", None)
    try:
        valid = trainer.Config.model_validate(config)
    except ValidationError:
        return ()
    return () if look is None else look(valid, history)


def unreported_metrics(trainer: Trainer, config: BaseModel, metrics: Sequence[str]) -> Sequence[TrainerFault]:
    """The metrics, as keys of faults, that no run of `config` reports, as far as the trainer can tell."""
    find: Callable[[BaseModel, Sequence[str]], Sequence[TrainerFault]] | None = getattr(trainer, "unreported", None)
    return () if find is None else find(config, metrics)


def load_trainer(name: str) -> Trainer:
    """Return the trainer registered as `name` in the entry-point group `sweep_platform.trainers`.

    A name with a dot that isn't registered is imported: a module on the path can be a trainer without being
    installed.

    Raises:
        BadInput: no such trainer is installed, or the module is no trainer.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    module: Any = None
    if name in found:
        module = found[name].load()
    elif "." in name:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    if module is not None:
        lacking = [member for member in _MEMBERS if not hasattr(module, member)]
        if not lacking:
            return cast(Trainer, module)
        got = f"{name!r}, which lacks {', '.join(lacking)}"
        raise BadInput([Fault("trainer", got, f"a module with {', '.join(_MEMBERS)}", "name another")])
    need = f"one of {sorted(found)}, or a module on the path such as package.trainer"
    raise BadInput([Fault("trainer", repr(name), need, "install it, or name another")])
