"""What the trainer's preflight finds in a config of which some values are no valid ones: all faults at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from sweep_platform.spec.faults import named_fields
from sweep_platform.spec.paths import is_under
from sweep_platform.trainers import Trainer, TrainerFault

Path = tuple[str, ...]


def remaining_faults(
    trainer: Trainer, tree: Mapping[str, Any], error: ValidationError, devices: int = 1
) -> list[TrainerFault]:
    """Return what preflight finds once the values that `error` is about are taken out, so that their defaults stand.

    Faults that may come from such a default are left out: those of a key that is taken out, and those that name one.
    All are where the rest isn't valid either.

    Args:
        trainer: Whose config it is.
        tree: The config as it was written, which isn't valid.
        error: What pydantic said of it.
        devices: Devices at hand.
    """
    paths = set(_faulty(trainer.Config, tree, error))
    rest = copy.deepcopy(dict(tree))
    for path in paths:
        _take_out(rest, path)
    try:
        config = trainer.Config.model_validate(rest)
    except ValidationError:
        return []
    return [fault for fault in trainer.preflight(config, devices) if not any(_hangs_on(fault, path) for path in paths)]


def _faulty(model: type[BaseModel], tree: Mapping[str, Any], error: ValidationError) -> Iterator[Path]:
    """The paths of the values that pydantic refuses; of a section those fields that the message names, if it does."""
    for detail in error.errors(include_url=False):
        location = [str(part) for part in detail["loc"]]
        for end in [[name] for name in named_fields(detail, model)] or [[]]:
            yield _reached(tree, (*location, *end))


def _reached(tree: Any, path: Path) -> Path:
    """The beginning of a path that leads through mappings: a list is one value."""
    for depth, key in enumerate(path):
        if not isinstance(tree, Mapping):
            return path[:depth]
        tree = tree.get(key)
    return path


def _take_out(tree: dict[str, Any], path: Path) -> None:
    """Remove what is at a path, and stay with the tree where it isn't there or is the whole."""
    node: Any = tree
    for key in path[:-1]:
        node = node.get(key) if isinstance(node, Mapping) else None
    if path and isinstance(node, dict):
        node.pop(path[-1], None)


def _hangs_on(fault: TrainerFault, path: Path) -> bool:
    key = ".".join(path)
    if is_under(fault.key, key) or is_under(key, fault.key):
        return True
    return re.search(rf"\b{re.escape(path[-1])}\b", f"{fault.got} {fault.need} {fault.do}") is not None
