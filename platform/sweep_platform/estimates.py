"""What a trainer that can tell memory and time before a run tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from sweep_platform.errors import BadInput, Fault
from sweep_platform.trainers import MemoryEstimate, Trainer


class PhasedMemory(MemoryEstimate, Protocol):
    """The same by what it is for."""

    @property
    def phase(self) -> str: ...
    @property
    def phases(self) -> Mapping[str, Mapping[str, float]]: ...


class StepTime(Protocol):
    """Seconds that a step is expected to take, by what for; `dapo.step_time.StepTime` documents the fields."""

    @property
    def parts(self) -> Mapping[str, float]: ...
    @property
    def total(self) -> float: ...
    @property
    def tokens(self) -> float: ...
    @property
    def occupancy(self) -> float: ...


class LayoutEstimate(Protocol):
    """One way for devices to share a run; `dapo.estimate.LayoutEstimate` documents the fields."""

    @property
    def choice(self) -> Mapping[str, int]: ...
    @property
    def refused(self) -> Sequence[str]: ...
    @property
    def memory(self) -> PhasedMemory | None: ...
    @property
    def time(self) -> StepTime | None: ...
    @property
    def fits(self) -> bool: ...
    @property
    def rows(self) -> int: ...


class EstimatingTrainer(Protocol):
    """What a trainer has besides if it can estimate. An exception with `faults` is about the user's input."""

    def estimate_layouts(
        self,
        config: Any,
        hardware: Mapping[str, Any],
        searched: Mapping[str, Sequence[Any]],
        assumed: Mapping[str, float | None],
    ) -> tuple[Sequence[LayoutEstimate], Any]: ...


def estimating_trainer(trainer: Trainer, name: str) -> EstimatingTrainer:
    """Return the same trainer, as one that can estimate.

    Raises:
        BadInput: it can't.
    """
    if hasattr(trainer, "estimate_layouts"):
        return cast(EstimatingTrainer, trainer)
    raise BadInput(
        [Fault("trainer", f"{name!r}, which estimates nothing", "a trainer with estimate_layouts", "name another")]
    )
