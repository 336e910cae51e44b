"""Which prompts a generation round asks about: the next ones in a shuffled order, or those worth asking by history.

DAPO draws prompts blindly and throws away the groups that turn out all right or all wrong. `thompson` spends the
round on prompts whose pass rate is likely near `target` instead: a Beta posterior for each prompt, one draw from
each, the nearest draws win (MoPPS, arXiv 2507.04632; compare GRESO, arXiv 2506.02177). Two things differ from
MoPPS. Prompts that were never asked about compete through draws from the prior, as many as the round has places:
all of a large set at once would always hold some draw nearer to the target than what is known. And a share of each
round, the exploration floor, always follows the shuffled order, so that no prompt is given up for good.

What it changes: prompts are no longer drawn uniformly, so the objective weighs the prompts that the policy solves
about half of the time more than the data does. Within a prompt nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dapo.config import SelectionConfig
from dapo.seeding import seed_for

if TYPE_CHECKING:
    from dapo.batch import Score
    from dapo.data import Prompts


@dataclass(slots=True)
class Evidence:
    """What is known of one prompt, as of update `step`."""

    right: float
    """Right responses, older ones discounted."""
    wrong: float
    step: int
    """Updates done when the prompt was last asked about."""


@dataclass(slots=True)
class History:
    """Evidence by a prompt's position in the training set."""

    evidence: dict[int, Evidence] = field(default_factory=dict)

    def observe(self, index: int, scores: Sequence[Score], step: int, forgetting: float) -> None:
        """Add the responses to one prompt, given by the policy of update `step`.

        What was known is discounted by `forgetting` per update since: the policy has changed.
        """
        right = math.fsum(min(max(score.acc, 0.0), 1.0) for score in scores)
        known = self.evidence.get(index, Evidence(0.0, 0.0, step))
        weight = forgetting ** (step - known.step)
        self.evidence[index] = Evidence(known.right * weight + right, known.wrong * weight + len(scores) - right, step)

    def rank(self, places: int, step: int, settings: SelectionConfig, rng: np.random.Generator) -> list[int]:
        """Return the prompts that win a place by Thompson sampling, best first, without those of this update.

        Places that a draw from the prior wins are left to prompts that nothing is known of.

        Args:
            places: prompts to choose.
            step: updates done.
            settings: `target` and `forgetting`.
            rng: source of the draws.
        """
        known = [(index, item) for index, item in self.evidence.items() if item.step < step]
        weights = np.array([settings.forgetting ** (step - item.step) for _, item in known])
        right = np.array([item.right for _, item in known]) * weights
        wrong = np.array([item.wrong for _, item in known]) * weights
        # The prior Beta(1, 1) is all there is for the last `places` entries.
        none = np.zeros(places)
        rates = rng.beta(1.0 + np.concatenate((right, none)), 1.0 + np.concatenate((wrong, none)))
        best = np.argsort(np.abs(rates - settings.target), kind="stable")[:places]
        return [known[place][0] for place in best if place < len(known)]


def select(
    prompts: Prompts,
    settings: SelectionConfig,
    history: History,
    *,
    count: int,
    position: int,
    step: int,
    round_number: int,
    seed: int,
) -> tuple[list[int], int]:
    """Choose the prompts of one round.

    Args:
        prompts: the training set.
        settings: the strategy.
        history: what is known; not changed.
        count: prompts in the round.
        position: prompts taken from the shuffled order so far.
        step: updates done.
        round_number: generation rounds so far, this one included; draws depend on it and on `seed` alone.
        seed: the run's.

    Returns:
        (`count` positions in the training set, how many of them were taken from the shuffled order).
    """
    if settings.strategy == "shuffle":
        return prompts.draw(position, count, seed), count
    floor = math.ceil(settings.exploration * count)
    rng = np.random.default_rng(seed_for(seed, "selection", round_number))
    chosen = history.rank(count, step, settings, rng)[: count - floor]
    taken = 0
    picked: set[int] = set(chosen)
    while len(chosen) < count:
        for index in prompts.draw(position + taken, count - len(chosen), seed):
            taken += 1
            # A prompt twice in a round is two groups of one prompt; only a set smaller than a round needs it, and
            # two lengths of the order hold each prompt.
            if index not in picked or taken > 2 * len(prompts):
                picked.add(index)
                chosen.append(index)
    return chosen, taken
