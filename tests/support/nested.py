"""Trees of settings out of keyword arguments."""

from collections.abc import Mapping
from typing import Any


def put_all(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put values into nested settings, `__` for each dot of their paths; return the settings."""
    for path, value in changes.items():
        *parents, name = path.split("__")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
