"""Dynamic sampling: groups are gathered over generation rounds until a batch is full, and every one is accounted for.

What DAPO's Algorithm 1 (arXiv 2503.14476, lines 4-8) leaves open is what happens to the groups that it doesn't
train on. Here each group, and each token, ends in one of these places: kept, filtered, surplus (dropped), held
(surplus that is carried to the next update) or stale (carried for too long).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dapo.batch import RolloutGroup
from dapo.config import AdaptiveConfig, Config
from dapo.filter_rule import FilterRule, check_metric, filter_rule, metric_values

LEAST_DRY_RUN = 512
"""Groups in a row without one to keep, before endless sampling may be called hopeless: a small set deserves luck."""


class RoundRequest(NamedTuple):
    """What a generation round is asked for."""

    size: int
    """Prompts to generate from."""
    missing: int
    """Groups that the batch still lacks."""
    rule: FilterRule | None
    """The rule as it stands."""


NextRound = Callable[[RoundRequest], Sequence[RolloutGroup]]
"""Generates and scores one round."""


@dataclass(slots=True)
class SampledBatch:
    """The groups to train on, and an account of every group and token that was generated for them."""

    groups: list[RolloutGroup] = field(default_factory=list)
    rounds: int = 0
    """Generation rounds."""
    generated: int = 0
    """Groups generated."""
    yields: list[float] = field(default_factory=list)
    """Share of each round's groups that the rule kept, as it stood."""
    all_right: int = 0
    """Groups in which every response is right."""
    all_wrong: int = 0
    filtered: int = 0
    """Groups that the rule dropped."""
    relaxed: int = 0
    """Groups that the rule dropped and that filled up the batch at the cap after all."""
    surplus: int = 0
    """Good groups beyond the batch, dropped too."""
    stale: int = 0
    """Carried groups that were too old to train on."""
    held: list[RolloutGroup] = field(default_factory=list)
    """Good groups beyond the batch, for the next update."""
    tokens_kept: int = 0
    """Sampled tokens in `groups`."""
    tokens_filtered: int = 0
    tokens_surplus: int = 0
    tokens_stale: int = 0
    tokens_pilot: int = 0
    """Of groups that ended with their pilot, whether filtered or surplus: counted here and nowhere else."""
    exhausted: bool = False
    """Short of groups at the cap."""
    lowered: int = 0
    """Times that the rule's bound has been lowered so far, earlier updates included."""

    def describe(self) -> str:
        """Counts in one line."""
        places = {"filtered": self.filtered, "surplus": self.surplus}
        extras = {"filled up with": self.relaxed, "held": len(self.held), "stale": self.stale}
        places |= {name: count for name, count in extras.items() if count}
        return (
            f"{len(self.groups)} groups kept of {self.generated} generated in {self.rounds} rounds "
            f"({self.all_right} all right, {self.all_wrong} all wrong, "
            f"{', '.join(f'{count} {name}' for name, count in places.items())}); tokens: {self.tokens_kept} kept, "
            f"{self.tokens_filtered} filtered, {self.tokens_surplus} surplus"
        )

    def metrics(self) -> dict[str, float]:
        """Scalars by metric name; no shares of what was generated if nothing was."""
        found = {
            "filter/rounds": float(self.rounds),
            "filter/groups": float(len(self.groups)),
            "filter/groups_generated": float(self.generated),
            "filter/groups_filtered": float(self.filtered),
            "filter/groups_relaxed": float(self.relaxed),
            "filter/groups_surplus": float(self.surplus),
            "filter/groups_stale": float(self.stale),
            "filter/groups_carried": float(sum(group.behind > 0 for group in self.groups)),
            "filter/groups_held": float(len(self.held)),
            "filter/exhausted": float(self.exhausted),
            "filter/lowered": float(self.lowered),
            "tokens/kept": float(self.tokens_kept),
            "tokens/filtered": float(self.tokens_filtered),
            "tokens/surplus": float(self.tokens_surplus),
            "tokens/stale": float(self.tokens_stale),
            "tokens/pilot": float(self.tokens_pilot),
            "tokens/held": float(sum(map(tokens_of, self.held))),
        }
        if self.generated:
            found |= {
                "filter/yield": (self.generated - self.filtered - self.relaxed) / self.generated,
                "filter/yield_min": min(self.yields),
                "filter/yield_max": max(self.yields),
                "filter/all_right": self.all_right / self.generated,
                "filter/all_wrong": self.all_wrong / self.generated,
            }
        return found


