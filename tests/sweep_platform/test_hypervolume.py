"""Ranks, hypervolume and their order, against brute force and known values."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_platform import hypervolume as hypervolume_module
from sweep_platform.hypervolume import Losses, contributions, dominates, front, hypervolume, order, ranks

LOSS = st.integers(0, 6).map(float)


def points_of(dimensions: int) -> st.SearchStrategy[list[tuple[float, ...]]]:
    return st.lists(st.tuples(*[LOSS] * dimensions), min_size=1, max_size=12)


@given(st.integers(1, 4).flatmap(points_of))
def test_hypervolume_counts_the_unit_cells_that_are_dominated(points: list[tuple[float, ...]]) -> None:
    reference = (5.0,) * len(points[0])
    cells = itertools.product(*[range(5)] * len(reference))
    covered = sum(any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points) for cell in cells)
    assert hypervolume(points, reference) == pytest.approx(covered)


@given(points_of(3))
def test_ranks_peel_front_after_front(points: list[tuple[float, ...]]) -> None:
    found = ranks(points)
    for index, point in enumerate(points):
        better = [found[other] for other, value in enumerate(points) if dominates(value, point)]
        assert found[index] == (max(better) + 1 if better else 0)


@given(points_of(2))
def test_what_a_dominated_point_or_a_double_adds_is_nothing(points: list[tuple[float, ...]]) -> None:
    added = contributions([*points, points[0]], (7.0, 7.0))
    assert added[0] == added[-1] == 0.0
    for index, point in enumerate(points):
        if any(dominates(other, point) for other in points):
            assert added[index] == pytest.approx(0.0)


def test_optunas_own_hypervolume_agrees() -> None:
    import numpy as np
    from optuna._hypervolume import compute_hypervolume

    rng = random.Random(3)
    for dimensions in (2, 3, 4):
        points = [tuple(rng.random() for _ in range(dimensions)) for _ in range(20)]
        reference = (1.0,) * dimensions
        assert hypervolume(points, reference) == pytest.approx(
            compute_hypervolume(np.array(points), np.array(reference)), rel=1e-9
        )


def test_the_order_is_by_rank_then_by_what_a_point_adds() -> None:
    points = [(0.0, 10.0), (10.0, 0.0), (5.0, 5.0), (4.9, 5.1), (6.0, 6.0)]
    assert order(points)[-1] == 4, "the only dominated one"
    assert set(order(points)[:2]) == {0, 1}, "the ends of the front add most"


def test_the_order_knows_no_scale_and_refuses_nan() -> None:
    points = [(0.1, 3.0), (0.2, 1.0), (0.3, 2.0)]
    assert order(points) == order([(first, second * 1e12) for first, second in points])
    assert order([]) == []
    assert order([(1.0, 1.0)] * 3) == [0, 1, 2]
    with pytest.raises(ValueError, match="not finite"):
        order([(math.nan, 1.0)])


def test_the_front_is_rank_0_also_of_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    for goals in (1, 2, 3):
        points = [tuple(round(rng.random(), 2) for _ in range(goals)) for _ in range(120)]
        assert front(points) == [index for index, rank in enumerate(ranks(points)) if rank == 0]
    assert front([]) == []
    many = [(rng.random(), rng.random()) for _ in range(10_000)]
    compared: list[None] = []

    def counted(one: Losses, other: Losses) -> bool:
        compared.append(None)
        return dominates(one, other)

    monkeypatch.setattr(hypervolume_module, "dominates", counted)
    found = front(many)
    assert 1 <= len(found) < 40
    assert len(compared) <= len(many) * len(found), "each with the front alone, not with each"
