"""Lengths of responses, and how full an engine is while it decodes them."""

from statistics import fmean

import pytest
from dapo.occupancy import lengths, moments


@pytest.mark.parametrize("mean", [20.0, 200.0, 700.0])
def test_lengths_have_their_mean_and_their_limit(mean: float) -> None:
    found = lengths(500, mean, 1000, 0.7, 500)
    assert fmean(found) == pytest.approx(mean, rel=0.02)
    assert list(found) == sorted(found) and 1 <= found[0] and found[-1] <= 1000


def test_the_longest_is_that_of_all_engines() -> None:
    assert lengths(100, 50.0, 10_000, 0.7, 6400)[-1] > 1.3 * lengths(100, 50.0, 10_000, 0.7, 100)[-1]


def test_a_mean_at_the_limit_makes_all_as_long() -> None:
    assert set(lengths(50, 100.0, 100, 0.7, 50)[25:]) == {100}


@pytest.mark.parametrize("slots", [4, 16, 64])
def test_every_token_is_decoded_in_some_moment(slots: int) -> None:
    found = lengths(64, 50.0, 400, 0.7, 64)
    decoded = sum(moment.steps * moment.rows for moment in moments(found, slots))
    assert decoded == pytest.approx(sum(found), rel=0.02)
    assert max(moment.rows for moment in moments(found, slots)) <= slots


def test_without_a_queue_the_longest_response_is_alone_at_the_end() -> None:
    found = lengths(64, 50.0, 400, 0.7, 64)
    looks = moments(found, 64)
    assert sum(moment.steps for moment in looks) == pytest.approx(found[-1], rel=0.02)
    assert looks[0].rows == 64 and looks[-1].rows == 1
    assert looks[-1].generated == pytest.approx(found[-1], rel=0.02)


def test_a_place_that_is_free_is_taken_by_the_next() -> None:
    found = lengths(64, 50.0, 400, 0.7, 64)
    looks = moments(found, 4)
    busy = sum(moment.steps * moment.rows for moment in looks) / sum(moment.steps for moment in looks)
    assert busy > 0.85 * 4
