"""DAPO's loss as pure tensor functions over flat response tokens.

Every aggregation mode is a weight per token, computed once from the masks of a whole mini-batch
(`token_weights`). A micro-batch takes its slice of the weights, so that the sum over micro-batches is the
mini-batch's loss whatever the split, and a mini-batch in which everything is masked weighs nothing instead of
dividing zero by zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

AggregationMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before exp, as in verl."""


class ClippedLoss(NamedTuple):
    """Per-token loss, and where which clip was active; all [T]."""

    loss: Tensor
    clipped: Tensor
    """The ratio's clip decides the loss."""
    clipped_lower: Tensor
    """The dual clip decides the loss (negative advantages only)."""
    log_ratio: Tensor
    """log(pi / pi_old), clamped."""


def token_weights(masks: Sequence[Sequence[bool]], mode: AggregationMode) -> list[Tensor]:
    """Return the weight of each token's loss, for all sequences of one mini-batch over all ranks.

    With N unmasked tokens in S sequences that have any, and N_i in sequence i:

    - ``token-mean`` (DAPO Eq. 12): 1 / N
    - ``seq-mean-token-sum`` (Dr. GRPO): 1 / S
    - ``seq-mean-token-mean`` (GRPO, DAPO Eq. 5): 1 / (S * N_i)

    Args:
        masks: B x [R] bool.
        mode: how tokens are aggregated.

    Returns:
        B tensors [R] of float32; all zero when everything is masked.
    """
    tensors = [torch.tensor(mask, dtype=torch.float32) for mask in masks]
    counts = [sum(mask) for mask in masks]
    tokens, sequences = sum(counts), sum(count > 0 for count in counts)
    if tokens == 0:
        return tensors
    if mode == "token-mean":
        return [mask / tokens for mask in tensors]
    if mode == "seq-mean-token-sum":
        return [mask / sequences for mask in tensors]
    return [mask / (sequences * max(count, 1)) for mask, count in zip(tensors, counts, strict=True)]


def clipped_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
) -> ClippedLoss:
    """Clip-higher policy loss per token (DAPO Eq. 10), with the dual clip for negative advantages.

    loss = max(-A r, -A clip(r, 1 - low, 1 + high)), and at A < 0 no more than -A c (dual clip, arXiv
    1912.09729).

    Args:
        logprobs: [T] log pi of the sampled tokens, with gradient.
        old_logprobs: [T] the same before the update, without.
        advantages: [T].
        clip_ratio_low: epsilon_low.
        clip_ratio_high: epsilon_high.
        clip_ratio_c: c > 1.
    """
    log_ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    upper = torch.maximum(plain, clipped)
    bound = -advantages * clip_ratio_c
    negative = advantages < 0
    loss = torch.where(negative, torch.minimum(upper, bound), upper)
    return ClippedLoss(loss, clipped > plain, negative & (upper > bound), log_ratio)
