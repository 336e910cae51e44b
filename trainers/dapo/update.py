"""The policy update: mini-batches of prompts, micro-batches by token budget, AdamW."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo.batch import TrainBatch
from dapo.config import Config
from dapo.config_actor import OptimConfig
from dapo.errors import NonFinite
from dapo.kl import kl_estimate
from dapo.loss import LOSSES, Clip, PolicyLoss, TokenBatch
from dapo.model import Policy, response_logprobs
from dapo.packing import MiniBatch, Sequences, mini_batches, scoring_plan, training_plan
from dapo.parallel import Group
from dapo.rollout_correction import corrected_loss, importance_weights
from dapo.sharding import clip_gradients


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Metrics of an update, and what its cost is counted from."""

    metrics: dict[str, float]
    optimizer_steps: int
    """0: everything was masked, and the update was skipped."""
    forward_passes: int
    """Passes over the batch without gradient: for log-probabilities before the first step, and the reference's."""
    scoring_s: float
    """Seconds that they took."""


def make_optimizer(policy: Policy, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over all parameters that are trained, in one fused kernel."""
    return torch.optim.AdamW(
        [weight for weight in policy.model.parameters() if weight.requires_grad],
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(config: OptimConfig, step: int) -> float:
    """Learning rate of update `step` (1, 2, …): linear over `lr_warmup_steps`, then constant."""
    return config.lr * min(1.0, step / max(config.lr_warmup_steps, 1))


def policy_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    config: Config,
    step: int,
    *,
    reference: Policy | None = None,
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
        config: `actor`, `algorithm.rollout_correction`, `rollout.temperature` and batch sizes.
        step: number of this update, from 1, for the learning rate.
        reference: the frozen policy that `actor.use_kl_loss` measures from.

    Raises:
        NonFinite: a log-prob, loss or gradient is NaN or infinite. The parameters are as before that step.
        ValueError: `actor.use_kl_loss` without a reference.
    """
    rate = learning_rate(config.actor.optim, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    minis = list(mini_batches(batch, config))
    # With a single step the policy is still the one that the old log-probs are about: no pass of their own.
    on_policy = len(minis) == 1 and config.actor.ppo_epochs == 1
    update = _Update(policy, optimizer, batch, config)
    passes, start = 0, time.perf_counter()
    if any(mini.tokens for mini in minis):
        if not on_policy:
            update.old_logprobs = compute_logprobs(policy, batch.sequences, config)
            passes += 1
        if config.actor.use_kl_loss:
            if reference is None:
                raise ValueError("actor.use_kl_loss needs the reference policy")
            update.reference_logprobs = compute_logprobs(reference, batch.sequences, config)
            passes += 1
    scoring_s = time.perf_counter() - start
    for mini in minis * config.actor.ppo_epochs:
        if mini.tokens:
            update.step(mini)
    update.totals.add_up(policy.world.dp)
    return UpdateResult(update.totals.metrics() | {"actor/lr": rate}, update.totals.steps, passes, scoring_s)


def compute_logprobs(policy: Policy, sequences: Sequences, config: Config) -> list[Tensor]:
    """Log-probabilities of responses under a policy as it is: B tensors [R], without gradient.

    Args:
        policy: the one that is trained, or the reference; each process computes a part.
        sequences: B pairs (prompt tokens, response tokens).
        config: token budget and temperature.
    """
    lengths = [len(response) for _, response in sequences]
    shared, dp = config.actor.use_prefix_grouper, policy.world.dp
    found = list(torch.split(torch.zeros(sum(lengths), device=policy.model.head_weight.device), lengths))
    shortest = min(range(len(sequences)), key=lambda place: sum(map(len, sequences[place])), default=0)
    with torch.no_grad():
        for micro in scoring_plan(sequences, config, dp.size)[dp.rank]:
            chosen = [sequences[index] for index in micro or [shortest]]
            logprobs, _ = response_logprobs(policy.model, chosen, config.rollout.temperature, share_prompts=shared)
            parts = torch.split(logprobs, [len(response) for _, response in chosen])
            for index, part in zip(micro, parts, strict=False):
                found[index] = part
    return list(torch.split(dp.sum(torch.cat(found)), lengths)) if dp.size > 1 else found


class _Totals:
    """Sums over an update's tokens: its metrics are means over tokens, not over micro-batches."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
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

    def add_up(self, dp: Group) -> None:
        """Make this the sums over all processes."""
        if dp.size == 1 or not self.steps:
            return
        values = torch.tensor([*self.sums.values(), self.tokens], dtype=torch.float64)
        *sums, self.tokens = dp.sum(values.to(self.device)).tolist()
        self.sums = dict(zip(self.sums, sums, strict=True))
        self.mismatch = dp.most(torch.tensor(self.mismatch, device=self.device)).item()

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


@dataclass
class _Update:
    """One update in progress: what its steps share."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    batch: TrainBatch
    config: Config
    old_logprobs: list[Tensor] | None = None
    """B x [R] log-probs before the update; None: the policy's own, as it is."""
    reference_logprobs: list[Tensor] | None = None
    """B x [R] log-probs of the reference; None: no KL in the loss."""

    def __post_init__(self) -> None:
        self.totals = _Totals(self.policy.model.head_weight.device)

    def step(self, mini: MiniBatch) -> None:
        """Accumulate the gradient of one mini-batch over its micro-batches, and step."""
        self.optimizer.zero_grad(set_to_none=True)
        chosen, dp = [self.batch.sequences[index] for index in mini.indices], self.policy.world.dp
        parts = [self._backward(mini, packed) for packed in training_plan(chosen, self.config.actor, dp.size)[dp.rank]]
        loss = dp.sum(torch.stack(parts).double().sum()).item()
        norm = clip_gradients(self.policy.model.parameters(), self.config.actor.grad_clip)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFinite(
                f"actor/pg_loss, actor/grad_norm: got {loss}, {norm}; need finite numbers; "
                "lower actor.optim.lr, or set model.dtype: float32"
            )
        self.optimizer.step()
        self.totals.steps += 1
        self.totals.loss += loss
        self.totals.grad_norm += norm

    def _backward(self, mini: MiniBatch, packed: list[int]) -> Tensor:
        """Add one micro-batch's share of the gradient, and return its share of the policy loss.

        An empty one takes part in what the processes exchange, with a sequence that weighs nothing.
        """
        actor = self.config.actor
        places = packed or [min(range(len(mini.indices)), key=lambda place: len(mini.weights[place]))]
        indices = [mini.indices[place] for place in places]
        sequences = [self.batch.sequences[index] for index in indices]
        logprobs, entropy = response_logprobs(
            self.policy.model, sequences, self.config.rollout.temperature, share_prompts=actor.use_prefix_grouper
        )
        weights = torch.cat([mini.weights[place] for place in places]).to(logprobs.device) * bool(packed)
        tokens = self._tokens(indices, logprobs, weights)
        found, values = self._policy_loss(tokens, indices)
        loss = policy_loss = (found.loss * weights).sum()
        if actor.entropy_coeff:
            loss = policy_loss - actor.entropy_coeff * (entropy * weights).sum()
        if self.reference_logprobs is not None:
            reference = torch.cat([self.reference_logprobs[index] for index in indices])
            divergence = kl_estimate(logprobs, reference, actor.kl_loss_type)
            loss = loss + actor.kl_loss_coef * (divergence * weights).sum()
            values["actor/kl_loss"] = divergence.detach()
        torch.autograd.backward(loss)
        values["actor/entropy"] = entropy.detach()
        self.totals.add(values, weights > 0)
        return policy_loss.detach()

    def _tokens(self, indices: list[int], logprobs: Tensor, weights: Tensor) -> TokenBatch:
        """Gather what the policy loss reads of these sequences."""
        device = logprobs.device
        old = logprobs.detach()
        if self.old_logprobs is not None:
            old = torch.cat([self.old_logprobs[index] for index in indices])
        lengths = torch.tensor([len(self.batch.sequences[index][1]) for index in indices], device=device)
        if any(self.batch.carried):
            carried = torch.tensor([self.batch.carried[index] for index in indices], device=device)
            old = torch.where(carried.repeat_interleave(lengths), self._rollout_logprobs(indices, old), old)
        advantages = torch.tensor([self.batch.advantages[index] for index in indices], device=device)
        return TokenBatch(logprobs, old, advantages.repeat_interleave(lengths), (weights > 0).float(), lengths)

    def _rollout_logprobs(self, indices: list[int], otherwise: Tensor) -> Tensor:
        """[T] log-probs that these sequences were sampled with; where a token wasn't, or is masked, `otherwise`."""
        values = [value for index in indices for value in self.batch.rollout_logprobs[index]]
        read = [value for index in indices for value in self.batch.masks[index]]
        mask = torch.tensor(read, dtype=torch.bool, device=otherwise.device)
        return torch.where(mask, torch.tensor(values, device=otherwise.device), otherwise)

    def _policy_loss(self, tokens: TokenBatch, indices: list[int]) -> tuple[PolicyLoss, dict[str, Tensor]]:
        """Return the loss per token, corrected for the rollout's mismatch if that is on, and [T] metrics."""
        actor, correction = self.config.actor, self.config.algorithm.rollout_correction
        mode = actor.policy_loss.loss_mode
        found = LOSSES[mode](tokens, Clip(actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c))
        rollout = self._rollout_logprobs(indices, tokens.old_logprobs)
        mismatch = (tokens.old_logprobs - rollout).abs()
        self.totals.mismatch = max(self.totals.mismatch, (mismatch * tokens.mask).max().item())
        metrics = {
            "actor/pg_clipfrac": found.clipped,
            "actor/pg_clipfrac_lower": found.clipped_lower,
            "actor/ppo_kl": -found.log_ratio.detach(),
            "rollout/logprob_diff_mean": mismatch,
        }
        if correction.rollout_is is not None:
            importance = importance_weights(tokens, rollout, correction)
            found = found._replace(loss=corrected_loss(found.loss, importance, tokens, mode))
            metrics["rollout/is_weight_mean"] = importance
            metrics["rollout/is_truncated"] = (importance >= correction.rollout_is_threshold).float()
        return found, metrics
