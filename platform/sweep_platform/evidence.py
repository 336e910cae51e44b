"""How sure a front is: repeated runs of its points, and the probability that nothing beats each of them.

A confirming run has a candidate's params and another seed (`TrialRecord.replicate` > 0), and is usually evaluated on
problems that the search never saw. Its noise has two parts: the run (seed, sampling of the evaluation) and the choice
of problems, which all points share. The bootstrap resamples both, problems for all points at once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweep_platform.frontier import COMPLETE, Frontier, Goal, Judged, Point, goals, outlined, points

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from run_ledger import Ledger, SweepRecord, TrialRecord

    Array = NDArray[np.float64]

_ACCURACY = re.compile(r"val/(?:([\w.-]+)/)?accuracy")
DRAWS = 2000
"""Bootstrap samples: a probability of a half is then known to 1 %."""
COMPARED = 100
"""Candidates that are compared by the bootstrap at most: its time grows with their square."""
Shares = Mapping[tuple[str, str], float]
"""(data source, problem) -> share of right answers."""


@dataclass(frozen=True, slots=True)
class Run:
    """One complete run of a candidate."""

    values: tuple[float, ...]
    """One an objective."""
    shares: Shares
    """Of each problem it was evaluated on; empty where it isn't known."""
    errors: tuple[float | None, ...] = ()
    """Standard error of each value, as the trial told it; used only where the shares aren't known."""


