"""Our own sampler: its model, its acquisition, and what it does in a sweep."""

import math
import random
from typing import Any

import numpy as np
import pytest
from small_spec import make_spec, record
from sweep_platform.frontier import Goal
from sweep_platform.hypervolume import hypervolume
from sweep_platform.search import Searcher, Space
from sweep_platform.search.ehvi import Known, _added_area, _Judge, weigh
from sweep_platform.search.encoding import Encoding
from sweep_platform.search.surrogate import Surrogate

SPACE = {
    "a": {"choice": ["x", "y", "z"]},
    "b": {"choice": [8, 16, 32]},
    "c": {"float": [0.01, 1.0], "log": True},
    "d": {"int": [1, 5], "when": "a == 'x'"},
}
GOALS = (Goal("val/accuracy", "maximize"), Goal("cost/flops", "minimize"))


def test_a_candidate_is_encoded_by_its_place_in_each_domain() -> None:
    encode = Encoding(Space(make_spec(SPACE)))
    rows = encode([{"a": "x", "b": 16, "c": 0.1, "d": 5}, {"a": "z", "b": 8, "c": 1.0}])
    assert rows == pytest.approx(np.array([[1, 0, 0, 0.5, 0.5, 1, 1], [0, 0, 1, 0, 1, 0.5, 0]]))
    assert encode([]).shape == (0, 7)


def test_the_model_fits_what_is_smooth_and_knows_where_it_knows_nothing() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((40, 3))
    values = 5 + np.sin(4 * points[:, 0]) + 0.1 * points[:, 1]
    model = Surrogate.fit(points, values)
    fresh = rng.random((200, 3))
    mean, deviation = model.predict(fresh)
    truth = 5 + np.sin(4 * fresh[:, 0]) + 0.1 * fresh[:, 1]
    assert np.abs(mean - truth).mean() < 0.05 * values.std()
    far = model.predict(np.full((1, 3), 3.0))[1]
    assert far[0] > 3 * deviation.mean()


def test_noise_that_is_known_is_not_taken_for_signal() -> None:
    rng = np.random.default_rng(1)
    points = rng.random((30, 2))
    truth = points[:, 0]
    noise = np.where(np.arange(30) % 2, 1.0, 1e-3)
    seen = truth + noise * rng.standard_normal(30)
    told, untold = (Surrogate.fit(points, seen, known).predict(points)[0] for known in (noise, None))
    assert np.abs(told - truth).mean() < 0.5 * np.abs(untold - truth).mean()


def test_a_believed_point_holds_no_surprise() -> None:
    points = np.random.default_rng(2).random((12, 2))
    model = Surrogate.fit(points, points.sum(1))
    place = np.array([[0.9, 0.1]])
    before, after = model.predict(place), model.believing(place).predict(place)
    assert after[0] == pytest.approx(before[0], abs=1e-2)
    assert after[1] < 0.6 * before[1]


def test_the_added_area_is_the_hypervolumes_difference() -> None:
    rng = random.Random(3)
    for _ in range(50):
        front = [(0.1, 0.9), (0.4, 0.5), (0.8, 0.2)]
        point = (rng.uniform(-0.2, 1.3), rng.uniform(-0.2, 1.3))
        expected = hypervolume([*front, point], (1.1, 1.1)) - hypervolume(front, (1.1, 1.1))
        found = _added_area(np.array(front), np.array(point).reshape(1, 2, 1), 1.1)
        assert found[0, 0] == pytest.approx(expected, abs=1e-12)


def known(params: dict[str, Any], accuracy: float, flops: float, **more: Any) -> Known:
    return Known(params, tuple(goal.loss(value) for goal, value in zip(GOALS, (accuracy, flops), strict=True)), **more)


def history(count: int = 14, bought: float = 0.0) -> list[Known]:
    """Accuracy rises with c, and by `bought` with each doubling of b, as cost does; `a` means nothing."""
    space = Space(make_spec(SPACE))
    items = [space.uniform(seed) for seed in range(count)]
    return [
        known(p, 0.3 + 0.1 * math.log10(p["c"] / 0.01) + bought * math.log2(p["b"] / 8), 1e9 * p["b"]) for p in items
    ]


def test_it_goes_where_hypervolume_is_expected() -> None:
    space = Space(make_spec(SPACE))
    best = weigh(space, GOALS, history(), seed=0, per_cost=False).candidates[:10]
    assert np.mean([params["c"] for params in best]) > 0.5
    seen = [item.params for item in history()]
    assert all(params not in seen for params in best)


def test_it_is_a_function_of_seed_and_results() -> None:
    space = Space(make_spec(SPACE))
    one, two, other = (weigh(space, GOALS, history(), seed=seed, per_cost=True) for seed in (1, 1, 2))
    assert one == two
    assert one.candidates != other.candidates


def test_per_cost_it_prefers_cheap_candidates() -> None:
    space = Space(make_spec(SPACE))

    def mean_place_of_dear_ones(per_cost: bool) -> float:
        found = weigh(space, GOALS, history(bought=0.3), seed=0, per_cost=per_cost).candidates
        return float(np.mean([place for place, params in enumerate(found) if params["b"] == 32]))

    assert mean_place_of_dear_ones(True) > mean_place_of_dear_ones(False) + 20


