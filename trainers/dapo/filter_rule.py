"""Which groups are trained on (DAPO Eq. 11): the whole decision, on plain numbers, so that any backend can use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dapo.batch import RolloutGroup, Score
from dapo.config import AdaptiveConfig, FilterGroupsConfig
from dapo.errors import DapoError

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

    def shortfall(self, values: Sequence[float]) -> float:
        """How far a group is from being kept, >= 0; infinite if it is not comparable."""
        if not values or any(math.isnan(value) for value in values):
            return math.inf
        if self.statistic == "spread":
            return max(self.tolerance - (max(values) - min(values)), 0.0)
        mean = math.fsum(values) / len(values)
        return max(self.threshold - mean, mean - self.upper, 0.0)

    @property
    def bound(self) -> float:
        """What an adaptive rule lowers: the mean's threshold, or the spread's tolerance."""
        return self.tolerance if self.statistic == "spread" else self.threshold

    def lowered(self, times: int, settings: AdaptiveConfig) -> FilterRule:
        """Return the rule with its bound multiplied `times` times by `factor`, but not below `floor`.

        A bound that starts below the floor stays where it is.
        """
        bound = min(self.bound, max(settings.floor, self.bound * settings.factor**times))
        if self.statistic == "spread":
            return replace(self, tolerance=bound)
        return replace(self, threshold=bound)


def filter_rule(settings: FilterGroupsConfig) -> FilterRule | None:
    """Return the rule that a config describes; None if filtering is off."""
    if not settings.enable:
        return None
    return FilterRule(settings.statistic, settings.threshold, settings.upper, settings.tolerance)


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


def metric_values(group: RolloutGroup, metric: str) -> list[float]:
    """Read one metric of every response of a group."""
    return [metric_value(score, metric) for score in group.scores]


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
