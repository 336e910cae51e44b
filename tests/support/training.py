"""Running the trainer, and looking at what it left."""

from pathlib import Path

import torch
from dapo.batch import StepMetrics
from dapo.config import Config
from dapo.train import train
from hearing import heard
from safetensors.torch import load_file


def run(config: Config, stop_at: int | None = None) -> list[StepMetrics]:
    """Train, and return what was reported; stop when told so."""
    return heard(train, config, stop_at)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the last checkpoint."""
    latest = max(folder.glob("global_step_*"), key=lambda path: float(path.name.removeprefix("global_step_")))
    return load_file(latest / "model" / "model.safetensors")
