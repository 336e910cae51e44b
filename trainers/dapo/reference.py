"""The frozen reference: the policy that a run started from, and the KL to it in the reward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dapo.accounting import Segment
from dapo.batch import RolloutGroup
from dapo.config import Config
from dapo.kl import kl_estimate
from dapo.model import Policy
from dapo.packing import scored_segments
from dapo.update import compute_logprobs

FORWARD_PASSES = 2
"""Passes over all sequences that `penalise_divergence` takes: the policy's and the reference's."""


def penalise_divergence(
    groups: Sequence[RolloutGroup], policy: Policy, reference: Policy, config: Config
) -> Sequence[Segment]:
    """Note for each response what its distance from the reference takes off its reward (`Score.kl_penalty`).

    The penalty is beta times the sum over the response's sampled tokens of the KL estimate, at the trainer's own
    log-probabilities (InstructGPT, arXiv 2203.02155, Eq. 2; verl's `apply_kl_penalty`).

    Args:
        groups: scored groups.
        policy: as it generated them.
        reference: the frozen one.
        config: `algorithm.kl_penalty`, `algorithm.kl_ctrl`.

    Returns:
        What each of the passes computed.
    """
    sequences = [(group.prompt_ids, response.token_ids) for group in groups for response in group.responses]
    masks = [response.mask for group in groups for response in group.responses]
    scores = [score for group in groups for score in group.scores]
    current = compute_logprobs(policy, sequences, config)
    frozen = compute_logprobs(reference, sequences, config)
    for score, mask, logprobs, reference_logprobs in zip(scores, masks, current, frozen, strict=True):
        divergences = kl_estimate(logprobs, reference_logprobs, config.algorithm.kl_penalty)
        sampled = torch.tensor(mask, dtype=torch.bool, device=divergences.device)
        score.kl_penalty = config.algorithm.kl_ctrl.kl_coef * divergences[sampled].sum().item()
    return scored_segments(sequences, config, policy.world.dp.size)
