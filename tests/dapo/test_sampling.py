import math

import pytest
from dapo.batch import RolloutGroup
from dapo.errors import DapoError, SamplingExhausted
from dapo.sampling import FilterRule, dynamic_sampling, metric_value
from hypothesis import given
from hypothesis import strategies as st

SPREAD = FilterRule()


def rounds_of(groups: list[RolloutGroup]):
    """Hand out groups in the sizes that are asked for, and remember the sizes."""
    left, sizes = list(groups), []

    def next_round(size: int) -> list[RolloutGroup]:
        sizes.append(size)
        return [left.pop(0) for _ in range(size)]

    return next_round, sizes


@pytest.mark.parametrize("values", [[0.1] * 3, [0.5] * 4, [0.0] * 8, [0.3, 0.1 + 0.2], [1.0]])
def test_equal_values_are_dropped(values: list[float]) -> None:
    """Equal floats whose standard deviation is not exactly zero, and a group of one, too."""
    assert not SPREAD.keeps(values)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=16))
def test_spread_is_max_minus_min(values: list[float]) -> None:
    assert SPREAD.keeps(values) == (max(values) - min(values) > 1e-6)


@pytest.mark.parametrize(
    ("values", "kept"),
    [([0.0, 0.0], False), ([1.0, 1.0], False), ([0.0, 1.0], True), ([0.2, 0.2], False), ([0.25, 0.25], True)],
)
def test_mean_lies_strictly_between_the_bounds(values: list[float], kept: bool) -> None:
    assert FilterRule("mean", threshold=0.2, upper=1.0).keeps(values) is kept


def test_a_missing_value_is_never_kept() -> None:
    assert not SPREAD.keeps([0.0, math.nan, 1.0])
    assert not FilterRule("mean").keeps([0.5, math.nan])


def test_metrics_are_read_at_their_stage(make_group) -> None:
    """Four wrong answers of different lengths, overlong penalty on: equal `acc`, unequal `seq_reward`."""
    group = make_group([0.0] * 4, lengths=[5, 5, 5, 8], rewards=[-1.0, -1.0, -1.0, -1.5])
    values = {
        metric: [metric_value(score, metric) for score in group.scores]
        for metric in ("acc", "score", "seq_reward", "seq_final_reward")
    }
    assert [SPREAD.keeps(found) for found in values.values()] == [False, False, True, True]


def test_partial_batches_are_carried_across_rounds(make_group) -> None:
    mixed, right, wrong = [make_group(acc) for acc in ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0])]
    next_round, sizes = rounds_of([mixed, right, wrong, wrong, right, mixed, mixed, mixed])
    batch = dynamic_sampling(next_round, 3, round_size=2, rule=SPREAD)
    assert sizes == [2, 2, 2, 2]
    assert (len(batch.groups), batch.rounds, batch.generated, batch.filtered, batch.surplus) == (
        3,
        4,
        8,
        4,
        1,
    )
    assert (batch.all_right, batch.all_wrong) == (2, 2)
    assert (batch.tokens_kept, batch.tokens_filtered, batch.tokens_surplus) == (12, 16, 4)
    assert batch.metrics()["filter/yield"] == 0.5


@pytest.mark.parametrize(("round_size", "rounds", "surplus"), [(6, 1, 2), (2, 2, 0), (4, 1, 0), (64, 1, 60)])
def test_round_and_batch_sizes_are_independent(make_group, round_size: int, rounds: int, surplus: int) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0]) for _ in range(64)])
    batch = dynamic_sampling(next_round, 4, round_size=round_size, rule=SPREAD)
    assert (batch.rounds, batch.surplus, len(batch.groups)) == (rounds, surplus, 4)


def test_one_missing_group_costs_a_round_and_says_so(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0]) for _ in range(64)])
    batch = dynamic_sampling(next_round, 1, round_size=64, rule=SPREAD)
    assert batch.metrics()["filter/groups_surplus"] == 63


