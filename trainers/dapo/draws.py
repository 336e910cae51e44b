"""Drawing tokens: what distribution is drawn from, and one token per row by inverting its distribution function."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = 64
"""Top-p looks at this many tokens first; the whole vocabulary is sorted only if they hold too little mass."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from."""

    temperature: float
    """0 is greedy."""
    top_p: float
    """Nucleus mass, applied after top_k."""
    top_k: int
    """Candidates kept; <= 0 keeps all."""


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the distribution function.

    Args:
        logits: [N, vocab] float32.
        uniforms: [N] in [0, 1).
        sampling: temperature, then top_k, then top_p over what is left.

    Returns:
        (tokens [N], log-probabilities [N] under the truncated, renormalised distribution; 0 when greedy).
    """
    if sampling.temperature == 0.0:
        return logits.argmax(-1), torch.zeros_like(uniforms)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if sampling.top_k <= 0 and sampling.top_p >= 1.0:
        chosen, logprobs = _invert(logits.softmax(-1), uniforms)
        return chosen, logprobs
    probabilities, tokens = _truncate(logits, sampling)
    chosen, logprobs = _invert(probabilities, uniforms)
    return tokens.gather(1, chosen.unsqueeze(1)).squeeze(1), logprobs


def _truncate(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the candidates' probabilities [N, K], descending and 0 outside the nucleus, and their tokens [N, K]."""
    vocabulary = logits.shape[-1]
    size = min(sampling.top_k if sampling.top_k > 0 else CANDIDATES, vocabulary)
    values, tokens = logits.topk(size, -1)
    mass = values if sampling.top_k > 0 else logits
    probabilities = (values - mass.logsumexp(-1, keepdim=True)).exp()
    if sampling.top_k <= 0 and size < vocabulary and bool((probabilities.sum(-1) < sampling.top_p).any()):
        probabilities, tokens = logits.softmax(-1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    return probabilities.masked_fill(before >= sampling.top_p, 0.0), tokens


def _invert(probabilities: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index [N] at which the running sum passes `uniforms` of the total, and its log-probability [N]."""
    running = probabilities.cumsum(-1)
    total = running[:, -1:]
    # Just below the total, so that rounding never lands behind the last token that has any mass.
    aim = uniforms.unsqueeze(1) * (total * (1 - 1e-6))
    # Without NaN the bound is never met; with it, the log-probability is NaN, which the engine reports.
    chosen = torch.searchsorted(running, aim, right=True).clamp_max(running.shape[-1] - 1)
    return chosen.squeeze(1), (probabilities.gather(1, chosen) / total).log().squeeze(1)
