"""How many generation rounds dynamic sampling will take, by the pass rate of the prompts, before anything is run.

A group is kept if its responses are neither all right nor all wrong: 1 - p^G - (1 - p)^G of the groups, if each
response is right with probability p. With few responses to hard prompts nearly every group is thrown away, and the cap
on the rounds is hit (NVIDIA-NeMo/RL PR#3154: G = 8 hit a cap of 10, G = 16 cured it).
"""

from __future__ import annotations

import math

from dapo.config import Config

PASS_RATES = (0.03, 0.1, 0.5)
"""Hard, medium, and as good as it gets."""


def mixed_share(rate: float, responses: int) -> float:
    """Share of groups of so many responses that are mixed, where each is right with probability `rate`."""
    return 1.0 - rate**responses - (1.0 - rate) ** responses


def mixed_share_between(rate: float, mixed_of_two: float, responses: int) -> float:
    """The same where problems differ: pass rates are taken as Beta distributed, with the moments that were measured.

    Args:
        rate: mean pass rate.
        mixed_of_two: share of pairs of responses to one problem of which one is right: 2 E[p (1 - p)].
        responses: of a group.
    """
    spread = rate * (1.0 - rate) - mixed_of_two / 2.0  # the variance of p, by E[p^2] = E[p] - E[p (1 - p)]
    if spread <= 0.0 or rate in (0.0, 1.0):
        return mixed_share(rate, responses)
    total = rate * (1.0 - rate) / spread - 1.0
    if total <= 0.0:
        return 0.0
    right, wrong = rate * total, (1.0 - rate) * total

    def same(weight: float) -> float:
        return math.prod((weight + place) / (total + place) for place in range(responses))

    return 1.0 - same(right) - same(wrong)


def expected_rounds(config: Config, rate: float) -> float:
    """Rounds until a full batch is mixed groups; a group passes by its pilot's responses if there are pilots."""
    kept = config.gen_batch_size * mixed_share(rate, config.rollout.pilot_n or config.rollout.n)
    return max(1.0, config.data.train_batch_size / kept)


def describe_rounds(config: Config) -> str:
    """The expected rounds in one line; empty where the filter keeps something else than mixed groups, or nothing."""
    filtering = config.algorithm.filter_groups
    wide = filtering.statistic == "spread" or (filtering.threshold, filtering.upper) == (0.0, 1.0)
    if not filtering.enable or not wide or filtering.metric not in ("acc", "score") or config.rollout.n < 2:
        return ""
    rounds = [(rate, expected_rounds(config, rate)) for rate in PASS_RATES]
    cap = filtering.max_num_gen_batches
    over = any(count > cap > 0 for _, count in rounds)
    return (
        f"rounds per batch, of {config.gen_batch_size} prompts x {config.rollout.n} responses, about "
        + ", ".join(f"{count:.1f} at a pass rate of {rate:.0%}" for rate, count in rounds)
        + f" (at most {cap})" * (cap > 0)
        + "; where it takes more, raise rollout.n" * over
    )
