"""Truncated importance sampling: the engine that generates isn't the policy that is trained, bit for bit.

Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025; verl's
`algorithm.rollout_correction`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dapo.config import RolloutCorrectionConfig
from dapo.loss import MAX_LOG_RATIO, LossMode, TokenBatch

TINY = 1e-10
"""Added to a weight before its logarithm is taken, as in verl."""


def importance_weights(tokens: TokenBatch, rollout_logprobs: Tensor, config: RolloutCorrectionConfig) -> Tensor:
    """Return min(pi_old / pi_rollout, C) of each token, or of the sequence that it is in.

    Args:
        tokens: `old_logprobs` are the trainer's.
        rollout_logprobs: [T] the engine's, at generation.
        config: level and threshold C; `rollout_is` is set.

    Returns:
        [T], without gradient.
    """
    log_ratio = tokens.old_logprobs - rollout_logprobs
    if config.rollout_is == "sequence":
        sums = torch.segment_reduce(log_ratio * tokens.mask, "sum", lengths=tokens.lengths)
        log_ratio = sums.repeat_interleave(tokens.lengths)
    weights = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return weights.clamp(max=config.rollout_is_threshold)


def corrected_loss(loss: Tensor, weights: Tensor, tokens: TokenBatch, mode: LossMode) -> Tensor:
    """Weigh per-token losses [T]; `geo_mean` has one ratio a sequence, and takes the weights' geometric mean."""
    if mode == "geo_mean":
        return loss * tokens.sequence_means((weights + TINY).log()).exp()
    return loss * weights
