"""The candidates that a model weighs."""

from __future__ import annotations

import numpy as np
import pytest
from small_spec import make_spec
from sweep_platform.search import Space, params_hash
from sweep_platform.search.candidates import Candidates
from sweep_platform.search.encoding import place_of

SPACE = {
    "a": {"choice": ["x", "y", "z"]},
    "b": {"choice": [8, 16, 32]},
    "c": {"float": [0.01, 1.0], "log": True},
    "d": {"int": [1, 1000], "log": True},
    "cut": {"float": [0.0, 1.0], "when": "a == 'x'"},
}
PARENT = {"a": "x", "b": 16, "c": 0.1, "d": 30, "cut": 0.5}


def drawn(seed: int = 0, seen: tuple[dict[str, object], ...] = ()) -> Candidates:
    return Candidates(Space(make_spec(SPACE)), seen, np.random.default_rng(seed))


def test_none_is_drawn_twice_and_none_that_was_seen() -> None:
    space = Space(make_spec({"a": {"choice": ["x", "y", "z"]}, "b": {"choice": [1, 2]}}))
    seen = [{"a": "x", "b": 1}, {"a": "y", "b": 2}]
    candidates = Candidates(space, seen, np.random.default_rng(0))
    found = [*candidates.at_random(40), *candidates.crossed(seen, 40), *candidates.near(seen, 0.1, 40)]
    assert len(found) == len({params_hash(params) for params in found}) == 4
    assert not any(params in seen for params in found)


def test_near_ones_stay_near_in_what_has_an_order() -> None:
    space = Space(make_spec(SPACE))
    for width in (0.1, 0.01):
        near = drawn().near([PARENT], width, 300)
        assert len(near) > 100
        same = [params for params in near if params["a"] == "x"]
        assert 0.7 < len(same) / len(near) < 1.0, "names change now and then"
        for path in ("c", "d", "cut"):
            moves = [
                abs(place_of(space.domains[path], p[path]) - place_of(space.domains[path], PARENT[path])) for p in same
            ]
            assert max(moves) < 5 * width + 0.06  # small integers lie further apart than the step
            assert np.mean([move > 0 for move in moves]) > 0.2
        assert {params["b"] for params in same} == {8, 16, 32}


def test_a_parameter_that_becomes_active_is_drawn_and_an_inactive_one_is_left_out() -> None:
    inactive = {"a": "y", "b": 16, "c": 0.1, "d": 30}
    for found in (drawn().near([inactive], 0.1, 300), drawn().crossed([inactive], 300)):
        assert {"cut" in params for params in found if params["a"] == "x"} == {True}
        assert not any("cut" in params for params in found if params["a"] != "x")


def test_crossed_ones_keep_most_of_the_parent() -> None:
    found = drawn().crossed([PARENT], 200)
    changes = [sum(params.get(path) != value for path, value in PARENT.items()) for params in found]
    assert 1.0 < np.mean(changes) < 2.5


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_draws_the_same(seed: int) -> None:
    first, again, other = (drawn(value).near([PARENT], 0.1, 20) for value in (seed, seed, seed + 7))
    assert first == again != other
