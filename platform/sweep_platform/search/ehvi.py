"""Bayesian optimisation for several objectives: the candidate with the most expected hypervolume for its cost.

Each objective has a Gaussian process (`surrogate`), costs on a logarithmic scale. A candidate is worth what it is
expected to add to the hypervolume of the front (EHVI, Emmerich 2006), by sampling, times the probability that it can
run. Where the sweep's budget is an amount of compute, that is divided by what the candidate is expected to cost in two
of three trials; in all of them the search would stay among cheap ones that it knows well. The front is what the models
believe of the trials on it, so that a lucky measurement isn't chased, and the best candidates are refined by smaller
and smaller steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweep_platform.frontier import Goal
from sweep_platform.hypervolume import MARGIN, front, hypervolume
from sweep_platform.search.candidates import Candidates
from sweep_platform.search.encoding import Encoding
from sweep_platform.search.space import Space
from sweep_platform.search.surrogate import Surrogate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CANDIDATES = 384
"""Candidates that are weighed first: half drawn at random, half that differ from the front's in a parameter or two."""
DRAWS = 64
"""Samples of each candidate's objectives."""
FEW = 64
"""Candidates and draws with three or more objectives, whose hypervolume takes longer."""
STEPS = (0.1, 0.03, 0.01)
"""Widths of the steps by which the best candidates are refined, in the unit cube."""
REFINED, TRIES = 4, 16
"""How many of them are refined, and by how many steps of each width."""
_STOPPED_NOISE = 0.5
"""Noise of what a stopped trial showed, as a share of the objective's spread: it might have risen."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one candidate."""

    params: Mapping[str, Any]
    losses: tuple[float, ...] | None
    """Less is better, costs as logarithms; None while it runs, or where it could not."""
    errors: tuple[float, ...] = ()
    """Standard error of each loss; empty: none."""
    stopped: bool = False
    """The losses are what it showed before it was stopped."""
    bad: bool = False
    """It could not run, or broke a constraint."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Candidates, the best first."""

    candidates: tuple[dict[str, Any], ...]
    gain: float
    """Most hypervolume that one of them is expected to add, as a share of the front's; whatever it costs."""


