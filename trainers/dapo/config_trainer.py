"""Configuration of the run: its length, evaluation, checkpoints and place."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dapo.config_section import PositiveInt, Section

DEFAULT_UPDATES = 30
"""Of a run that says neither updates nor epochs: the base config of a sweep over `total_epochs` is one."""


class TrainerConfig(Section):
    """The run: its length, evaluation, checkpoints and place."""

    total_training_steps: PositiveInt | None = DEFAULT_UPDATES
    """Updates. Null where `total_epochs` says how many (it needn't be written then)."""
    total_epochs: PositiveInt | None = None
    """Instead: as many updates as full batches lie in so many passes over the training set, and at least one. The
    plan counts prompts that are trained on. Dynamic sampling throws groups away, so a run draws more passes than
    these."""
    test_freq: int = 10
    """Evaluate every so many updates; <= 0 only at the end. The last update is always evaluated."""
    test_at: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] = ()
    """Evaluate at these shares of the run's length too, each at the first update that reaches it: where a search
    compares runs of different lengths."""
    val_before_train: bool = True
    """Evaluate before the first update."""
    save_freq: int = 10
    """Checkpoint every so many updates; <= 0 only at the end. The last update is always saved."""
    max_ckpt_to_keep: PositiveInt = 2
    """Older checkpoints are deleted."""
    default_local_dir: str | None = None
    """Folder for checkpoints; None keeps none. A run started again on the same folder resumes."""
    resume_mode: Literal["auto", "disable"] = "auto"
    """`auto` continues from the latest checkpoint in `default_local_dir`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds data order, sampling and evaluation."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `npu`."""
    n_gpus_per_node: PositiveInt | None = None
    """Devices of each machine that train together, one process each; on the CPU, processes. None means what the sweep's
    hardware has, or else one. Under torchrun its own number counts."""
    nnodes: PositiveInt = 1
    """Machines that train together. More than one needs torchrun on each, or a sweep on a Ray cluster."""
    num_threads: PositiveInt | None = None
    """CPU threads of this run; None takes all. Set before torch loads where the run has its own process."""

    def tests_at(self, step: int, total_steps: int) -> bool:
        """Whether a run of so many updates is evaluated after update `step` (0: before the first)."""
        due = {0, total_steps, *(math.ceil(share * total_steps - 1e-9) for share in self.test_at)}
        return step in due or (self.test_freq > 0 and step % self.test_freq == 0)

    @model_validator(mode="before")
    @classmethod
    def _epochs_replace_the_default(cls, values: Any) -> Any:
        epochs = isinstance(values, dict) and values.get("total_epochs") is not None
        return {"total_training_steps": None, **values} if epochs else values

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.total_training_steps is not None and self.total_epochs is not None:
            raise ValueError(
                f"one length, where total_training_steps: {self.total_training_steps} and total_epochs: "
                f"{self.total_epochs} are two; set one of them to null"
            )
        return self
