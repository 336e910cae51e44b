import math

import pytest
from dapo.batch import Problem, Response, RolloutGroup, Score
from dapo.config import AdaptiveConfig, Config
from dapo.errors import DapoError
from dapo.filter_rule import FilterRule, filter_rule, metric_value
from dapo.sampling import LEAST_DRY_RUN, Gathering, RoundRequest, SampledBatch, dynamic_sampling, tokens_of
from hypothesis import given
from hypothesis import strategies as st

SPREAD = FilterRule()


def rounds_of(groups: list[RolloutGroup]):
    """Hand out groups in the sizes that are asked for, and remember the sizes."""
    left, sizes = list(groups), []

    def next_round(request: RoundRequest) -> list[RolloutGroup]:
        sizes.append(request.size)
        return [left.pop(0) for _ in range(request.size)]

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
    batch = dynamic_sampling(next_round, Gathering(3, 2, SPREAD))
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
    assert batch.yields == [0.5, 0.0, 0.5, 1.0]
    metrics = batch.metrics()
    assert [metrics[f"filter/yield{which}"] for which in ("", "_min", "_max")] == [0.5, 0.0, 1.0]


@pytest.mark.parametrize(("round_size", "rounds", "surplus"), [(6, 1, 2), (2, 2, 0), (4, 1, 0), (64, 1, 60)])
def test_round_and_batch_sizes_are_independent(make_group, round_size: int, rounds: int, surplus: int) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0]) for _ in range(64)])
    batch = dynamic_sampling(next_round, Gathering(4, round_size, SPREAD))
    assert (batch.rounds, batch.surplus, len(batch.groups)) == (rounds, surplus, 4)


def test_one_missing_group_costs_a_round_and_says_so(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0]) for _ in range(64)])
    batch = dynamic_sampling(next_round, Gathering(1, 64, SPREAD))
    assert batch.metrics()["filter/groups_surplus"] == 63


def test_without_a_rule_no_more_is_generated_than_needed(make_group) -> None:
    next_round, sizes = rounds_of([make_group([0.0, 0.0]) for _ in range(9)])
    batch = dynamic_sampling(next_round, Gathering(4, 3, None, max_rounds=1))
    assert sizes == [3, 1]
    assert len(batch.groups) == 4


def test_stops_after_exactly_the_cap_with_counts(make_group) -> None:
    next_round, sizes = rounds_of([make_group([0.0, 0.0]) for _ in range(200)])
    gathering = Gathering(4, 8, SPREAD, max_rounds=10)
    batch = dynamic_sampling(next_round, gathering)
    assert (batch.exhausted, len(sizes)) == (True, 10)
    assert "4 groups wanted after 10 rounds, but 0 groups kept of 80 generated in 10 rounds" in gathering.explain(batch)
    assert "80 all wrong" in gathering.explain(batch)


@pytest.mark.parametrize("kept", [0, 2])
def test_a_partial_batch_is_returned_when_asked_for(make_group, kept: int) -> None:
    groups = [make_group([1.0, 0.0])] * kept + [make_group([1.0, 1.0])] * 20
    next_round, sizes = rounds_of(groups)
    batch = dynamic_sampling(next_round, Gathering(4, 4, SPREAD, max_rounds=3))
    assert (len(batch.groups), batch.exhausted, len(sizes)) == (kept, True, 3)


def test_full_at_the_cap_is_not_exhausted(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0]) for _ in range(8)])
    batch = dynamic_sampling(next_round, Gathering(4, 2, SPREAD, max_rounds=2))
    assert not batch.exhausted


@pytest.mark.parametrize("cap", [0, -1])
def test_without_a_cap_it_goes_on(make_group, cap: int) -> None:
    groups = [make_group([0.0, 0.0])] * 50 + [make_group([1.0, 0.0])]
    next_round, _ = rounds_of(groups)
    assert dynamic_sampling(next_round, Gathering(1, 1, SPREAD, max_rounds=cap)).rounds == 51


def test_an_unknown_metric_names_those_there_are(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0], extra=[{"f1": 0.5}, {}])])
    with pytest.raises(DapoError, match=r"got 'nosuch'; need one of \['acc', .*'f1'\]"):
        dynamic_sampling(next_round, Gathering(1, 1, SPREAD, metric="nosuch"))


def test_a_key_that_one_response_lacks_drops_its_group_only(make_group) -> None:
    """The first response returned a float, the others dicts."""
    lacking = make_group([1.0, 0.0], extra=[{}, {"f1": 0.5}])
    whole = make_group([1.0, 0.0], extra=[{"f1": 0.1}, {"f1": 0.5}])
    next_round, _ = rounds_of([lacking, whole])
    batch = dynamic_sampling(next_round, Gathering(1, 2, SPREAD, metric="f1"))
    assert batch.groups == [whole]