def test_the_best_is_refined_beyond_what_random_draws_hit() -> None:
    """A valley that is narrow in three numbers: its floor is met within what steps of 0.01 can tell."""
    space = Space(make_spec({name: {"float": [0.0, 1.0]} for name in ("a", "b", "c")}))

    def losses(params: dict[str, Any]) -> tuple[float, float]:
        return sum((value - 0.37) ** 2 for value in params.values()), 20.0 + params["a"]

    items = [Known(params, losses(params)) for params in map(space.uniform, range(30))]
    best = weigh(space, GOALS, items, seed=0, per_cost=False).candidates[0]
    assert max(abs(best[name] - 0.37) for name in ("b", "c")) < 0.05


def test_what_costs_more_than_anything_measured_counts_too() -> None:
    """Accuracy comes with b alone, as cost does, and only small ones were tried: the gain lies beyond them."""
    space = Space(make_spec({"b": {"int": [1, 64]}}))
    items = [known({"b": value}, 0.1 * value, 1e9 * value) for value in (1, 2, 3, 4, 5)]
    best = weigh(space, GOALS, items, seed=0, per_cost=False).candidates[0]
    assert best["b"] > 10


def test_a_stopped_trial_takes_no_place_on_the_front() -> None:
    space = Space(make_spec(SPACE))
    best = {"a": "y", "b": 32, "c": 0.9}

    def front(items: list[Known]) -> int:
        return len(_Judge(space, GOALS, items, [space.uniform(99)], seed=0, per_cost=False).front)

    complete, stopped = (known(best, 0.95, 1e6, stopped=value) for value in (False, True))
    assert front([*history(), complete]) == 1
    assert front([*history(), stopped]) > 1
    none = [known(item.params, 0.5, 1e9, stopped=True) for item in history()]
    assert front(none) == 0
    assert weigh(space, GOALS, none, seed=0, per_cost=True).gain >= 0


def test_a_lucky_result_is_not_what_there_is_to_beat() -> None:
    """Accuracy rises from 0.3 to 0.5 with c, and one result says 0.9; 0 is the best that was measured."""
    space = Space(make_spec({"c": {"float": [0.0, 1.0]}}))
    items = [known({"c": index / 20}, 0.3 + index / 100, 1e9, errors=(0.001, 0.0)) for index in range(20)]

    def best(items: list[Known]) -> float:
        return min(_Judge(space, GOALS, items, [{"c": 0.5}], seed=0, per_cost=False).front)[0]

    assert best(items) == pytest.approx(0.0, abs=0.05)
    assert best([*items, known({"c": 0.99}, 0.9, 1e9, errors=(0.4, 0.0))]) > 0.5


def test_it_keeps_away_from_what_can_not_run() -> None:
    space = Space(make_spec(SPACE))
    bad = [Known(space.uniform(seed) | {"a": "y"}, None, bad=True) for seed in range(100, 110)]
    items = [item for item in history(24) if item.params["a"] != "y"] + bad
    first = weigh(space, GOALS, items, seed=0, per_cost=False).candidates[:20]
    assert sum(params["a"] == "y" for params in first) <= 4


def test_three_objectives_and_a_space_that_is_used_up() -> None:
    spec = make_spec({"a": {"choice": [1, 2, 3, 4]}})
    goals = (*GOALS, Goal("response_length/mean", "minimize"))
    items = [Known({"a": value}, (-value / 10, float(value), 5.0 - value)) for value in (1, 2, 3)]
    assert [p["a"] for p in weigh(Space(spec), goals, items, seed=0, per_cost=False).candidates] == [4]
    everything = [*items, Known({"a": 4}, (-0.4, 4.0, 1.0))]
    assert weigh(Space(spec), goals, everything, seed=0, per_cost=False).candidates == ()


def test_the_expected_gain_falls_as_the_search_goes_on() -> None:
    spec = make_spec(SPACE, "ehvi")
    searcher, gains = Searcher(spec), []
    for number in range(24):
        gain = searcher.expected_gain(number)
        gains.append(gain)
        suggestion = searcher.ask(number)
        values = (0.3 + 0.2 * math.log10(suggestion.params["c"] / 0.01), 1e9 * suggestion.params["b"])
        searcher.tell(record(suggestion, values=values))
    assert gains[:4] == [None] * 4, "nothing is modelled before `n_startup` results"
    assert min(gain for gain in gains[4:9] if gain is not None) > 0.003
    assert max(gain for gain in gains[20:] if gain is not None) < 0.003


def test_what_cannot_run_is_no_gain_to_expect() -> None:
    space = Space(make_spec({"c": {"float": [0.0, 1.0]}}))
    items = [known({"c": c / 20}, c / 20, 1e9) for c in range(10)]
    refused = [Known({"c": c / 20}, None, bad=True) for c in range(10, 21)]
    hoped, left = (weigh(space, GOALS, among, seed=0, per_cost=False).gain for among in (items, [*items, *refused]))
    assert hoped > 0.5 and left < 0.3 * hoped


@pytest.mark.parametrize(("trials", "label"), [(3, "ehvi:startup"), (5, "ehvi")])
def test_the_origin_says_whether_a_model_was_used(trials: int, label: str) -> None:
    searcher = Searcher(make_spec(SPACE, "ehvi"))
    for number in range(trials):
        suggestion = searcher.ask(number)
        searcher.tell(record(suggestion, values=(0.1 * number, 1e9)))
    assert searcher.ask(trials).origin == label
