"""From what `model.path` says to a folder: a model by name, a folder, or an id of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from dapo.batch import Progress
from dapo.errors import ModelError

NAMED_HEADS = {"tiny": (4, 2), "smollm2-135m": (9, 3)}
"""Models by name, with their numbers of attention heads and key-value heads."""
PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")
"""Files of a repository that are downloaded: never pickled weights, and never code."""
PROBE_S = 10.0
"""Seconds that the hub has to answer at all."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_hub_id(path: str) -> bool:
    """Tell whether `path` reads as `owner/name`, and is no folder here."""
    return _ID.fullmatch(path) is not None and not Path(path).exists()


def resolve_model(path: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """Return the folder that `model.path` stands for, made or downloaded first where it is missing.

    Args:
        path: `tiny`, `smollm2-135m`, a Hugging Face folder, or an id (`owner/name`) of the hub.
        revision: branch, tag or commit, of an id only.
        progress: called while something is made or downloaded.

    Raises:
        ModelError: it can't be made or downloaded. A path that is no folder is returned as it is.
    """
    if path == "tiny":
        from dapo.warmstart import tiny_path

        return tiny_path(progress)
    if path == "smollm2-135m":
        from dapo.smollm2 import fetch_smollm2

        return fetch_smollm2(progress)
    return _downloaded(path, revision) if is_hub_id(path) else Path(path)


def _downloaded(repository: str, revision: str | None) -> Path:
    """Return a snapshot of a repository on the hub, from the hub's own cache if it is whole there."""
    raise ModelError(f"model.path: got {repository!r}")