def test_without_a_cap_a_whole_set_in_vain_ends_it(make_group) -> None:
    """Counted in a row, over rounds: a group to keep starts the count again."""
    wrong, mixed = make_group([0.0, 0.0]), make_group([1.0, 0.0])
    next_round, sizes = rounds_of([wrong] * 5 + [mixed] + [wrong] * 20)
    gathering = Gathering(2, 2, SPREAD, dry_run=6)
    batch = dynamic_sampling(next_round, gathering)
    assert (batch.exhausted, len(batch.groups), sum(sizes)) == (True, 1, 12)
    assert "the last 6 groups or more had none to keep" in gathering.explain(batch)


@pytest.mark.parametrize(("prompts", "dry_run"), [(10, LEAST_DRY_RUN), (5000, 5000)])
def test_the_whole_set_must_have_been_in_vain(prompts: int, dry_run: int) -> None:
    assert Gathering.of(Config(), prompts, 1).dry_run == dry_run


def test_carried_surplus_comes_first_and_costs_no_round(make_group) -> None:
    mixed = [make_group([1.0, 0.0]) for _ in range(7)]
    next_round, sizes = rounds_of(mixed)
    gathering = Gathering(2, 7, SPREAD, surplus="carry", max_staleness=2)
    first = dynamic_sampling(next_round, gathering)
    assert (ids(first.groups), ids(first.held), first.surplus) == (ids(mixed[:2]), ids(mixed[2:]), 0)
    second = dynamic_sampling(next_round, gathering, carried=aged(first.held))
    assert (ids(second.groups), ids(second.held), second.rounds) == (ids(mixed[2:4]), ids(mixed[4:]), 0)
    assert "filter/yield" not in second.metrics(), "a share of nothing"
    assert second.metrics()["filter/groups_carried"] == 2
    assert sizes == [7]


def test_what_is_too_old_is_dropped_and_counted(make_group) -> None:
    old, mixed = make_group([1.0, 0.0], lengths=[3, 4]), make_group([1.0, 0.0])
    old.behind = 2
    next_round, _ = rounds_of([mixed])
    batch = dynamic_sampling(next_round, Gathering(1, 1, SPREAD, max_staleness=1), carried=[old])
    assert (batch.groups, batch.stale, batch.tokens_stale) == ([mixed], 1, 7)


def test_a_late_round_lowers_the_threshold_and_takes_back_what_passes_then(make_group) -> None:
    """Cap 10, from 0.8 of it on: after rounds 8, 9 and 10 the threshold is 0.9, 0.81, 0.729 of itself."""
    rule = FilterRule("mean", threshold=0.5)
    adaptive = AdaptiveConfig(enable=True)
    half, low = make_group([1.0, 0.0]), make_group([1.0, 0.0, 0.0])
    for kind, lowered, kept in ((half, 1, 4), (low, 3, 0)):
        next_round, sizes = rounds_of([kind] * 40)
        batch = dynamic_sampling(next_round, Gathering(4, 1, rule, max_rounds=10, adaptive=adaptive))
        assert (batch.lowered, len(batch.groups), batch.exhausted) == (lowered, kept, kept == 0)
        assert len(sizes) == (8 if kept else 10)
        assert batch.generated == len(batch.groups) + batch.filtered + batch.surplus


def test_a_lowered_threshold_stays_lowered(make_group) -> None:
    next_round, _ = rounds_of([make_group([1.0, 0.0])] * 4)
    adaptive = AdaptiveConfig(enable=True)
    gathering = Gathering(4, 4, FilterRule("mean", threshold=0.5), max_rounds=10, adaptive=adaptive)
    batch = dynamic_sampling(next_round, gathering, lowered=1)
    assert (batch.rounds, len(batch.groups), batch.lowered) == (1, 4, 1)


@given(st.floats(0, 2), st.integers(0, 60), st.floats(0.01, 0.99), st.floats(0, 1), st.sampled_from(["spread", "mean"]))
def test_the_bound_falls_to_the_floor_and_never_rises(
    bound: float, times: int, factor: float, floor: float, statistic
) -> None:
    rule = FilterRule(statistic, threshold=bound, tolerance=bound, upper=9.0)
    adaptive = AdaptiveConfig(enable=True, factor=factor, floor=floor)
    falling = [rule.lowered(count, adaptive).bound for count in range(times + 1)]
    assert falling[0] == bound
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] >= min(bound, floor)
    assert rule.lowered(10**6, adaptive).bound == min(bound, floor)
    assert rule.lowered(times, adaptive).upper == 9.0


def test_relaxing_fills_up_with_the_nearest_that_have_a_gradient(make_group) -> None:
    rule = FilterRule("mean", threshold=0.5, upper=1.0)
    near, far = make_group([1.0, 0.0]), make_group([1.0, 0.0, 0.0, 0.0])
    right, good = make_group([1.0, 1.0]), make_group([1.0, 1.0, 0.0])
    next_round, _ = rounds_of([far, right, near, good])
    for wanted, kept in ((2, [good, near]), (3, [good, near, far]), (4, [good, near, far])):
        next_round, _ = rounds_of([far, right, near, good])
        batch = dynamic_sampling(next_round, Gathering(wanted, 4, rule, max_rounds=1, relax=True))
        assert (ids(batch.groups), batch.exhausted, batch.relaxed) == (ids(kept), True, len(kept) - 1)
        assert batch.metrics()["filter/yield"] == 0.25
        assert batch.generated == len(batch.groups) + batch.filtered + batch.surplus
        assert batch.tokens_kept == sum(map(tokens_of, batch.groups))