def weigh(space: Space, goals: Sequence[Goal], known: Sequence[Known], seed: int, *, per_cost: bool) -> Weighed:
    """Rank new candidates by what they are expected to add.

    Args:
        space: where they come from.
        goals: of the losses.
        known: all candidates so far; at least two were measured.
        seed: of the draws.
        per_cost: divide by the expected cost, the first goal that is a cost.
    """
    rng = np.random.default_rng(seed)
    drawn = Candidates(space, [item.params for item in known], rng)
    many = CANDIDATES if len(goals) <= 2 else FEW
    found = [*drawn.at_random(many // 2), *drawn.crossed(_best(known), many // 2)]
    if not found:
        return Weighed((), 0.0)
    judge = _Judge(space, goals, known, found, seed, per_cost=per_cost)
    gains, worth = judge(found)
    for width in STEPS:
        parents = [found[index] for index in np.argsort(-worth, kind="stable")[:REFINED]]
        near = drawn.near(parents, width, TRIES if len(goals) <= 2 else 1)
        if near:
            more, better = judge(near)
            found, gains, worth = [*found, *near], np.concatenate((gains, more)), np.concatenate((worth, better))
    order = np.argsort(-worth, kind="stable")
    return Weighed(tuple(found[index] for index in order), float(gains.max()))


def _best(known: Sequence[Known]) -> list[Mapping[str, Any]]:
    """Params on the front of what was measured."""
    measured = [(item.params, item.losses) for item in known if item.losses is not None and not item.bad]
    return [measured[index][0] for index in front([losses for _, losses in measured])]


class _Judge:
    """What candidates are worth, by models of what is known."""

    def __init__(
        self,
        space: Space,
        goals: Sequence[Goal],
        known: Sequence[Known],
        candidates: Sequence[Mapping[str, Any]],
        seed: int,
        *,
        per_cost: bool,
    ) -> None:
        """Fit the models; the box in which hypervolume counts holds what was measured, and the candidates."""
        self._encode, self._seed = Encoding(space), seed
        measured = [item for item in known if item.losses is not None and not item.bad]
        losses = np.array([item.losses for item in measured])
        self._models = _models(self._encode, known, measured, losses)
        self._runs = _model_of_running(self._encode, known)
        self._cost = next((index for index, goal in enumerate(goals) if goal.is_cost and per_cost), None)
        seen = self._encode([item.params for item in measured])
        believed = np.array([model.predict(seen)[0] for model in self._models]).T
        expected = np.array([model.predict(self._encode(candidates))[0] for model in self._models]).T
        everything = np.concatenate((losses, expected))
        self._low = everything.min(0)
        self._width = np.maximum(everything.max(0) - self._low, 1e-12)
        whole = [item for item, row in zip(believed.tolist(), measured, strict=True) if not row.stopped]
        scaled = [tuple(row) for row in ((np.array(whole) - self._low) / self._width).tolist()] if whole else []
        self.front = [scaled[index] for index in front(scaled)]

    def __call__(self, candidates: Sequence[Mapping[str, Any]]) -> tuple[Array, Array]:
        """Return the expected gain in hypervolume, as a share of the front's, and the worth of each candidate."""
        points = self._encode(candidates)
        predicted = [model.predict(points) for model in self._models]
        means, deviations = np.array([mean for mean, _ in predicted]), np.array([spread for _, spread in predicted])
        gains = self._expected_gains(means, deviations)
        if self._runs is not None:  # what can't run adds nothing
            gains = gains * np.clip(self._runs.predict(points)[0], 0.05, 1.0)
        worth = gains if self._cost is None else gains / np.exp(means[self._cost] - self._low[self._cost])
        return gains, worth

    def _expected_gains(self, means: Array, deviations: Array) -> Array:
        goals, _ = means.shape
        reference = (MARGIN,) * goals
        whole = hypervolume(self.front, reference)
        draws = DRAWS if goals <= 2 else FEW // 4
        rng = np.random.default_rng(self._seed)
        noise = rng.standard_normal((draws // 2, goals, 1))
        sampled = means + deviations * np.concatenate((noise, -noise))
        sampled = (sampled - self._low[:, None]) / self._width[:, None]
        if goals == 2:
            added = _added_area(np.array(sorted(set(self.front))).reshape(-1, 2), sampled, MARGIN)
        else:
            rows = np.moveaxis(sampled, 1, -1)
            added = np.array(
                [
                    [hypervolume([*self.front, tuple(point)], reference) - whole for point in row]
                    for row in rows.tolist()
                ]
            )
        return np.asarray(added.mean(0) / (whole or 1.0))


def _models(encode: Encoding, known: Sequence[Known], measured: Sequence[Known], losses: Array) -> list[Surrogate]:
    """A model of each loss, with what runs now taken as going as expected."""
    seen = encode([item.params for item in measured])
    running = encode([item.params for item in known if item.losses is None and not item.bad])
    stopped = np.array([item.stopped for item in measured])
    found = []
    for goal, values in enumerate(losses.T):
        noise = np.array([item.errors[goal] if item.errors else 0.0 for item in measured])
        noise = np.maximum(noise, stopped * _STOPPED_NOISE * values.std())
        found.append(Surrogate.fit(seen, values, noise).believing(running))
    return found


def _model_of_running(encode: Encoding, known: Sequence[Known]) -> Surrogate | None:
    """A model of whether a candidate can run, by those that could and could not; None if all could."""
    told = [item for item in known if item.bad or item.losses is not None]
    if not any(item.bad for item in told):
        return None
    values = np.array([float(not item.bad) for item in told])
    return Surrogate.fit(encode([item.params for item in told]), values)


def _added_area(front: Array, sampled: Array, edge: float) -> Array:
    """Area that each sampled point [draws, 2, candidates] adds to a front [F, 2] that ascends in the first loss."""
    starts = np.concatenate(([-np.inf], front[:, 0]))
    ends = np.concatenate((front[:, 0], [edge]))
    tops = np.concatenate(([edge], front[:, 1]))  # between two points of the front, what lies above is dominated
    first, second = sampled[:, 0, :, None], sampled[:, 1, :, None]
    widths = np.clip(ends, None, edge) - np.maximum(first, starts)
    heights = np.minimum(tops, edge) - second
    return np.asarray((np.clip(widths, 0.0, None) * np.clip(heights, 0.0, None)).sum(-1))
