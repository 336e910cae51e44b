"""How sure a front is: the bootstrap over runs and problems."""

import math
import random

import pytest
from sweep_platform.evidence import Run, judge
from sweep_platform.frontier import Goal

GOALS = (Goal("val/accuracy", "maximize"), Goal("cost/flops", "minimize"))


def run_of(shares: list[float], cost: float, source: str = "aime") -> Run:
    return Run((sum(shares) / len(shares), cost), {(source, str(i)): share for i, share in enumerate(shares)})


def drawn(rng: random.Random, accuracy: float, cost: float, spread: float = 0.0, problems: int = 200) -> Run:
    """A run whose problems are right with one chance, which differs from run to run by `spread`."""
    chance = accuracy + rng.gauss(0, spread)
    return run_of([float(rng.random() < chance) for _ in range(problems)], cost)


def test_a_point_far_ahead_is_surely_on_the_front_and_one_far_behind_is_not() -> None:
    rng = random.Random(0)
    runs = {
        3: [drawn(rng, 0.8, 2e9) for _ in range(3)],
        5: [drawn(rng, 0.3, 3e9) for _ in range(3)],
        8: [drawn(rng, 0.5, 1e9) for _ in range(3)],
    }
    found = {item.number: item for item in judge(GOALS, runs)}
    assert [found[n].probability for n in (3, 5, 8)] == [1.0, 0.0, 1.0]
    assert found[3].runs == 3


def test_of_two_points_that_noise_alone_tells_apart_each_has_a_chance() -> None:
    rng = random.Random(2)
    noisy = {n: [drawn(rng, 0.5, 1e9, problems=100) for _ in range(4)] for n in (0, 1)}
    first, second = judge(GOALS, noisy)
    assert 0.05 < first.probability < 0.95
    assert first.probability + second.probability == pytest.approx(1.0, abs=0.05)
    equal = judge(GOALS, {n: [run_of([1.0, 0.0] * 50, 1e9)] * 2 for n in (0, 1)})
    assert [item.probability for item in equal] == [1.0, 1.0], "neither beats the other"


def test_the_error_holds_both_the_runs_and_the_problems() -> None:
    """Against the spread of the mean over many repetitions of the whole experiment."""
    rng = random.Random(1)
    truth, told = [], []
    for _ in range(150):
        chances = [rng.betavariate(2, 2) for _ in range(40)]  # problems differ
        runs = []
        for _ in range(3):
            luck = rng.gauss(0, 0.05)  # so do runs
            runs.append(run_of([sum(rng.random() < p + luck for _ in range(4)) / 4 for p in chances], 1e9))
        (item,) = judge(GOALS, {0: runs})
        truth.append(item.values[0])
        told.append(item.errors[0] or 0.0)
    mean = sum(truth) / len(truth)
    spread = math.sqrt(sum((value - mean) ** 2 for value in truth) / (len(truth) - 1))
    assert sum(told) / len(told) == pytest.approx(spread, rel=0.15)


def test_problems_are_resampled_for_all_points_at_once() -> None:
    """A point that is right wherever another is, and on one problem more, stays ahead whichever problems are drawn."""
    better = [1.0] * 30 + [0.0] * 30
    worse = [1.0] * 24 + [0.0] * 36
    first, second = judge(GOALS, {0: [run_of(better, 1e9)], 1: [run_of(worse, 1e9)]})
    assert first.errors[0] is not None and first.errors[0] > 0.05, "yet each alone is uncertain"
    assert (first.probability, second.probability) == (1.0, pytest.approx(0.0, abs=0.01))


def test_a_single_run_on_unknown_problems_has_no_error() -> None:
    (item,) = judge(GOALS, {0: [Run((0.5, 1e9), {})]})
    assert item.errors == (None, None)
    assert item.probability == 1.0


def test_runs_on_other_problems_are_not_paired() -> None:
    (item,) = judge(GOALS, {0: [run_of([1.0, 0.0], 1e9), run_of([1.0, 0.0], 1e9, source="amc")]})
    assert item.errors[0] is None


def test_an_accuracy_of_one_data_set_is_over_its_problems() -> None:
    goals = (Goal("val/amc/accuracy", "maximize"),)
    shares = {("amc", "0"): 1.0, ("amc", "1"): 0.0, ("aime", "0"): 0.5}
    (item,) = judge(goals, {0: [Run((0.5,), shares)]})
    assert item.errors[0] == pytest.approx(0.5 / math.sqrt(2), rel=0.05)


def test_the_covariance_is_that_of_the_means() -> None:
    runs = {0: [Run((0.5 + d, 1e9 + d * 1e9), {}) for d in (-0.1, 0.0, 0.1)]}
    (item,) = judge(GOALS, runs)
    (var_a, cov), (cov_again, var_c) = item.covariance
    assert cov == cov_again and var_a > 0
    assert cov / math.sqrt(var_a * var_c) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_judgement() -> None:
    rng = random.Random(4)
    runs = {n: [drawn(rng, 0.5, 1e9, 0.1) for _ in range(2)] for n in range(3)}
    assert judge(GOALS, runs) == judge(GOALS, runs)


def test_a_candidate_whose_answers_are_unknown_has_its_own_error_and_takes_none_from_the_others() -> None:
    rng = random.Random(4)
    ours = {n: [drawn(rng, 0.5 + 0.05 * n, 1e9 * (n + 1))] for n in (0, 1)}
    alone = judge(GOALS, ours)
    mixed = judge(GOALS, {**ours, 2: [Run((0.6, 3e9), {}, (0.04, None))]})
    assert [item.errors for item in mixed[:2]] == [item.errors for item in alone]
    assert mixed[2].errors[0] == pytest.approx(0.04, rel=0.1)
    assert 0.1 < mixed[2].probability < 0.95
