"""What the responses of one update say about data and length limits: pass rates, and the spread of lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dapo.batch import RolloutGroup

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class RolloutDiagnosis:
    """Every group that one update generated, as counts."""

    lengths: list[int] = field(default_factory=list)
    """Tokens of each response."""
    groups: list[tuple[int, int]] = field(default_factory=list)
    """(responses, right ones) of each group."""
    failed: int = 0
    """Responses whose grading failed."""

    def add(self, groups: Sequence[RolloutGroup]) -> None:
        """Count scored groups."""
        for group in groups:
            self.lengths += [len(response.token_ids) for response in group.responses]
            self.groups.append((len(group.scores), sum(score.acc >= 0.5 for score in group.scores)))
            self.failed += sum(score.failed for score in group.scores)

    def metrics(self, wanted: int, round_size: int) -> dict[str, float]:
        """Scalars by metric name; none if nothing was generated.

        Args:
            wanted: groups in a full batch.
            round_size: prompts per generation round.
        """
        if not self.lengths:
            return {}
        found = {f"response_length/p{percent}": percentile(self.lengths, percent) for percent in PERCENTILES}
        found["reward/failed_share"] = self.failed / len(self.lengths)
        smallest = min(size for size, _ in self.groups)
        m = 2
        while m <= smallest:
            found[f"filter/mixed_at_{m}"] = self._mixed(m)
            m *= 2
        found["filter/expected_rounds"] = self._expected_rounds(smallest, wanted, round_size)
        return found

    def _mixed(self, m: int) -> float:
        """Share of groups that would be mixed, right and wrong, had they m responses."""
        return math.fsum(chance_mixed(size, right, m) for size, right in self.groups) / len(self.groups)

    def _expected_rounds(self, n: int, wanted: int, round_size: int) -> float:
        """Rounds that a batch takes at these pass rates, where only mixed groups are kept.

        Without a mixed group half of one is assumed, so that the number is finite and grows with the evidence.
        """
        mixed = max(self._mixed(n), 0.5 / len(self.groups))
        return wanted / (round_size * mixed)


def chance_mixed(n: int, right: int, m: int) -> float:
    """Unbiased estimate of the chance that m responses to a problem are neither all right nor all wrong.

    As pass@k's (arXiv 2107.03374, Eq. 1): over all subsets of the n responses that were drawn.

    Args:
        n: responses drawn, at least m.
        right: right ones among them.
        m: responses asked about.
    """
    return 1.0 - (math.comb(right, m) + math.comb(n - right, m)) / math.comb(n, m)


def percentile(values: Sequence[int], percent: int) -> float:
    """Return the smallest value that at least `percent` % of the values don't exceed."""
    return float(sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1])
