"""What a run between the recorded ones would show: Gaussian processes over the table, and the noise of pairs of seeds.

A curve is described by its values at the `KNOTS`: accuracy and the like as they are, costs as logarithms of what each
stretch between knots costs. One process predicts accuracy at all knots, another one everything else; between knots
curves are straight. Noise is drawn for all of them at once, as a random combination of the differences that the pairs
of seeds show: its covariance over steps, and between accuracy and cost, is then the measured one.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from recorded.limits import CLIP_HIGH, CLIP_LOW, GEN_BATCH, METRIC, NAMED, ROUNDS, STATISTIC, STEPS, THRESHOLD
from recorded.limits import TRAIN_BATCH as BATCH
from recorded.table import COSTS, KNOTS, Run, key_of, recorded_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.gaussian_process import GaussianProcessRegressor

    Array = NDArray[np.float64]

_OTHERS = (*COSTS, "filter/yield", "perf/peak_memory_gb", "val/response_length")
_ORDER = ("accuracy", *_OTHERS)
_START = ("accuracy", "val/response_length", "perf/peak_memory_gb")
"""Columns that have a value before the first update, the same for all configs."""


def encoded(params: Mapping[str, Any]) -> list[float]:
    """Params as coordinates between 0 and 1."""
    rounds, train, gen = params[ROUNDS], params[BATCH], params[GEN_BATCH]
    return [
        *(float(params[METRIC] == name) for name in NAMED[METRIC]),
        float(params[STATISTIC] == "mean"),
        2 * params.get(THRESHOLD, 0.0),
        math.log(rounds) / math.log(20),
        math.log2(train / 8) / 2,
        math.log2(gen / 8) / 2,
        min(math.log2(rounds * gen / train) / 4, 1.0),
        (params[CLIP_LOW] - 0.1) / 0.2,
        (params[CLIP_HIGH] - 0.2) / 0.2,
    ]


def knotted(curve: Mapping[str, Array]) -> Array:
    """A curve as [columns, knots]."""
    ends = np.array(KNOTS)
    rows = []
    for name in _ORDER:
        if name in COSTS:
            stretches = np.diff(curve[name][np.array((0, *KNOTS))])
            rows.append(np.log(np.maximum(stretches, 1e-3 * stretches.mean())))
        else:
            rows.append(curve[name][ends])
    return np.array(rows)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The model of one table."""

    accuracy: GaussianProcessRegressor
    others: GaussianProcessRegressor
    differences: Array
    """[pairs, columns, knots]: between two seeds of one config."""
    start: Mapping[str, float]
    error_scale: float
    """Standard error of accuracy, over sqrt(p (1 - p))."""

    @classmethod
    def fit(cls, runs: Sequence[Run]) -> Surrogate:
        """Fit to runs, some of them of the same config under several seeds."""
        points = np.array([encoded(run.params) for run in runs])
        curves = np.array([knotted(run.curve) for run in runs])
        pairs = [curves[i] - curves[j] for i, j in combinations(range(len(runs)), 2) if runs[i].key == runs[j].key]
        accuracy = np.array([run.curve["accuracy"] for run in runs])
        errors = np.array([run.curve["accuracy_se"] for run in runs])
        return cls(
            accuracy=_fitted(points, curves[:, 0]),
            others=_fitted(points, curves[:, 1:].reshape(len(runs), -1)),
            differences=np.array(pairs),
            start={name: float(np.mean([run.curve[name][0] for run in runs])) for name in _START},
            error_scale=float(np.mean(errors / np.sqrt(accuracy * (1 - accuracy)))),
        )

    def mean(self, params: Mapping[str, Any]) -> Array:
        """Knots [columns, knots] of the curve that a config is expected to have."""
        point = np.array([encoded(params)])
        accuracy = self.accuracy.predict(point).reshape(1, -1)
        return np.concatenate((accuracy, self.others.predict(point).reshape(len(_OTHERS), -1)))

    def noise(self, rng: np.random.Generator) -> Array:
        """What one run differs by from the mean, [columns, knots]."""
        pairs = len(self.differences)
        drawn = rng.standard_normal(pairs) @ self.differences.reshape(pairs, -1)
        return np.asarray(drawn / math.sqrt(2 * pairs)).reshape(self.differences.shape[1:])

    def curve(self, knots: Array) -> dict[str, Array]:
        """The curve with these knots: column -> [steps + 1]."""
        steps, at = np.arange(STEPS + 1), np.array((0, *KNOTS))
        found = {}
        for name, values in zip(_ORDER, knots, strict=True):
            if name in COSTS:
                cumulative = np.concatenate(([0.0], np.cumsum(np.exp(values))))
            else:
                cumulative = np.concatenate(([self.start.get(name, values[0])], values))
            found[name] = np.interp(steps, at, cumulative)
        for name in ("accuracy", "filter/yield"):
            found[name] = np.clip(found[name], 0.0, 1.0)
        found["accuracy_se"] = self.error_scale * np.sqrt(found["accuracy"] * (1 - found["accuracy"]))
        return found


@cache
def surrogate() -> Surrogate:
    """The model of the packaged table, fitted once a process."""
    return Surrogate.fit(recorded_runs())


def expected(params: Mapping[str, Any]) -> dict[str, Array]:
    """The curve of a config without noise."""
    model = surrogate()
    return model.curve(model.mean(params))


def drawn(params: Mapping[str, Any], seed: int, problems: str = "") -> dict[str, Array]:
    """The curve of a config under a seed; the same each time, whatever the length of the run.

    Other problems are another draw. That they may be harder or easier for all configs alike isn't known.
    """
    digest = hashlib.sha256(f"{key_of(params)}:{seed}{problems and f':{problems}'}".encode()).digest()
    model = surrogate()
    return model.curve(model.mean(params) + model.noise(np.random.default_rng(int.from_bytes(digest[:8], "big"))))


def _fitted(points: Array, values: Array) -> GaussianProcessRegressor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    lengths = Matern([1.0] * points.shape[1], (0.1, 50.0), nu=2.5)
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * lengths + WhiteKernel(0.1, (1e-4, 2.0))
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound is no harm
        return process.fit(points, values)
