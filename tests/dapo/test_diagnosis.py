from itertools import combinations

import pytest
from dapo.diagnosis import RolloutDiagnosis, chance_mixed, percentile
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.data())
def test_chance_mixed_is_the_share_of_mixed_subsets(flags: list[bool], data: st.DataObject) -> None:
    m = data.draw(st.integers(1, len(flags)))
    subsets = list(combinations(flags, m))
    mixed = sum(any(subset) and not all(subset) for subset in subsets) / len(subsets)
    assert chance_mixed(len(flags), sum(flags), m) == pytest.approx(mixed)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50), st.integers(1, 100))
def test_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[int], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


def test_metrics(make_group) -> None:
    diagnosis = RolloutDiagnosis()
    diagnosis.add([make_group([1, 1, 1, 1], lengths=[1, 2, 3, 4]), make_group([1, 0, 0, 0], lengths=[5, 6, 7, 8])])
    diagnosis.add([make_group([0, 0, 0, 0], lengths=[9, 9, 9, 9]), make_group([1, 1, 0, 0], lengths=[9, 9, 9, 10])])
    assert diagnosis.metrics(8, 4) == pytest.approx(
        {
            "response_length/p50": 8.0,
            "response_length/p90": 9.0,
            "response_length/p99": 10.0,
            "reward/failed_share": 0.0,
            "filter/mixed_at_2": (1 / 2 + 4 / 6) / 4,
            "filter/mixed_at_4": 0.5,
            "filter/expected_rounds": 4.0,
        }
    )


def test_without_a_mixed_group_the_expected_rounds_are_finite_and_grow(make_group) -> None:
    few, many = RolloutDiagnosis(), RolloutDiagnosis()
    few.add([make_group([0.0, 0.0])])
    many.add([make_group([0.0, 0.0])] * 10)
    assert few.metrics(4, 4)["filter/expected_rounds"] == 2.0
    assert many.metrics(4, 4)["filter/expected_rounds"] == 20.0


def test_failed_responses_are_a_share(make_group) -> None:
    group = make_group([0.0, 1.0])
    group.scores[0].failed = True
    diagnosis = RolloutDiagnosis()
    diagnosis.add([group])
    assert diagnosis.metrics(1, 1)["reward/failed_share"] == 0.5


def test_nothing_generated_says_nothing() -> None:
    assert RolloutDiagnosis().metrics(4, 4) == {}
