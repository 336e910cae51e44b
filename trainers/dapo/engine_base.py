"""What every rollout engine is asked, and what it answers: tokens for rows, each with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dapo.draws import Sampling
from dapo.errors import NonFinite


class Rows(NamedTuple):
    """What N responses are sampled from: each has its own random numbers and its own limit."""

    prompts: Sequence[Sequence[int]]
    """Token ids, each at least one."""
    owners: Tensor
    """[N] ascending index of each response's prompt; every prompt has one."""
    uniforms: Tensor
    """[N, R] in [0, 1), one per token."""
    limits: Tensor
    """[N] tokens per response, from 1 to R."""

    def wave(self, first: int, size: int) -> Rows:
        """Return `size` rows from the one at `first` on, with the prompts that they own."""
        rows = slice(first, first + size)
        owners, limits = self.owners[rows], self.limits[rows]
        prompts = self.prompts[int(owners[0]) : int(owners[-1]) + 1]
        return Rows(prompts, owners - owners[0], self.uniforms[rows, : int(limits.max())], limits)


class Sampled(NamedTuple):
    """One response's tokens."""

    token_ids: list[int]
    """At least one; the end token is the last, unless the limit came first."""
    logprobs: list[float]
    """Of each token under the distribution that it was drawn from; 0 when greedy."""


class RolloutEngine(Protocol):
    """Generates from a policy's weights as they were when it was made, or last told of them.

    What is sampled for a row depends on the weights, its prompt and its random numbers, and not on the other rows,
    their order, or how many are decoded at once, but for rounding.
    """

    def sample(self, rows: Rows, sampling: Sampling, eos_id: int) -> list[Sampled]:
        """Sample N responses in one turn each.

        Args:
            rows: their prompts, random numbers and limits.
            sampling: what to draw from.
            eos_id: token that ends a response.

        Raises:
            NonFinite: the model's numbers are NaN or infinite.
            DapoError: the engine is gone.
        """


def check_finite(numbers: Tensor) -> None:
    """See that a model's numbers are numbers.

    Raises:
        NonFinite: they are NaN or infinite.
    """
    if not bool(numbers.isfinite().all()):
        raise NonFinite(
            "generation: got NaN or infinite numbers from the model; need finite weights; "
            "start from another model or checkpoint"
        )


def cut(tokens: Tensor, logprobs: Tensor, limits: Tensor, eos_id: int) -> list[Sampled]:
    """Cut rows of tokens [N, R] and log-probabilities [N, R] behind their end token, or at their limits [N].

    Raises:
        NonFinite: the log-probabilities are NaN or infinite.
    """
    check_finite(logprobs)
    within = torch.arange(tokens.shape[1]) < limits.unsqueeze(1)
    ends = (tokens == eos_id) & within
    lengths = torch.where(ends.any(-1), ends.int().argmax(-1) + 1, limits).tolist()
    rows = zip(tokens.tolist(), logprobs.tolist(), lengths, strict=True)
    return [Sampled(ids[:length], scores[:length]) for ids, scores, length in rows]
