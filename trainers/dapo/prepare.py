"""What a run needs before its first step: its model's folder, made or downloaded once per machine."""

from __future__ import annotations

from dapo.batch import Progress
from dapo.config import Config
from dapo.model_folder import resolve_model


def prepare(config: Config, progress: Progress | None = None) -> None:
    """Make or download the model if the config names one that isn't here; a folder needs nothing.

    Raises:
        ModelError: it can't be made or downloaded.
    """
    resolve_model(config.model.path, config.model.revision, progress)
