"""A model folder's safetensors, from one file or from several, of which tensors are read by rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dapo.errors import ModelError
from dapo.weight_shapes import ROTARY, Shape

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class WeightFiles:
    """The open files of a folder."""

    slices: dict[str, Any]
    """By name: what safetensors reads rows from."""

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of all tensors by name, by the files' headers."""
        return {name: tuple(rows.get_shape()) for name, rows in self.slices.items()}

    def read(self, name: str, rows: slice) -> Tensor:
        """Read some rows of a tensor, [rows, …]; nothing else of it is loaded."""
        found: Tensor = self.slices[name][rows]
        return found


@contextmanager
def weight_files(folder: Path) -> Iterator[WeightFiles]:
    """Open a folder's weights.

    Raises:
        ModelError: they can't be read.
    """
    index = folder / f"{WEIGHTS}.index.json"
    with ExitStack() as opened:
        try:
            names = {WEIGHTS}
            if not (folder / WEIGHTS).is_file() and index.is_file():
                names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
            slices: dict[str, Any] = {}
            for name in sorted(names):
                file = opened.enter_context(safe_open(folder / name, "pt"))
                slices |= {key: file.get_slice(key) for key in file.keys() if not key.endswith(ROTARY)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            need = f"{WEIGHTS}, whole or in shards"
            raise ModelError(f"{folder}: weights can't be read ({error}); need {need}") from error
        yield WeightFiles(slices)
