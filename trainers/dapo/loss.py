"""Policy losses as pure tensor functions over flat response tokens, and how tokens are aggregated.

Every aggregation mode is a weight per token, computed once from the masks of a whole mini-batch
(`token_weights`). A micro-batch takes its slice of the weights, so that the sum over micro-batches is the
mini-batch's loss whatever the split, and a mini-batch in which everything is masked weighs nothing instead of
dividing zero by zero. A loss is therefore one value per token, also where the paper states it per sequence:
each token of the sequence then has the sequence's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

AggregationMode = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"
]
LossMode = Literal["vanilla", "gspo", "cispo", "geo_mean"]
MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before exp, as in verl."""
MAX_SEQUENCE_LOG_RATIO = 10.0
"""The same for a sequence's ratio, from above only."""


class Clip(NamedTuple):
    """Bounds of the ratio."""

    low: float
    """epsilon_low."""
    high: float
    """epsilon_high."""
    dual: float
    """c > 1 of the dual clip; only the vanilla loss has one."""


class TokenBatch(NamedTuple):
    """The response tokens of a micro-batch, sequence after sequence."""

    logprobs: Tensor
    """[T] log pi of the sampled tokens, with gradient."""
    old_logprobs: Tensor
    """[T] the same before the update, without."""
    advantages: Tensor
    """[T]."""
    mask: Tensor
    """[T] float; 0 keeps a token out of the loss, and out of its sequence's ratio."""
    lengths: Tensor
    """[S] tokens of each sequence; sums to T."""

    def sequence_means(self, values: Tensor) -> Tensor:
        """Return for each token the mean of `values` [T] over its sequence's unmasked tokens; 0 if it has none."""
        sums = torch.segment_reduce(values * self.mask, "sum", lengths=self.lengths)
        counts = torch.segment_reduce(self.mask, "sum", lengths=self.lengths)
        return (sums / counts.clamp(min=1.0)).repeat_interleave(self.lengths)


class PolicyLoss(NamedTuple):
    """Per-token loss, and where which clip was active; all [T]."""

    loss: Tensor
    clipped: Tensor
    """The ratio's clip decides the loss."""
    clipped_lower: Tensor
    """The dual clip decides the loss (negative advantages only); in `geo_mean`, the clip at negative advantages."""
    log_ratio: Tensor
    """log(pi / pi_old) of the token."""


def token_weights(
    masks: Sequence[Sequence[bool]], mode: AggregationMode, scale_factor: float | None = None
) -> list[Tensor]:
    """Return the weight of each token's loss, for all sequences of one mini-batch over all ranks.

    With N unmasked tokens in S sequences that have any, and N_i in sequence i:

    - ``token-mean`` (DAPO Eq. 12): 1 / N
    - ``token-sum``: 1
    - ``seq-mean-token-sum``: 1 / S
    - ``seq-mean-token-sum-norm`` (Dr. GRPO, arXiv 2503.20783): 1 / (S * L) with a constant L
    - ``seq-mean-token-mean`` (GRPO, DAPO Eq. 5): 1 / (S * N_i)

    Args:
        masks: B x [R] bool.
        mode: how tokens are aggregated.
        scale_factor: L, needed for ``seq-mean-token-sum-norm`` only.

    Returns:
        B tensors [R] of float32; all zero when everything is masked.

    Raises:
        ValueError: ``seq-mean-token-sum-norm`` without a scale factor.
    """
    tensors = [torch.tensor(mask, dtype=torch.float32) for mask in masks]
    counts = [sum(mask) for mask in masks]
    tokens, sequences = sum(counts), sum(count > 0 for count in counts)
    length = 1.0
    if mode == "seq-mean-token-sum-norm":
        if scale_factor is None:
            raise ValueError("seq-mean-token-sum-norm needs a scale factor")
        length = scale_factor
    if tokens == 0 or mode == "token-sum":
        return tensors
    if mode == "token-mean":
        return [mask / tokens for mask in tensors]
    if mode == "seq-mean-token-mean":
        return [mask / (sequences * max(count, 1)) for mask, count in zip(tensors, counts, strict=True)]
    return [mask / (sequences * length) for mask in tensors]


