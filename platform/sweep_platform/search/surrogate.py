"""A Gaussian process for one objective, with the measured noise of each observation.

Matérn-5/2 kernel with one length scale a coordinate, and noise beside the measured one (Rasmussen and Williams 2006,
equations 2.25, 2.26 and 5.9). The length scales have log-normal priors that grow with the root of the dimension (arXiv
2402.02229), since maximum likelihood overfits a dozen of them to a dozen trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_SPREAD = math.sqrt(3.0)
"""Standard deviation of the logarithm of a length scale, a priori."""
_LENGTHS, _NOISES, _SCALES = (1e-2, 1e2), (1e-5, 1.0), (1e-2, 1e2)
"""Bounds of length scales, noise variance and signal variance, for standardised values."""
MAX_FIT = 60
"""Steps of the optimiser of the kernel's parameters."""
FITTED = 96
"""Observations that the kernel's parameters are fitted to; of more, so many spread evenly over them."""
_JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class Kernel:
    """The prior covariance of standardised values."""

    scale: float
    """Variance."""
    lengths: Array
    """[D] length scales."""
    noise: float
    """Variance of the noise that isn't measured."""

    def __call__(self, left: Array, right: Array) -> Array:
        """Covariance [N, M] of the objective at points [N, D] and [M, D]."""
        root = _SQRT5 * _distances(left / self.lengths, right / self.lengths)
        return np.asarray(self.scale * (1 + root + root**2 / 3) * np.exp(-root))


_SQRT5 = math.sqrt(5.0)


def _distances(left: Array, right: Array) -> Array:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The model, fitted to standardised values."""

    kernel: Kernel
    points: Array
    """[N, D]."""
    values: Array
    """[N], standardised."""
    noise: Array
    """[N] variances of the values."""
    center: float
    scale: float
    _factor: Array
    """Cholesky factor [N, N], lower, of the covariance of the values."""
    _weights: Array
    """[N]: that covariance's inverse times the values."""

    @classmethod
    def fit(cls, points: Array, values: Array, noise: Array | None = None) -> Surrogate:
        """Fit to observations.

        Args:
            points: [N, D] in the unit cube.
            values: [N].
            noise: [N] known standard errors, in the unit of the values; more noise is inferred.
        """
        center, scale = float(values.mean()), float(values.std()) or 1.0
        standardised = (values - center) / scale
        known = np.zeros(len(values)) if noise is None else (noise / scale) ** 2
        some = np.unique(np.linspace(0, len(values) - 1, min(FITTED, len(values))).round().astype(int))
        kernel = _most_probable(points[some], standardised[some], known[some] + _JITTER)
        return cls._of(kernel, points, standardised, known + kernel.noise + _JITTER, (center, scale))

    @classmethod
    def _of(cls, kernel: Kernel, points: Array, values: Array, noise: Array, unit: tuple[float, float]) -> Surrogate:
        from scipy.linalg import cho_solve

        factor = np.asarray(np.linalg.cholesky(kernel(points, points) + np.diag(noise)), dtype=np.float64)
        weights = np.asarray(cho_solve((factor, True), values))
        return cls(kernel, points, values, noise, *unit, factor, weights)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation [N] of the objective itself, its noise left out."""
        from scipy.linalg import solve_triangular

        across = self.kernel(self.points, points)
        explained = solve_triangular(self._factor, across, lower=True)
        variance = np.maximum(self.kernel.scale - (explained**2).sum(0), 1e-10)
        return self._weights @ across * self.scale + self.center, np.sqrt(variance) * self.scale

    def believing(self, points: Array) -> Surrogate:
        """The model as if its own predictions at `points` had been observed: they hold no surprise any more."""
        if not len(points):
            return self
        believed = self._weights @ self.kernel(self.points, points)
        return self._of(
            self.kernel,
            np.concatenate((self.points, points)),
            np.concatenate((self.values, believed)),
            np.concatenate((self.noise, np.full(len(points), self.kernel.noise + _JITTER))),
            (self.center, self.scale),
        )


def _most_probable(points: Array, values: Array, known: Array) -> Kernel:
    """The kernel with the largest posterior density, from a start in the middle of the priors."""
    from scipy.linalg import cho_solve
    from scipy.optimize import minimize

    width, identity = points.shape[1], np.eye(len(points))
    center = math.log(0.5 * math.sqrt(width))
    squares = np.square(points.T[:, :, None] - points.T[:, None, :]).reshape(width, -1)

    def loss(theta: Array) -> tuple[float, Array]:
        """Negative log density of the logarithms (scale, lengths, noise), and its slope."""
        scale, inverse_squares, noise = math.exp(theta[0]), np.exp(-2 * theta[1:-1]), math.exp(theta[-1])
        root = _SQRT5 * np.sqrt(inverse_squares @ squares).reshape(identity.shape)
        decay = scale * np.exp(-root)
        signal = decay * (1 + root + root**2 / 3)
        try:
            factor = np.linalg.cholesky(signal + np.diag(known + noise))
        except np.linalg.LinAlgError:
            return 1e25, np.zeros(len(theta))
        inverse = cho_solve((factor, True), identity)
        weights = inverse @ values
        pull = np.outer(weights, weights) - inverse
        off = (theta[1:-1] - center) / _SPREAD
        by_length = squares @ (pull * decay * (1 + root)).ravel() * inverse_squares * (5 / 6)
        slope = -np.concatenate(([0.5 * (pull * signal).sum()], by_length, [0.5 * noise * np.trace(pull)]))
        slope[1:-1] += off / _SPREAD
        fit = 0.5 * values @ weights + np.log(np.diag(factor)).sum()
        return float(fit + 0.5 * off @ off), slope

    start = np.array([0.0, *[center] * width, math.log(1e-2)])
    bounds = np.log([_SCALES, *[_LENGTHS] * width, _NOISES])
    theta = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": MAX_FIT}).x
    return Kernel(math.exp(theta[0]), np.exp(theta[1:-1]), math.exp(theta[-1]))
