"""Group-relative advantages (DAPO Eq. 9), in a form that is exactly zero for equal rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from dapo.batch import RolloutGroup, TrainBatch

EPSILON = 1e-6
"""Added to the standard deviation, as in verl."""
Estimator = Literal["grpo", "rloo"]


def relative_advantages(
    rewards: Sequence[float], *, estimator: Estimator = "grpo", normalize: bool = True
) -> list[float]:
    """Return how far each reward of one group lies above the others.

    ``grpo`` (DAPO Eq. 9) compares with the group's mean, ``rloo`` (arXiv 2402.14740) with the mean of the other
    G - 1 responses, which is G / (G - 1) times as far.

    Rewards are first taken relative to one of them. Equal rewards then give differences, a mean and
    advantages of exactly zero, where mean(0.1, 0.1, 0.1) rounds to something that is not 0.1 and leaves
    phantom advantages. The variance is a sum of squares, never E[x^2] - E[x]^2, so that it can't cancel.

    Args:
        rewards: [G] one reward a response.
        estimator: what is compared with.
        normalize: divide by the sample standard deviation (GRPO); off gives Dr. GRPO's advantage. Only for
            ``grpo``.

    Returns:
        [G] advantages. A group of one has advantage zero.
    """
    size = len(rewards)
    if size < 2:
        return [0.0] * size
    relative = [reward - rewards[0] for reward in rewards]
    mean = math.fsum(relative) / size
    centered = [value - mean for value in relative]
    if estimator == "rloo":
        return [value * size / (size - 1) for value in centered]
    if not normalize:
        return centered
    std = math.sqrt(math.fsum(value * value for value in centered) / (size - 1))
    return [value / (std + EPSILON) for value in centered]


def group_relative_advantages(
    groups: Sequence[RolloutGroup], *, estimator: Estimator = "grpo", normalize: bool, overlong_filtering: bool
) -> TrainBatch:
    """Turn scored groups into the batch that the update takes, responses of a group side by side.

    Args:
        groups: scored groups; `Score.seq_final_reward` is the reward.
        estimator: see `relative_advantages`.
        normalize: see `relative_advantages`.
        overlong_filtering: mask responses that were cut at the length limit out of the loss. They still count
            in their group's mean: the filter hides a noisy reward from the gradient, not from the baseline.
    """
    batch = TrainBatch()
    for group in groups:
        rewards = [score.seq_final_reward for score in group.scores]
        advantages = relative_advantages(rewards, estimator=estimator, normalize=normalize)
        batch.group_sizes.append(len(group.responses))
        for response, advantage in zip(group.responses, advantages, strict=True):
            trained = response.finished or not overlong_filtering
            batch.sequences.append((group.prompt_ids, response.token_ids))
            batch.advantages.append(advantage)
            batch.masks.append(response.mask if trained else [False] * len(response.token_ids))
            batch.rollout_logprobs.append(response.rollout_logprobs)
            batch.carried.append(group.behind > 0)
    return batch
