"""A Gaussian process for one objective, with the measured noise of each observation.

scikit-learn's regression with a Matérn-5/2 kernel, one length scale a coordinate. The length scales have log-normal
priors that grow with the root of the dimension (arXiv 2402.02229), since maximum likelihood overfits a dozen of them to
a dozen trials.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.gaussian_process import GaussianProcessRegressor

    Array = NDArray[np.float64]

_SPREAD = math.sqrt(3.0)
"""Standard deviation of the logarithm of a length scale, a priori."""
_LENGTHS, _NOISES, _SCALES = (1e-2, 1e2), (1e-5, 1.0), (1e-2, 1e2)
"""Bounds of length scales, noise variance and signal variance, for standardised values."""
MAX_FIT = 60
"""Steps of the optimiser of the kernel's parameters."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The model, fitted to standardised values."""

    process: GaussianProcessRegressor
    center: float
    scale: float

    @classmethod
    def fit(cls, points: Array, values: Array, noise: Array | None = None) -> Surrogate:
        """Fit to observations.

        Args:
            points: [N, D] in the unit cube.
            values: [N].
            noise: [N] known standard errors, in the unit of the values; more noise is inferred.
        """
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        center, scale = float(values.mean()), float(values.std()) or 1.0
        known = np.zeros(len(values)) if noise is None else (noise / scale) ** 2
        width = points.shape[1]
        typical = 0.5 * math.sqrt(width)
        kernel = ConstantKernel(1.0, _SCALES) * Matern([typical] * width, _LENGTHS, nu=2.5) + WhiteKernel(1e-2, _NOISES)
        process = GaussianProcessRegressor(kernel, alpha=known + 1e-8, optimizer=_most_probable(math.log(typical)))
        return cls(_fitted(process, points, (values - center) / scale), center, scale)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation [N] of the objective itself, its noise left out."""
        mean, deviation = self.process.predict(points, return_std=True)
        noise = float(self.process.kernel_.k2.noise_level)
        latent = np.sqrt(np.maximum(deviation**2 - noise, 1e-10))
        return mean * self.scale + self.center, latent * self.scale

    def believing(self, points: Array) -> Surrogate:
        """The model as if its own predictions at `points` had been observed: they hold no surprise any more."""
        from sklearn.base import clone

        if not len(points):
            return self
        process = clone(self.process).set_params(kernel=self.process.kernel_, optimizer=None)
        process.set_params(alpha=np.concatenate((self.process.alpha, np.full(len(points), 1e-8))))
        believed = self.process.predict(points)
        seen = np.concatenate((self.process.X_train_, points))
        values = np.concatenate((self.process.y_train_, believed))
        return Surrogate(_fitted(process, seen, values), self.center, self.scale)


def _fitted(process: GaussianProcessRegressor, points: Array, values: Array) -> GaussianProcessRegressor:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a parameter at its bound is no harm
        return process.fit(points, values)


def _most_probable(center: float) -> Callable[[Any, Any, Any], tuple[Any, float]]:
    """Return an optimiser of the kernel's parameters (logarithms: signal, lengths, noise), priors included."""
    from scipy.optimize import minimize

    def optimise(negative: Callable[..., tuple[float, Array]], start: Array, bounds: Array) -> tuple[Array, float]:
        lengths = slice(1, len(start) - 1)

        def loss(theta: Array) -> tuple[float, Array]:
            value, slope = negative(theta, eval_gradient=True)
            off = (theta[lengths] - center) / _SPREAD
            slope = slope.copy()
            slope[lengths] += off / _SPREAD
            return float(value) + 0.5 * float(off @ off), slope

        found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": MAX_FIT})
        return found.x, float(found.fun)

    return optimise
