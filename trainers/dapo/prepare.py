"""What a run needs before its first step: the embedded model, made once per machine."""

from __future__ import annotations

from dapo.batch import Progress
from dapo.config import Config


def prepare(config: Config, progress: Progress | None = None) -> None:
    """Make the embedded model if the config names it; a folder needs nothing."""
    if config.model.path == "tiny":
        from dapo.warmstart import tiny_path

        tiny_path(progress)
