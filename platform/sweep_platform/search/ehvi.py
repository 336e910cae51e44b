"""Bayesian optimisation for several objectives: the candidate with the most expected hypervolume for its cost.

Each objective has a Gaussian process (`surrogate`), costs on a logarithmic scale. A candidate is worth what it is
expected to add to the hypervolume of the front (EHVI, Emmerich 2006), by sampling, times the probability that it can
run. Where the sweep's budget is an amount of compute, that is divided by what the candidate is expected to cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweep_platform.frontier import Goal
from sweep_platform.hypervolume import MARGIN, hypervolume, ranks
from sweep_platform.search.encoding import Encoding
from sweep_platform.search.space import Space, params_hash
from sweep_platform.search.surrogate import Surrogate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CANDIDATES = 512
"""Candidates that are weighed: drawn at random, and neighbours of the front."""
NEIGHBOURS = 0.5
"""Share of them that are neighbours."""
DRAWS = 64
"""Samples of each candidate's objectives."""
FEW = 64
"""Candidates and draws with three or more objectives, whose hypervolume takes longer."""
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
    encode = Encoding(space)
    measured = [item for item in known if item.losses is not None and not item.bad]
    losses = np.array([item.losses for item in measured])
    level = ranks([item.losses for item in measured if item.losses is not None])
    best = [item.params for item, rank in zip(measured, level, strict=True) if rank == 0]
    many = CANDIDATES if len(goals) <= 2 else FEW
    candidates = _candidates(space, best, {params_hash(item.params) for item in known}, many, rng)
    if not candidates:
        return Weighed((), 0.0)
    points = encode(candidates)
    means, deviations = _predict(encode, known, measured, losses, points)
    gains = _expected_gains(losses, means, deviations, rng)
    worth = gains * _probability_of_running(encode, known, points)
    cost = next((index for index, goal in enumerate(goals) if goal.is_cost), None)
    if per_cost and cost is not None:
        worth = worth / np.exp(means[cost] - means[cost].min())
    order = np.argsort(-worth, kind="stable")
    return Weighed(tuple(candidates[index] for index in order), float(gains.max()))


def _candidates(
    space: Space, best: Sequence[Mapping[str, Any]], seen: set[str], many: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """New candidates: some at random, some that differ from one of the best in a parameter or two."""
    found: dict[str, dict[str, Any]] = {}
    for index in range(many):
        params = space.uniform(int(rng.integers(2**63)))
        if index < many * NEIGHBOURS:
            parent = best[int(rng.integers(len(best)))]
            changed = {path for path in space.domains if rng.random() < 1.5 / len(space.domains)}
            drawn = {path: params.get(path, domain.at(rng.random())) for path, domain in space.domains.items()}
            kept = {path: value for path, value in parent.items() if path not in changed}
            params = _walked(space, {**drawn, **kept})
        found.setdefault(params_hash(params), params)
    return [params for digest, params in found.items() if digest not in seen]


def _walked(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the parameters that are active with them."""
    return space.walk(lambda path, _: values[path])


def _predict(
    encode: Encoding, known: Sequence[Known], measured: Sequence[Known], losses: Array, points: Array
) -> tuple[Array, Array]:
    """Means and deviations [goals, candidates] of the losses, with what runs now taken as going as expected."""
    seen = encode([item.params for item in measured])
    running = encode([item.params for item in known if item.losses is None and not item.bad])
    stopped = np.array([item.stopped for item in measured])
    means, deviations = [], []
    for goal, values in enumerate(losses.T):
        noise = np.array([item.errors[goal] if item.errors else 0.0 for item in measured])
        noise = np.maximum(noise, stopped * _STOPPED_NOISE * values.std())
        model = Surrogate.fit(seen, values, noise).believing(running)
        mean, deviation = model.predict(points)
        means.append(mean)
        deviations.append(deviation)
    return np.array(means), np.array(deviations)


def _expected_gains(losses: Array, means: Array, deviations: Array, rng: np.random.Generator) -> Array:
    """Hypervolume that each candidate is expected to add, as a share of that of the front; [candidates]."""
    low, high = losses.min(0), losses.max(0)
    width = np.where(high > low, high - low, 1.0)
    front = [tuple(row) for row in ((losses - low) / width).tolist()]
    front = [point for point, rank in zip(front, ranks(front), strict=True) if rank == 0]
    reference = (MARGIN,) * len(low)
    whole = hypervolume(front, reference)
    draws = DRAWS if len(low) <= 2 else FEW // 4
    noise = rng.standard_normal((draws // 2, *means.shape))
    sampled = means + deviations * np.concatenate((noise, -noise))
    sampled = (sampled - low[:, None]) / width[:, None]
    if len(low) == 2:
        added = _added_area(np.array(sorted(set(front))), sampled, MARGIN)
    else:
        rows = np.moveaxis(sampled, 1, -1)
        added = np.array(
            [[hypervolume([*front, tuple(point)], reference) - whole for point in draw] for draw in rows.tolist()]
        )
    return np.asarray(added.mean(0) / whole)


def _added_area(front: Array, sampled: Array, edge: float) -> Array:
    """Area that each sampled point [draws, 2, candidates] adds to a front [F, 2] that ascends in the first loss."""
    starts = np.concatenate(([-np.inf], front[:, 0]))
    ends = np.concatenate((front[:, 0], [edge]))
    tops = np.concatenate(([edge], front[:, 1]))  # between two points of the front, what lies above is dominated
    first, second = sampled[:, 0, :, None], sampled[:, 1, :, None]
    widths = np.clip(ends, None, edge) - np.maximum(first, starts)
    heights = np.minimum(tops, edge) - second
    return np.asarray((np.clip(widths, 0.0, None) * np.clip(heights, 0.0, None)).sum(-1))


def _probability_of_running(encode: Encoding, known: Sequence[Known], points: Array) -> Array:
    """Chance that each candidate can run, by those that could and could not; [candidates]."""
    told = [item for item in known if item.bad or item.losses is not None]
    if not any(item.bad for item in told):
        return np.ones(len(points))
    values = np.array([float(not item.bad) for item in told])
    mean, _ = Surrogate.fit(encode([item.params for item in told]), values).predict(points)
    return np.asarray(np.clip(mean, 0.05, 1.0))
