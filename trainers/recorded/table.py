"""The recorded runs, read from `runs.parquet`: one row for each step of each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recorded.limits import STEPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TABLE = Path(__file__).with_name("runs.parquet")
COSTS = ("flops", "tokens", "device_seconds")
"""Columns that are cumulative."""
COLUMNS = (*COSTS, "accuracy", "accuracy_se", "filter/yield", "perf/peak_memory_gb", "val/response_length")
KNOTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40)
"""Updates after which every run was evaluated."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run."""

    params: Mapping[str, Any]
    """The knobs that differ between runs, by path in the config."""
    seed: int
    curve: Mapping[str, Array]
    """Column -> [steps + 1], from before the first update on; between evaluations on the straight line."""

    @property
    def key(self) -> str:
        """Its params as text: equal configs, equal keys."""
        return key_of(self.params)


def key_of(params: Mapping[str, Any]) -> str:
    """Params as text: equal configs, equal keys."""
    return json.dumps({path: params[path] for path in sorted(params)})


@cache
def recorded_runs(path: Path = TABLE) -> tuple[Run, ...]:
    """Read the runs, in the order of the design."""
    import pyarrow.parquet as pq

    columns = {name: column.to_pylist() for name, column in zip(*_columns(pq.read_table(path)), strict=True)}
    numbers = np.array(columns["run"])
    runs = []
    for number in range(int(numbers.max()) + 1):
        rows = np.flatnonzero(numbers == number)
        first = int(rows[0])
        steps = np.array([columns["step"][row] for row in rows])
        curve = {name: _filled(steps, [columns[name][row] for row in rows], rises=name in COSTS) for name in COLUMNS}
        runs.append(Run(json.loads(columns["params"][first]), columns["seed"][first], curve))
    return tuple(runs)


def _columns(table: Any) -> tuple[list[str], list[Any]]:
    return table.column_names, table.columns


def _filled(steps: NDArray[np.int64], values: list[float | None], *, rises: bool) -> Array:
    """A column [steps + 1] with what wasn't measured at a step put on the line between its neighbours.

    What `rises` never falls: the seconds are an estimate of the processor's share, which may be corrected downwards.
    """
    known = [(step, value) for step, value in zip(steps.tolist(), values, strict=True) if value is not None]
    at, seen = zip(*known, strict=True)
    return np.asarray(np.interp(np.arange(STEPS + 1), at, np.maximum.accumulate(seen) if rises else seen))