def vanilla_loss(tokens: TokenBatch, clip: Clip) -> PolicyLoss:
    """Clip-higher policy loss per token (DAPO Eq. 10), with the dual clip for negative advantages.

    loss = max(-A r, -A clip(r, 1 - low, 1 + high)), and at A < 0 no more than -A c (dual clip, arXiv
    1912.09729).
    """
    advantages = tokens.advantages
    log_ratio = (tokens.logprobs - tokens.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    plain, clipped = _clipped(log_ratio.exp(), advantages, clip)
    upper = torch.maximum(plain, clipped)
    bound = -advantages * clip.dual
    negative = advantages < 0
    loss = torch.where(negative, torch.minimum(upper, bound), upper)
    return PolicyLoss(loss, clipped > plain, negative & (upper > bound), log_ratio)


def gspo_loss(tokens: TokenBatch, clip: Clip) -> PolicyLoss:
    """Group sequence policy optimisation in its token form (GSPO-token, arXiv 2507.18071, Eq. 13-14).

    The ratio is the sequence's, s_i = exp(mean_t log r_t), with the gradient of the token's own log-prob; the
    value and the clip are the same for all tokens of a sequence. Equal to GSPO (Eq. 5) under
    ``seq-mean-token-mean``. The paper's clips are far narrower than a token's: 3e-4 and 4e-4.
    """
    log_ratio = tokens.logprobs - tokens.old_logprobs
    sequence = tokens.sequence_means(log_ratio.detach())
    own = tokens.logprobs - tokens.logprobs.detach()
    ratio = (own + sequence).clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    plain, clipped = _clipped(ratio, tokens.advantages, clip)
    return PolicyLoss(torch.maximum(plain, clipped), clipped > plain, torch.zeros_like(plain), log_ratio)


def cispo_loss(tokens: TokenBatch, clip: Clip) -> PolicyLoss:
    """Clipped importance weights with a stopped gradient (CISPO, MiniMax-M1, arXiv 2506.13585, Eq. 4-5).

    loss = -stop(clip(r, 1 - low, 1 + high)) A log pi: every token keeps a gradient, also where its ratio is
    clipped. The paper has no lower clip; a `clip_ratio_low` near 1 comes to that.
    """
    log_ratio = (tokens.logprobs - tokens.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.detach().exp()
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    loss = -bounded * tokens.advantages * tokens.logprobs
    return PolicyLoss(loss, bounded != ratio, torch.zeros_like(ratio), log_ratio)


def geo_mean_loss(tokens: TokenBatch, clip: Clip) -> PolicyLoss:
    """Geometric-mean policy optimisation with its token-level clip (GMPO, arXiv 2507.20673).

    loss_i = -A_i exp(mean_t clip(log r_t)), where the clip of the log-ratio to [-low, high] holds only where it
    lowers the objective. Each token has its sequence's value, so ``seq-mean-token-mean`` is the paper's loss
    (and verl's, which takes it whatever the mode). The paper's clips are 0.4 and 0.4, of the log-ratio.
    """
    log_ratio = tokens.logprobs - tokens.old_logprobs
    bounded = log_ratio.clamp(-clip.low, clip.high)
    sign = tokens.advantages.sign()
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * bounded)
    loss = -tokens.advantages * tokens.sequence_means(pessimistic).clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    clipped = bounded != log_ratio
    return PolicyLoss(loss, clipped & (sign > 0), clipped & (sign < 0), log_ratio)


LOSSES: dict[LossMode, Callable[[TokenBatch, Clip], PolicyLoss]] = {
    "vanilla": vanilla_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
    "geo_mean": geo_mean_loss,
}
"""`actor.policy_loss.loss_mode`, by verl's names."""


def _clipped(ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """Return the loss [T] with the plain ratio and with the clipped one."""
    return -advantages * ratio, -advantages * ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
