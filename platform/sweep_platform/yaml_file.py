"""YAML files that a person may edit: read with faults that name the place, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sweep_platform.errors import BadInput, Fault


class _Loader(yaml.SafeLoader):
    """Safe loading in which a key that stands twice is an error, as the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file that holds one mapping.

    Raises:
        BadInput: it can't be read, is no YAML, or holds something else.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput([Fault(str(path), reason, "a YAML file that can be read", "check the path")]) from error
    except (yaml.YAMLError, TypeError) as error:
        told = " ".join(str(error).split())
        raise BadInput([Fault(str(path), told, "valid YAML", "correct that place")]) from error
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise BadInput([Fault(str(path), type(tree).__name__, "a mapping with named keys", "check the file")])
    return tree


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
