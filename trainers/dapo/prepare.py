"""What a run needs before its first step: its model's folder, made or downloaded once per machine."""

from __future__ import annotations

import json

from dapo.batch import Progress
from dapo.config import Config
from dapo.model_config import is_native
from dapo.model_folder import resolve_model


def prepare(config: Config, progress: Progress | None = None) -> None:
    """Make or download the model if the config names one that isn't here, and see that something computes it.

    Raises:
        ModelError: it can't be made or downloaded, or neither our decoder nor transformers knows it.
    """
    folder = resolve_model(config.model.path, config.model.revision, progress)
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    if not is_native(raw):
        from dapo.model_transformers import check_loads

        check_loads(folder)
