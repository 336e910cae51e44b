"""The trainer interface, and how a trainer is found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol, cast

from pydantic import BaseModel

from sweep_platform.errors import BadInput, Fault

GROUP = "sweep_platform.trainers"
_MEMBERS = ("Config", "preflight", "prepare", "train")


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


class Trainer(Protocol):
    """A module that trains: `dapo.trainer` documents each member.

    Where its config has a section `trainer` with `default_local_dir` (a folder for one run) and `num_threads`, the
    driver sets them. A function `describe(config) -> str` is optional; `platform validate` shows what it says.
    """

    Config: type[BaseModel]

    def preflight(self, config: Any, devices: int = 1) -> Sequence[TrainerFault]: ...
    def prepare(self, config: Any, progress: Callable[[str, int, int], None] | None = None) -> None: ...
    def train(self, config: Any, report: Callable[[Any], bool]) -> None: ...


def describe_config(trainer: Trainer, config: Mapping[str, Any]) -> str:
    """What a trainer says of a valid config in one line, where it has a `describe`; or an empty string."""
    describe: Callable[[BaseModel], str] | None = getattr(trainer, "describe", None)
    return "" if describe is None else describe(trainer.Config.model_validate(config))


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