def tokens_of(group: RolloutGroup) -> int:
    """Tokens that the policy sampled for a group."""
    return sum(response.sampled_tokens for response in group.responses)


@dataclass(slots=True)
class Gathering:
    """How one batch is gathered: the rule, what bends it, and what becomes of the groups that aren't needed.

    The order of preference is fixed: carried groups (oldest first), then new ones as they are drawn. Neither
    looks at anything but the rule, so which good groups are trained on depends on the order of the prompts alone.
    """

    wanted: int
    """Groups in a full batch."""
    round_size: int
    """Prompts per round. Without a rule no more are asked for than are missing."""
    rule: FilterRule | None
    """None keeps every group."""
    metric: str = "acc"
    """What the rule reads."""
    max_rounds: int = 0
    """Most rounds; <= 0 is endless. Ignored without a rule, which can't run dry."""
    dry_run: int = 0
    """Endless sampling ends after so many groups in a row without one to keep; 0 never."""
    relax: bool = False
    """At the cap, fill up with the best of the filtered groups."""
    adaptive: AdaptiveConfig = field(default_factory=AdaptiveConfig)
    """Lowers the rule's bound late in the rounds."""
    surplus: Literal["drop", "carry"] = "drop"
    """What becomes of good groups beyond the batch."""
    max_staleness: int = 1
    """Updates that a carried group may be old."""

    @classmethod
    def of(cls, config: Config, prompts: int, step: int) -> Gathering:
        """Read a config for update `step`; `prompts` is the size of the training set."""
        settings = config.algorithm.filter_groups
        return cls(
            wanted=config.train_batch_size_at(step),
            round_size=config.gen_batch_size_at(step),
            rule=filter_rule(settings),
            metric=settings.metric,
            max_rounds=settings.max_num_gen_batches,
            dry_run=max(prompts, LEAST_DRY_RUN),
            relax=settings.on_exhausted == "relax",
            adaptive=settings.adaptive,
            surplus=settings.surplus,
            max_staleness=settings.surplus_max_staleness,
        )

    def explain(self, batch: SampledBatch) -> str:
        """Say why an exhausted batch isn't full, and what to do."""
        key = "algorithm.filter_groups.max_num_gen_batches"
        if self.max_rounds > 0:
            when, do = f"after {self.max_rounds} rounds", "raise the cap or rollout.n"
        else:
            when, do = f"but the last {self.dry_run} groups or more had none to keep", "raise rollout.n"
        return (
            f"{key}: {self.wanted} groups wanted {when}, but {batch.describe()}; "
            f"{do}, take easier data, or set on_exhausted: train_partial"
        )


def dynamic_sampling(
    next_round: NextRound,
    settings: Gathering,
    *,
    carried: Sequence[RolloutGroup] = (),
    lowered: int = 0,
) -> SampledBatch:
    """Gather groups that pass the rule, carrying a partial batch across generation rounds.

    Args:
        next_round: generates and scores a round.
        settings: how to gather.
        carried: surplus of earlier updates, oldest first.
        lowered: times that the rule's bound has been lowered in earlier updates.

    Returns:
        A full batch, or one marked `exhausted`, which may be empty.

    Raises:
        DapoError: no response has the metric.
    """
    gatherer = _Gatherer(settings, SampledBatch(lowered=lowered))
    gatherer.take_carried(carried)
    while gatherer.missing > 0 and not gatherer.out_of_rounds():
        gatherer.play(next_round)
    if settings.relax and gatherer.missing > 0:
        gatherer.fill_up()
    return gatherer.batch


