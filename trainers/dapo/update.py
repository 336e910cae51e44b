"""The policy update: mini-batches of prompts, micro-batches by token budget, AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dapo.batch import TrainBatch
from dapo.config import ActorConfig, Config, OptimConfig
from dapo.errors import NonFinite
from dapo.loss import clipped_loss, token_weights
from dapo.model import Policy, response_logprobs


@dataclass(slots=True)
class MiniBatch:
    """What one optimiser step trains on: positions in the batch, and what each token weighs."""

    indices: list[int]
    weights: list[Tensor]
    """One [R] float32 each."""
    tokens: int
    """Unmasked tokens."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Metrics of an update, and what its cost is counted from."""

    metrics: dict[str, float]
    optimizer_steps: int
    """0: everything was masked, and the update was skipped."""
    extra_forward: bool
    """Log-probabilities were computed in a pass of their own."""


def make_optimizer(policy: Policy, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over all parameters, in one fused kernel."""
    return torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(config: OptimConfig, step: int) -> float:
    """Learning rate of update `step` (1, 2, …): linear over `lr_warmup_steps`, then constant."""
    return config.lr * min(1.0, step / max(config.lr_warmup_steps, 1))


def policy_update(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: TrainBatch, config: Config, step: int
) -> UpdateResult:
    """Run `ppo_epochs` passes of mini-batch steps over a batch (DAPO Eq. 8, Algorithm 1 lines 9-11).

    The gradient doesn't depend on how a mini-batch is split into micro-batches. A mini-batch in which every
    token is masked takes no step.

    A carried response was drawn from an earlier policy, so its old log-probs are those of its generation: the
    ratio is then the importance weight that makes the gradient about the present policy, and the clip bounds
    how far off-policy it may count. Recomputed log-probs would make the ratio 1, as if it were on-policy.

    Args:
        policy: trained in place.
        optimizer: AdamW over the policy's parameters.
        batch: at least one sequence.
        config: `actor`, `rollout.temperature` and batch sizes.
        step: number of this update, from 1, for the learning rate.

    Raises:
        NonFinite: a log-prob, loss or gradient is NaN or infinite. The parameters are as before that step.
    """
    rate = learning_rate(config.actor.optim, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    minis = list(mini_batches(batch, config.mini_batch_size, config.actor))
    # With a single step the policy is still the one that the old log-probs are about: no pass of their own.
    on_policy = len(minis) == 1 and config.actor.ppo_epochs == 1
    old_logprobs = None if on_policy else compute_logprobs(policy, batch, config)
    update = _Update(policy, optimizer, batch, config, old_logprobs)
    for mini in minis * config.actor.ppo_epochs:
        if mini.tokens:
            update.step(mini)
    return UpdateResult(update.totals.metrics() | {"actor/lr": rate}, update.totals.steps, not on_policy)


def mini_batches(batch: TrainBatch, prompts: int, config: ActorConfig) -> Iterator[MiniBatch]:
    """Split a batch into runs of whole groups, `prompts` each; the last may be smaller."""
    start = 0
    for first in range(0, len(batch.group_sizes), prompts):
        stop = start + sum(batch.group_sizes[first : first + prompts])
        masks = batch.masks[start:stop]
        yield MiniBatch(
            indices=list(range(start, stop)),
            weights=token_weights(masks, config.loss_agg_mode),
            tokens=sum(map(sum, masks)),
        )
        start = stop


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Pack sequences into micro-batches of at most `budget` tokens, longest first.

    A sequence that is longer than the budget gets a micro-batch of its own.

    Args:
        lengths: tokens of each sequence.
        budget: `ppo_max_token_len_per_gpu`.

    Returns:
        Positions in `lengths`, each once.
    """
    packed: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not packed or lengths[index] > room:
            packed.append([])
            room = budget
        packed[-1].append(index)
        room -= lengths[index]
    return packed


def compute_logprobs(policy: Policy, batch: TrainBatch, config: Config) -> list[Tensor]:
    """Log-probabilities of all responses under the policy as it is: B tensors [R], without gradient."""
    found: list[Tensor | None] = [None] * len(batch.sequences)
    with torch.no_grad():
        for micro in micro_batches(sequence_lengths(batch), config.actor.ppo_max_token_len_per_gpu):
            sequences = [batch.sequences[index] for index in micro]
            logprobs, _ = response_logprobs(policy.model, sequences, config.rollout.temperature)
            parts = torch.split(logprobs, [len(response) for _, response in sequences])
            for index, part in zip(micro, parts, strict=True):
                found[index] = part
    return [part for part in found if part is not None]


def sequence_lengths(batch: TrainBatch) -> list[int]:
    """Tokens of each sequence, prompt and response."""
    return [len(prompt) + len(response) for prompt, response in batch.sequences]


class _Totals:
    """Sums over an update's tokens: its metrics are means over tokens, not over micro-batches."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.tokens = 0.0
        self.steps = 0
        self.loss = 0.0
        self.grad_norm = 0.0
        self.mismatch = 0.0

    def add(self, values: dict[str, Tensor], mask: Tensor) -> None:
        """Add masked sums of [T] values; one transfer from the device for all."""
        sums = torch.stack([*((value * mask).sum() for value in values.values()), mask.sum()]).tolist()
        self.tokens += sums.pop()
        for name, value in zip(values, sums, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """Means by metric name; nothing but a zero loss if no step was taken."""
        if self.steps == 0:
            return {"actor/pg_loss": 0.0, "actor/grad_norm": 0.0, "actor/optimizer_steps": 0.0}
        return {name: value / self.tokens for name, value in self.sums.items()} | {
            "actor/pg_loss": self.loss / self.steps,
            "actor/grad_norm": self.grad_norm / self.steps,
            "actor/optimizer_steps": float(self.steps),
            "rollout/logprob_diff_max": self.mismatch,
        }


@dataclass(slots=True)
class _Update:
    """One update in progress: what its steps share."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    batch: TrainBatch
    config: Config
    old_logprobs: list[Tensor] | None
    """B x [R] log-probs before the update; None: the policy's own, as it is."""
    totals: _Totals = field(default_factory=_Totals)

    def step(self, mini: MiniBatch) -> None:
        """Accumulate the gradient of one mini-batch over its micro-batches, and step."""
        self.optimizer.zero_grad(set_to_none=True)
        lengths = sequence_lengths(self.batch)
        budget = self.config.actor.ppo_max_token_len_per_gpu
        loss = 0.0
        for packed in micro_batches([lengths[index] for index in mini.indices], budget):
            loss += self._backward(mini, packed)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.config.actor.grad_clip).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFinite(
                f"actor/pg_loss, actor/grad_norm: got {loss}, {norm}; need finite numbers; "
                "lower actor.optim.lr, or set model.dtype: float32"
            )
        self.optimizer.step()
        self.totals.steps += 1
        self.totals.loss += loss
        self.totals.grad_norm += norm

    def _backward(self, mini: MiniBatch, packed: list[int]) -> float:
        """Add one micro-batch's share of the gradient, and return its share of the policy loss."""
        actor = self.config.actor
        indices = [mini.indices[place] for place in packed]
        sequences = [self.batch.sequences[index] for index in indices]
        logprobs, entropy = response_logprobs(self.policy.model, sequences, self.config.rollout.temperature)
        device = logprobs.device
        old = logprobs.detach()
        if self.old_logprobs is not None:
            old = torch.cat([self.old_logprobs[index] for index in indices])
        rollout = torch.tensor([x for index in indices for x in self.batch.rollout_logprobs[index]], device=device)
        weights = torch.cat([mini.weights[place] for place in packed]).to(device)
        sizes = torch.tensor([len(response) for _, response in sequences], device=device)
        if any(self.batch.carried):
            carried = torch.tensor([self.batch.carried[index] for index in indices], device=device)
            old = torch.where(carried.repeat_interleave(sizes), rollout, old)
        advantages = torch.tensor([self.batch.advantages[index] for index in indices], device=device)
        clips = clipped_loss(
            logprobs,
            old,
            advantages.repeat_interleave(sizes),
            clip_ratio_low=actor.clip_ratio_low,
            clip_ratio_high=actor.clip_ratio_high,
            clip_ratio_c=actor.clip_ratio_c,
        )
        loss = policy_loss = (clips.loss * weights).sum()
        if actor.entropy_coeff:
            loss = policy_loss - actor.entropy_coeff * (entropy * weights).sum()
        torch.autograd.backward(loss)
        mismatch = (old - rollout).abs()
        self.totals.add(
            {
                "actor/entropy": entropy.detach(),
                "actor/pg_clipfrac": clips.clipped,
                "actor/pg_clipfrac_lower": clips.clipped_lower,
                "actor/ppo_kl": -clips.log_ratio.detach(),
                "rollout/logprob_diff_mean": mismatch,
            },
            weights > 0,
        )
        self.totals.mismatch = max(self.totals.mismatch, (mismatch * (weights > 0)).max().item())
        return policy_loss.item()
