"""Estimates of the KL divergence between two policies from tokens that one of them sampled."""

from __future__ import annotations

from torch import Tensor

from dapo.config_section import KLEstimate

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0
"""Bounds of k3's log-ratio and of its value, as in verl."""


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, kind: KLEstimate) -> Tensor:
    """Estimate KL(pi || reference) from each sampled token (J. Schulman, "Approximating KL divergence", 2020).

    With d = log pi - log reference:

    - ``kl`` or ``k1``: d, unbiased, of either sign
    - ``abs``: |d|
    - ``mse`` or ``k2``: d^2 / 2
    - ``low_var_kl`` or ``k3``: exp(-d) + d - 1, unbiased, never negative

    The expected gradient of k1 is zero, k2's is that of KL(pi || reference), k3's that of KL(reference || pi). A
    ``+`` takes the value of the one and the gradient of k2.

    Args:
        logprobs: [T] of the policy that sampled, with or without gradient.
        reference_logprobs: [T] of the reference, without.
        kind: the estimate.

    Returns:
        [T].
    """
    difference = logprobs - reference_logprobs
    squared = 0.5 * difference.square()
    if kind in ("mse", "k2"):
        return squared
    if kind == "abs":
        return difference.abs()
    if kind.rstrip("+") in ("kl", "k1"):
        value = difference
    else:
        negative = (-difference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        value = (negative.exp() - negative - 1.0).clamp(-MAX_K3, MAX_K3)
    return squared - squared.detach() + value.detach() if kind.endswith("+") else value
