from fractions import Fraction
from statistics import mean, stdev

import pytest
from dapo.advantage import EPSILON, Estimator, group_relative_advantages, relative_advantages
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.5] * 4, [-1.0] * 8, [1 / 3] * 7, [0.0, -0.0]])
def test_equal_rewards_have_exactly_zero_advantage(rewards: list[float]) -> None:
    assert relative_advantages(rewards) == [0.0] * len(rewards)


@given(st.floats(-1e6, 1e6), st.integers(1, 64), st.sampled_from(["grpo", "rloo"]), st.booleans())
def test_equal_rewards_have_exactly_zero_advantage_whatever_the_reward(
    reward: float, size: int, estimator: Estimator, normalize: bool
) -> None:
    assert set(relative_advantages([reward] * size, estimator=estimator, normalize=normalize)) == {0.0}


@pytest.mark.parametrize("rewards", [[0.0, *[0.95] * 7], [*[0.35] * 7, 0.0], [0.0, *[0.95] * 63]])
def test_one_outlier_stays_bounded(rewards: list[float]) -> None:
    """Public trainers gave -2000 to -7000 here, from a variance that cancelled."""
    advantages = relative_advantages(rewards)
    assert max(map(abs, advantages)) < 10
    assert sum(advantages) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.integers(-64, 64).map(lambda value: value / 16), min_size=2, max_size=16))
def test_agrees_with_the_formula_on_dyadic_rewards(rewards: list[float]) -> None:
    """verl's formula, (r - mean) / (std + 1e-6) with the sample standard deviation, in exact arithmetic."""
    exact = [Fraction(reward) for reward in rewards]
    expected = [float(value - mean(exact)) / (stdev(map(float, exact)) + EPSILON) for value in exact]
    assert relative_advantages(rewards) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=64))
def test_bounded_by_the_group_size(rewards: list[float]) -> None:
    """No response is further from the mean than (G - 1) / sqrt(G) standard deviations."""
    size = len(rewards)
    assert max(map(abs, relative_advantages(rewards))) <= (size - 1) / size**0.5 + 1e-6


def test_dr_grpo_keeps_the_distance_to_the_mean() -> None:
    assert relative_advantages([1.0, 0.0, 0.0, 0.0], normalize=False) == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    assert relative_advantages([3.0, 1.0, 2.0, 0.0], estimator="rloo") == pytest.approx([2.0, -2 / 3, 2 / 3, -2.0])


def test_advantages_are_made_from_the_reward_after_the_in_reward_kl(make_group) -> None:
    """Equal rewards, unequal distances from the reference: the nearer response is the better one."""
    group = make_group([1.0, 1.0])
    group.scores[1].kl_penalty = 0.5
    batch = group_relative_advantages([group], normalize=False, overlong_filtering=False)
    assert batch.advantages == [0.25, -0.25]


def test_a_group_of_one_has_no_advantage() -> None:
    assert relative_advantages([3.0]) == [0.0]


def test_batch_keeps_groups_together_and_masks_overlong_responses(make_group) -> None:
    groups = [
        make_group([1.0, 0.0], rewards=[1.0, -1.5], lengths=[2, 3], finished=[True, False]),
        make_group([0.0, 1.0, 0.0], lengths=[1, 1, 1]),
    ]
    batch = group_relative_advantages(groups, normalize=False, overlong_filtering=True)
    assert batch.group_sizes == [2, 3]
    assert batch.masks == [[True, True], [False] * 3, [True], [True], [True]]
    assert batch.advantages == pytest.approx([1.25, -1.25, -1 / 3, 2 / 3, -1 / 3])
    assert all(all(mask) for mask in group_relative_advantages(groups, normalize=True, overlong_filtering=False).masks)