class _Gatherer:
    """One gathering in progress."""

    def __init__(self, settings: Gathering, batch: SampledBatch) -> None:
        self.settings = settings
        self.batch = batch
        self.rule = settings.rule
        self.rejected: list[RolloutGroup] = []
        """Filtered groups of this update, kept only where something may want them back."""
        self.dry = 0
        """Groups in a row without one to keep."""
        self._lower(0)

    @property
    def missing(self) -> int:
        return self.settings.wanted - len(self.batch.groups)

    def out_of_rounds(self) -> bool:
        """Whether a batch that isn't full must do; says so in it."""
        settings, batch = self.settings, self.batch
        if self.rule is not None:
            at_cap = 0 < settings.max_rounds <= batch.rounds
            batch.exhausted = at_cap or (settings.max_rounds <= 0 < settings.dry_run <= self.dry)
        return batch.exhausted

    def take_carried(self, carried: Sequence[RolloutGroup]) -> None:
        """Start with the surplus of earlier updates; what is too old is dropped, what is too much is held on."""
        for group in carried:
            if group.behind > self.settings.max_staleness:
                self.batch.stale += 1
                self.batch.tokens_stale += tokens_of(group)
            else:
                self._keep(group)

    def play(self, next_round: NextRound) -> None:
        """Run one round, place its groups, and lower the bound if it is late and groups are still missing."""
        size = self.settings.round_size if self.rule is not None else min(self.settings.round_size, self.missing)
        groups = next_round(RoundRequest(size, self.missing, self.rule))
        self.batch.rounds += 1
        if self.rule is not None:
            check_metric(groups, self.settings.metric)
        if groups:
            self.batch.yields.append(sum(map(self._passes, groups)) / len(groups))
        for group in groups:
            self._count(group)
            self.dry += 1
            if group.pilot_only:
                self._end_pilot(group)
            elif self._passes(group):
                self.dry = 0
                self._keep(group)
            else:
                self._reject(group)
        adaptive, cap = self.settings.adaptive, self.settings.max_rounds
        if adaptive.enable and self.missing > 0 and cap > 0 and self.batch.rounds >= adaptive.start * cap:
            self._lower(1)

    def fill_up(self) -> None:
        """Take the filtered groups that are nearest to the rule, earlier ones first among equals."""
        ranked = sorted(filter(_has_gradient, self.rejected), key=self._shortfall)
        for group in ranked[: self.missing]:
            self.batch.relaxed += 1
            self._take_back(group)

    def _count(self, group: RolloutGroup) -> None:
        accuracies = [score.acc for score in group.scores]
        self.batch.generated += 1
        self.batch.all_right += min(accuracies) >= 1.0
        self.batch.all_wrong += max(accuracies) <= 0.0

    def _passes(self, group: RolloutGroup) -> bool:
        return self.rule is None or self.rule.keeps(metric_values(group, self.settings.metric))

    def _shortfall(self, group: RolloutGroup) -> float:
        return self.rule.shortfall(metric_values(group, self.settings.metric)) if self.rule is not None else 0.0

    def _keep(self, group: RolloutGroup) -> None:
        """Put a good group into the batch, or else where surplus goes."""
        tokens = tokens_of(group)
        if self.missing > 0:
            self.batch.groups.append(group)
            self.batch.tokens_kept += tokens
        elif self.settings.surplus == "carry":
            self.batch.held.append(group)
        else:
            self.batch.surplus += 1
            self.batch.tokens_surplus += tokens

    def _end_pilot(self, group: RolloutGroup) -> None:
        """A group that ended with its pilot was filtered, or wasn't needed any more."""
        self.batch.tokens_pilot += tokens_of(group)
        if self._passes(group):
            self.dry = 0
            self.batch.surplus += 1
        else:
            self.batch.filtered += 1

    def _reject(self, group: RolloutGroup) -> None:
        self.batch.filtered += 1
        self.batch.tokens_filtered += tokens_of(group)
        if self.settings.relax or self.settings.adaptive.enable:
            self.rejected.append(group)

    def _take_back(self, group: RolloutGroup) -> None:
        self.batch.filtered -= 1
        self.batch.tokens_filtered -= tokens_of(group)
        self._keep(group)

    def _lower(self, times: int) -> None:
        """Lower the bound; this update's filtered groups that pass the new one are as good as new ones."""
        adaptive = self.settings.adaptive
        if self.settings.rule is None or not adaptive.enable:
            return
        self.batch.lowered += times
        self.rule = self.settings.rule.lowered(self.batch.lowered, adaptive)
        passing = [group for group in self.rejected if self._passes(group)]
        self.rejected = [group for group in self.rejected if not self._passes(group)]
        for group in passing:
            self._take_back(group)


def _has_gradient(group: RolloutGroup) -> bool:
    rewards = [score.seq_reward for score in group.scores]
    return max(rewards) > min(rewards)
