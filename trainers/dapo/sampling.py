"""Dynamic sampling (DAPO Eq. 11): which groups are trained on, and what the others cost.

`FilterRule` is the whole decision, on plain numbers, so that any backend can use it; `dynamic_sampling`
gathers groups over generation rounds until a batch is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dapo.batch import RolloutGroup, Score
from dapo.errors import DapoError, SamplingExhausted

KNOWN_METRICS = ("acc", "score", "seq_reward", "seq_final_reward")
"""Metrics that every grader provides."""


@dataclass(frozen=True, slots=True)
class FilterRule:
    """Keeps the groups that carry a gradient."""

    statistic: Literal["spread", "mean"] = "spread"
    threshold: float = 0.0
    upper: float = 1.0
    tolerance: float = 1e-6

    def keeps(self, values: Sequence[float]) -> bool:
        """Whether a group with these metric values, one a response, is trained on.

        A group in which any value is missing (NaN) is not comparable, and is not kept.
        """
        if not values or any(math.isnan(value) for value in values):
            return False
        if self.statistic == "spread":
            return max(values) - min(values) > self.tolerance
        return self.threshold < math.fsum(values) / len(values) < self.upper


def metric_value(score: Score, metric: str) -> float:
    """Read one metric at its documented stage; NaN where the reward function didn't return it.

    `acc` and `score` are read before shaping, `seq_reward` after the overlong penalty, `seq_final_reward`
    after the in-reward KL too.
    """
    if metric == "acc":
        return score.acc
    if metric == "score":
        return score.score
    if metric == "seq_reward":
        return score.seq_reward
    if metric == "seq_final_reward":
        return score.seq_final_reward
    return score.extra.get(metric, math.nan)


def check_metric(groups: Sequence[RolloutGroup], metric: str) -> None:
    """Refuse a metric that no response has.

    Raises:
        DapoError: names the metrics there are. Responses whose grading failed say nothing about them.
    """
    graded = [score for group in groups for score in group.scores if not score.failed]
    if metric in KNOWN_METRICS or not graded or any(metric in score.extra for score in graded):
        return
    available = [*KNOWN_METRICS, *sorted({key for score in graded for key in score.extra})]
    raise DapoError(
        f"algorithm.filter_groups.metric: got {metric!r}; need one of {available}; "
        "name one of them, or return this key from the reward function"
    )


@dataclass(slots=True)
class SampledBatch:
    """The groups to train on, and an account of every group and token that was generated for them."""

    groups: list[RolloutGroup] = field(default_factory=list)
    rounds: int = 0
    """Generation rounds."""
    generated: int = 0
    """Groups generated."""
    all_right: int = 0
    """Groups in which every response is right."""
    all_wrong: int = 0
    filtered: int = 0
    """Groups that the rule dropped."""
    surplus: int = 0
    """Good groups beyond the batch, dropped too."""
    tokens_kept: int = 0
    """Response tokens in `groups`."""
    tokens_filtered: int = 0
    tokens_surplus: int = 0
    exhausted: bool = False
    """Short of groups at the cap."""

    def describe(self) -> str:
        """Counts in one line."""
        return (
            f"{len(self.groups)} groups kept of {self.generated} generated in {self.rounds} rounds "
            f"({self.all_right} all right, {self.all_wrong} all wrong, {self.filtered} filtered, "
            f"{self.surplus} surplus); tokens: {self.tokens_kept} kept, {self.tokens_filtered} filtered, "
            f"{self.tokens_surplus} surplus"
        )

    def metrics(self) -> dict[str, float]:
        """Scalars by metric name."""
        generated = max(self.generated, 1)
        return {
            "filter/yield": (self.generated - self.filtered) / generated,
            "filter/rounds": float(self.rounds),
            "filter/all_right": self.all_right / generated,
            "filter/all_wrong": self.all_wrong / generated,
            "filter/groups": float(len(self.groups)),
            "filter/groups_generated": float(self.generated),
            "filter/groups_filtered": float(self.filtered),
            "filter/groups_surplus": float(self.surplus),
            "filter/exhausted": float(self.exhausted),
            "tokens/kept": float(self.tokens_kept),
            "tokens/filtered": float(self.tokens_filtered),
            "tokens/surplus": float(self.tokens_surplus),
        }


def tokens_of(group: RolloutGroup) -> int:
    """Response tokens of a group."""
    return sum(len(response.token_ids) for response in group.responses)


def dynamic_sampling(
    next_round: Callable[[int], Sequence[RolloutGroup]],
    wanted: int,
    *,
    round_size: int,
    rule: FilterRule | None,
    metric: str = "acc",
    max_rounds: int = 0,
    on_exhausted: Literal["error", "train_partial"] = "error",
) -> SampledBatch:
    """Gather `wanted` groups that pass `rule`, carrying a partial batch across generation rounds.

    Args:
        next_round: generates and scores so many prompts.
        wanted: groups in a full batch.
        round_size: prompts per round. Without a rule no more are asked for than are missing.
        rule: None keeps every group.
        metric: what the rule reads.
        max_rounds: most rounds; <= 0 is endless. Ignored without a rule, which can't run dry.
        on_exhausted: at the cap, raise, or return the partial (perhaps empty) batch.

    Raises:
        SamplingExhausted: still short at the cap and `on_exhausted` is ``error``; the message has the
            account.
        DapoError: no response has the metric.
    """
    batch = SampledBatch()
    while (missing := wanted - len(batch.groups)) > 0:
        if rule is not None and 0 < max_rounds <= batch.rounds:
            batch.exhausted = True
            break
        groups = next_round(round_size if rule is not None else min(round_size, missing))
        batch.rounds += 1
        if rule is not None:
            check_metric(groups, metric)
        for group in groups:
            _place(batch, group, wanted, rule, metric)
    if batch.exhausted and on_exhausted == "error":
        raise SamplingExhausted(
            f"algorithm.filter_groups.max_num_gen_batches: {wanted} groups wanted after {max_rounds} rounds, "
            f"but {batch.describe()}; raise the cap or rollout.n, take easier data, or set "
            "on_exhausted: train_partial"
        )
    return batch


def _place(batch: SampledBatch, group: RolloutGroup, wanted: int, rule: FilterRule | None, metric: str) -> None:
    """Count a group, and keep it, filter it or drop it as surplus."""
    accuracies = [score.acc for score in group.scores]
    batch.generated += 1
    batch.all_right += min(accuracies) >= 1.0
    batch.all_wrong += max(accuracies) <= 0.0
    tokens = tokens_of(group)
    if rule is not None and not rule.keeps([metric_value(score, metric) for score in group.scores]):
        batch.filtered += 1
        batch.tokens_filtered += tokens
    elif len(batch.groups) >= wanted:
        batch.surplus += 1
        batch.tokens_surplus += tokens
    else:
        batch.groups.append(group)
        batch.tokens_kept += tokens
