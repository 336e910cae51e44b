"""Writing YAML, and writing files whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def to_yaml(tree: Mapping[str, Any]) -> str:
    """A tree as YAML, in its own order. Through JSON first, so that only plain types are left."""
    plain = json.loads(json.dumps(tree, default=_plain))
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, meets the old content or the new, never a part.

    Raises:
        OSError: the folder can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; take the mode that an ordinary new file gets.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
