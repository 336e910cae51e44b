"""Running the trainer, and looking at what it left."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dapo.batch import Report, StepMetrics
from dapo.config import Config
from dapo.train import train
from safetensors.torch import load_file


def run(config: Config, stop_at: int | None = None) -> list[StepMetrics]:
    """Train, and return what was reported; stop when told so."""
    return heard(train, config, stop_at)


def heard(train: Callable[[Any, Report], None], config: object, stop_at: int | None = None) -> list[StepMetrics]:
    """What any trainer reports; it is stopped when told so."""
    told: list[StepMetrics] = []

    def report(step: StepMetrics) -> bool:
        told.append(step)
        return step.step != stop_at

    train(config, report)
    return told


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the last checkpoint."""
    latest = max(folder.glob("global_step_*"), key=lambda path: path.name)
    return load_file(latest / "model" / "model.safetensors")