@given(st.lists(st.floats(-5, 5) | st.just(math.nan), max_size=6), st.sampled_from(["spread", "mean"]))
def test_what_is_kept_has_no_shortfall(values: list[float], statistic) -> None:
    rule = FilterRule(statistic, threshold=0.3, tolerance=0.5)
    if rule.keeps(values):
        assert rule.shortfall(values) == 0.0
    if not values or any(map(math.isnan, values)):
        assert rule.shortfall(values) == math.inf


def test_a_config_describes_its_rule() -> None:
    assert filter_rule(Config().algorithm.filter_groups) == SPREAD
    off = Config.model_validate({"algorithm": {"filter_groups": {"enable": False}}})
    assert filter_rule(off.algorithm.filter_groups) is None


def ids(groups: list[RolloutGroup]) -> list[int]:
    return [id(group) for group in groups]


def aged(groups: list[RolloutGroup]) -> list[RolloutGroup]:
    for group in groups:
        group.behind += 1
    return groups


def group_of(index: int, right: int) -> RolloutGroup:
    """A group of four, `right` of them right, with a number of tokens that tells it from others."""
    responses = [Response([1] * (index + 1), [0.0] * (index + 1), True, "") for _ in range(4)]
    scores = [Score(acc, acc, acc, "") for acc in (float(place < right) for place in range(4))]
    return RolloutGroup(Problem(str(index), "s", "", ""), [1], responses, scores)


GATHERINGS = st.builds(
    Gathering,
    wanted=st.integers(1, 5),
    round_size=st.integers(1, 6),
    rule=st.none() | st.just(SPREAD) | st.just(FilterRule("mean", threshold=0.6)),
    max_rounds=st.integers(0, 5),
    dry_run=st.integers(1, 8),
    relax=st.booleans(),
    adaptive=st.builds(AdaptiveConfig, enable=st.booleans(), start=st.floats(0, 1)),
    surplus=st.sampled_from(["drop", "carry"]),
    max_staleness=st.integers(1, 3),
)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.sets(st.integers(1, 40)), GATHERINGS, st.integers(1, 6))
def test_every_group_and_token_is_in_one_place(
    rights: list[int], pilots: set[int], gathering: Gathering, updates: int
) -> None:
    """Over several updates: generated = trained on + filtered + surplus + stale + held, in groups and in tokens."""
    drawn: list[RolloutGroup] = []

    def next_round(request: RoundRequest) -> list[RolloutGroup]:
        places = range(len(drawn), len(drawn) + request.size)
        new = [group_of(place, rights[place % len(rights)]) for place in places]
        for group in new:
            group.pilot_only = request.rule is not None and len(group.responses[0].token_ids) in pilots
        drawn.extend(new)
        return new

    batches: list[SampledBatch] = []
    held: list[RolloutGroup] = []
    for _ in range(updates):
        lowered = batches[-1].lowered if batches else 0
        batches.append(dynamic_sampling(next_round, gathering, carried=held, lowered=lowered))
        held = aged(list(batches[-1].held))
        check_batch(batches[-1], gathering)
    trained = [group for batch in batches for group in batch.groups]
    assert len({id(group) for group in (*trained, *held)}) == len(trained) + len(held), "nothing is trained on twice"
    total = sum(batch.filtered + batch.surplus + batch.stale for batch in batches)
    assert len(drawn) == len(trained) + total + len(held)
    wasted = ("tokens_filtered", "tokens_surplus", "tokens_stale", "tokens_pilot")
    tokens = sum(getattr(batch, kind) for batch in batches for kind in wasted)
    assert sum(map(tokens_of, drawn)) == sum(map(tokens_of, (*trained, *held))) + tokens
    assert sum(batch.generated for batch in batches) == len(drawn)


def check_batch(batch: SampledBatch, gathering: Gathering) -> None:
    assert len(batch.groups) <= gathering.wanted
    assert batch.exhausted or len(batch.groups) == gathering.wanted
    assert batch.tokens_kept == sum(map(tokens_of, batch.groups))
    assert not any(group.pilot_only for group in (*batch.groups, *batch.held)), "too few responses to train on"
    assert all(group.behind <= gathering.max_staleness for group in batch.groups)
    assert not (batch.held and gathering.surplus == "drop")
    if gathering.max_rounds > 0 and gathering.rule is not None:
        assert batch.rounds <= gathering.max_rounds
    if gathering.rule is not None:
        rule = (
            gathering.rule.lowered(batch.lowered, gathering.adaptive) if gathering.adaptive.enable else gathering.rule
        )
        passing = sum(rule.keeps([score.acc for score in group.scores]) for group in batch.groups)
        assert passing >= len(batch.groups) - batch.relaxed