def test_without_a_rule_no_more_is_generated_than_needed(make_group) -> None:
    next_round, sizes = rounds_of([make_group([0.0, 0.0]) for _ in range(9)])
    batch = dynamic_sampling(next_round, 4, round_size=3, rule=None, max_rounds=1)
    assert sizes == [3, 1]
    assert len(batch.groups) == 4


def test_stops_after_exactly_the_cap_with_counts(make_group) -> None:
    next_round, sizes = rounds_of([make_group([0.0, 0.0]) for _ in range(200)])
    with pytest.raises(SamplingExhausted, match=r"0 groups kept of 80 generated in 10 rounds .*80 all wrong"):
        dynamic_sampling(next_round, 4, round_size=8, rule=SPREAD, max_rounds=10)
    assert len(sizes) == 10


@pytest.mark.parametrize("kept", [0, 2])
def test_a_partial_batch_is_returned_when_asked_for(make_group, kept: int) -> None:
    groups = [make_group([1.0, 0.0])] * kept + [make_group([1.0, 1.0])] * 20
    next_round, sizes = rounds_of(groups)
    batch = dynamic_sampling(next_round, 4, round_size=4, rule=SPREAD, max_rounds=3, on_exhausted="train_partial")
    assert (len(batch.groups), batch.exhausted, len(sizes)) == (kept, True, 3)


def test_full_at_the_cap_is_not_exhausted(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0]) for _ in range(8)])
    batch = dynamic_sampling(next_round, 4, round_size=2, rule=SPREAD, max_rounds=2)
    assert not batch.exhausted


@pytest.mark.parametrize("cap", [0, -1])
def test_without_a_cap_it_goes_on(make_group, cap: int) -> None:
    groups = [make_group([0.0, 0.0])] * 50 + [make_group([1.0, 0.0])]
    next_round, _ = rounds_of(groups)
    assert dynamic_sampling(next_round, 1, round_size=1, rule=SPREAD, max_rounds=cap).rounds == 51


def test_an_unknown_metric_names_those_there_are(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0], extra=[{"f1": 0.5}, {}])])
    with pytest.raises(DapoError, match=r"got 'nosuch'; need one of \['acc', .*'f1'\]"):
        dynamic_sampling(next_round, 1, round_size=1, rule=SPREAD, metric="nosuch")


def test_a_key_that_one_response_lacks_drops_its_group_only(make_group) -> None:
    """The first response returned a float, the others dicts."""
    lacking = make_group([1.0, 0.0], extra=[{}, {"f1": 0.5}])
    whole = make_group([1.0, 0.0], extra=[{"f1": 0.1}, {"f1": 0.5}])
    next_round, _ = rounds_of([lacking, whole])
    batch = dynamic_sampling(next_round, 1, round_size=2, rule=SPREAD, metric="f1")
    assert batch.groups == [whole]


@given(st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_every_group_and_token_is_accounted_for(mixed: list[bool], wanted: int, size: int, cap: int) -> None:
    from dapo.batch import Problem, Response, Score

    def group(index: int, is_mixed: bool) -> RolloutGroup:
        responses = [Response([1] * (index + 1), [0.0] * (index + 1), True, "") for _ in range(2)]
        scores = [Score(acc, acc, acc, "") for acc in (1.0, 0.0 if is_mixed else 1.0)]
        return RolloutGroup(Problem(str(index), "s", "", ""), [1], responses, scores)

    groups = [group(index, flag) for index, flag in enumerate(mixed)]
    next_round, sizes = rounds_of(groups)
    batch = dynamic_sampling(
        next_round, wanted, round_size=size, rule=SPREAD, max_rounds=cap, on_exhausted="train_partial"
    )
    seen = groups[: sum(sizes)]
    assert batch.generated == len(seen) == len(batch.groups) + batch.filtered + batch.surplus
    tokens = sum(len(response.token_ids) for item in seen for response in item.responses)
    assert tokens == batch.tokens_kept + batch.tokens_filtered + batch.tokens_surplus
    assert batch.groups == [item for item, flag in zip(seen, mixed, strict=False) if flag][:wanted]
    assert batch.exhausted == (len(batch.groups) < wanted)
    assert batch.rounds <= cap
