"""Where a trial runs and with how many threads: what the driver sets in its config and in its folder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any


def set_aside(folder: Path) -> None:
    """Move what is there before a trial's first attempt: another ledger's trial, whose checkpoints aren't ours."""
    if folder.exists():
        numbers = (folder.with_name(f"{folder.name}.superseded-{count}") for count in itertools.count(1))
        folder.rename(next(place for place in numbers if not place.exists()))


def trainer_section(config: Any) -> dict[str, Any]:
    """The `trainer` section of a config; empty for a trainer that has none."""
    section = config.get("trainer")
    return dict(section) if isinstance(section, dict) else {}


def with_trainer(config: Any, **values: Any) -> dict[str, Any]:
    """The config with fields of its `trainer` section set, as far as the trainer has them."""
    section = trainer_section(config)
    known = {key: value for key, value in values.items() if key in section}
    return {**config, "trainer": {**section, **known}} if section else dict(config)