def judge(goals: Sequence[Goal], runs: Mapping[int, Sequence[Run]], seed: int = 0) -> list[Judged]:
    """Compare candidates by the bootstrap over problems and runs.

    Args:
        goals: the objectives.
        runs: at least one of each candidate, by its number; all evaluated on the same problems.
        seed: of the bootstrap.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    numbers = sorted(runs)
    drawn = np.stack([_run_draws(goals, runs[number], rng) for number in numbers])
    drawn += _problem_draws(goals, [runs[number] for number in numbers], rng)
    losses = drawn * np.array([-1.0 if goal.maximize else 1.0 for goal in goals])[None, :, None]
    beaten = [np.any([(other <= one).all(0) & (other < one).any(0) for other in losses], axis=0) for one in losses]
    return [
        Judged(
            number=number,
            runs=len(runs[number]),
            values=tuple(float(np.mean([run.values[goal] for run in runs[number]])) for goal in range(len(goals))),
            errors=tuple(float(error) or None for error in drawn[index].std(1)),
            probability=float(1 - beaten[index].mean()),
            covariance=tuple(map(tuple, np.atleast_2d(np.cov(drawn[index])).tolist())),
        )
        for index, number in enumerate(numbers)
    ]


def judge_trials(ledger: Ledger, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> tuple[list[Judged], bool]:
    """Compare a sweep's complete candidates, by number: the confirmed ones if there are any, else by their one run.

    Of more than `COMPARED` that ran once, those nearest to the front are compared. That the others might beat them is
    left out, so that probabilities are a little too high where thousands of candidates are noisy.

    Returns:
        (what is known of each, whether confirming runs say it).
    """
    wanted, comparable = goals(sweep), points(sweep, trials)
    complete = {point.number for point in comparable}
    candidates = {trial.params_hash: trial.number for trial in trials if trial.replicate == 0}
    again = [trial for trial in trials if trial.replicate > 0 and trial.state == COMPLETE]
    confirming = [trial for trial in again if candidates[trial.params_hash] in complete]
    runs: dict[int, list[Run]] = defaultdict(list)
    if not confirming:
        complete = set(nearest(comparable))
    compared = confirming or [trial for trial in trials if trial.replicate == 0 and trial.number in complete]
    shares = ledger.shares([trial.id for trial in compared])
    for trial in compared:
        if trial.values is not None:
            errors = tuple(trial.metrics.get(f"{goal.metric}_se") for goal in wanted)
            runs[candidates[trial.params_hash]].append(Run(trial.values, shares.get(trial.id, {}), errors))
    return (judge(wanted, runs) if runs else []), bool(confirming)


def judged_frontier(ledger: Ledger, sweep: SweepRecord, trials: Sequence[TrialRecord] | None = None) -> Frontier:
    """Compare a sweep's candidates, by their confirming runs where there are any, with what the bootstrap says.

    Args:
        ledger: Where the sweep is.
        sweep: The sweep.
        trials: All of its trials; None reads them.

    Raises:
        NoFeasibleTrial: no trial is complete.
    """
    trials = ledger.outline(sweep.id, outlined(sweep)) if trials is None else trials
    judged, confirmed = judge_trials(ledger, sweep, trials)
    return Frontier.of(sweep, trials, judged, confirmed=confirmed)


def nearest(candidates: Sequence[Point], count: int = COMPARED) -> list[int]:
    """Numbers of the candidates that compete for the front: it, the front of the rest, and so on up to `count`."""
    import numpy as np

    if len(candidates) <= count:
        return [point.number for point in candidates]
    losses = np.array([point.losses for point in candidates])
    left = np.lexsort((*losses.T[::-1],))
    chosen: list[int] = []
    while len(chosen) < count:
        rest, layer = left, []
        while rest.size:  # the first in lexicographic order is dominated by none of the rest
            best = losses[rest[0]]
            layer += rest[(losses[rest] == best).all(1)].tolist()
            rest = rest[(losses[rest] < best).any(1)]
        chosen += layer
        left = left[~np.isin(left, layer)]
    return [candidates[index].number for index in chosen[:count]]


def told_apart(goals: Sequence[Goal], one: Judged, other: Judged, z: float) -> bool:
    """Whether some objective that is no cost differs by `z` combined standard errors, or has none.

    Costs don't count: two neighbours on a front always differ there, and this is about whether more was bought for it.
    """
    for goal, a, b, mine, theirs in zip(goals, one.values, other.values, one.errors, other.errors, strict=True):
        if not goal.is_cost and abs(a - b) >= z * math.hypot(mine or 0.0, theirs or 0.0):
            return True
    return all(goal.is_cost for goal in goals)


def _run_draws(goals: Sequence[Goal], runs: Sequence[Run], rng: np.random.Generator) -> Array:
    """Bootstrap means over a candidate's runs, [objectives, DRAWS].

    Resampled deviations are scaled by sqrt(n / (n - 1)): a bootstrap of few runs is too sure by that factor.
    """
    import numpy as np

    values = np.array([run.values for run in runs]).T
    mean = values.mean(1, keepdims=True)
    count = len(runs)
    if count == 1:
        return np.repeat(mean, DRAWS, 1)
    picked = rng.integers(count, size=(DRAWS, count))
    deviations = (values - mean)[:, picked].mean(-1)
    return np.asarray(mean + deviations * math.sqrt(count / (count - 1)))


def _problem_draws(goals: Sequence[Goal], runs: Sequence[Sequence[Run]], rng: np.random.Generator) -> Array:
    """What another choice of problems would add to each mean, [candidates, objectives, DRAWS].

    A candidate whose answers aren't known, since another system trained it, has an error of its own instead.
    """
    import numpy as np

    added = np.zeros((len(runs), len(goals), DRAWS))
    answered = [place for place, of_one in enumerate(runs) if all(run.shares for run in of_one)]
    for index, goal in enumerate(goals):
        problems = _common_problems(goal, [run for place in answered for run in runs[place]])
        if problems:
            shares = np.array(
                [np.mean([[r.shares[p] for p in problems] for r in runs[place]], 0) for place in answered]
            )
            even = np.full(len(problems), 1 / len(problems))
            weights = rng.multinomial(len(problems), even, size=DRAWS) / len(problems)
            added[answered, index] = shares @ weights.T - shares.mean(1, keepdims=True)
        for place in set(range(len(runs))) - set(answered):
            run, *others = runs[place]
            if not others and run.errors:  # the spread of several runs tells the noise by itself
                added[place, index] = rng.standard_normal(DRAWS) * (run.errors[index] or 0.0)
    return added


def _common_problems(goal: Goal, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The problems that an accuracy is the mean over, if all runs were evaluated on the same; else none."""
    match = _ACCURACY.fullmatch(goal.metric)
    if match is None or not runs:
        return []
    told = [{problem for problem in run.shares if match[1] in (None, problem[0])} for run in runs]
    return sorted(told[0]) if all(found == told[0] for found in told) else []
