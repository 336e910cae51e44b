"""Where a trial runs and with how many threads: what the driver sets in its config and in its folder."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any


class Workplace:
    """A driver's own way to its sweep's folder: a link that the next driver removes.

    A lease fences a frozen driver off from the ledger; this fences its trainers off from the checkpoints. What is
    written by way of the link after it is gone fails, or ends up beside the sweep's folder.

    Args:
        folder: The sweep's.
        token: The driver's.
    """

    def __init__(self, folder: Path, token: int) -> None:
        self._folder = folder
        self._pattern = f".{folder.name}-driver-"
        self._link = folder.with_name(f"{self._pattern}{token}")

    def take(self) -> Path:
        """Remove earlier drivers' links and make this one's; the folder itself where there can be no links."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.parent.glob(f"{self._pattern}*"):
            if left.is_symlink():
                left.unlink(missing_ok=True)
            else:  # made anew by a trainer that was fenced off
                shutil.rmtree(left, ignore_errors=True)
        try:
            self._link.symlink_to(self._folder.name)
        except OSError:
            return self._folder
        return self._link

    def leave(self) -> None:
        """Remove the link."""
        with suppress(OSError):
            self._link.unlink(missing_ok=True)


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


def nodes_of(config: Any) -> int:
    """Nodes that a trial of this config takes."""
    return int(trainer_section(config).get("nnodes") or 1)


def spread(config: Any, devices: int, threads: int) -> dict[str, Any]:
    """The config with the processes that it takes on each node, and the threads of each of them.

    Args:
        config: A trial's.
        devices: Of the trial, on all nodes; of the trainer's own number, where it has one, there are as many instead.
        threads: That the trial has on each node, unless its config says so.
    """
    section, nodes = trainer_section(config), nodes_of(config)
    processes = section.get("n_gpus_per_node") or max(1, devices // nodes)
    if processes * nodes == 1:
        return dict(config)
    share = max(1, (section.get("num_threads") or threads) // processes)
    return with_trainer(config, n_gpus_per_node=processes, num_threads=share)
