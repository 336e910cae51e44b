"""The search benchmark at a small size: every method runs, runs are kept, and the comparison says what it should."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import search
from benchmarks._analytic import Knobs, objectives
from benchmarks._search_methods import OURS, PEERS, hypervolumes
from benchmarks._search_problems import TRIALS, problem
from benchmarks._search_runs import jobs, path_of, run_all

ALL = (*OURS, *PEERS)
SMALL = {"seeds": 1, "share": 0.15, "workers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("recorded", marks=pytest.mark.slow), "mixed"])
def test_every_method_spends_the_budget(tmp_path: Path, name: str) -> None:
    there = problem(name, 0, share=SMALL["share"])
    for job, events in run_all(tmp_path, problems=(name,), **SMALL).items():
        assert events, job
        spent = [amount for amount, _ in events]
        assert spent == sorted(spent)
        assert spent[-1] > 0.5 * there.budget
        assert all(amount < there.budget for amount in spent[:-1])
        assert all(math.isfinite(loss) for _, losses in events for loss in losses)
        volumes = hypervolumes(events, there.reference, [0.0, there.budget, math.inf])
        assert volumes[0] == 0.0 < volumes[2]
        assert volumes == sorted(volumes)


def test_runs_are_kept_and_read_again(tmp_path: Path) -> None:
    limits = {"problems": ("zdt1",), "methods": ("random",)}
    first = run_all(tmp_path, **SMALL, **limits)
    path = path_of(tmp_path, ("zdt1", "random", 0))
    changed = path.read_text().replace('"seconds"', '"was"')
    path.write_text(changed)
    assert run_all(tmp_path, **SMALL, **limits) == first
    assert path.read_text() == changed


def test_the_result_has_what_the_table_needs(tmp_path: Path) -> None:
    found = search.run(tmp_path, problems=("zdt1",), methods=("ehvi", "random", "optuna tpe"), **SMALL)
    assert found["peers"] == ["optuna tpe", "random"]
    assert found["measured"].startswith("zdt1: ")
    item = found["runs"]["compared"]["zdt1"]["ehvi"]
    assert 0 < item["at_half"] <= item["end"] <= 1
    assert len(found["runs"]["curves"]["zdt1"]["random"]["mean"]) == len(found["runs"]["shares"]) == 20


def test_worse_means_more_than_two_standard_errors_below_by_pairs() -> None:
    shares = len(search.SHARES)
    random = [[value] * shares for value in (0.1, 0.5, 0.9)]
    assert search.worse([[row[0] - 0.01 - i / 1000] * shares for i, row in enumerate(random)], random) == search.SHARES
    assert search.worse([[row[0] - 0.01 + 0.02 * i] * shares for i, row in enumerate(random)], random) == []


def test_two_of_ours_run_on_the_recorded_problem_only() -> None:
    wanted = jobs(tuple(TRIALS), ALL, 2)
    assert len(wanted) == len(set(wanted)) == 2 * (len(TRIALS) * (len(PEERS) + 1) + 2)


def test_the_functions_are_the_published_ones() -> None:
    best = {f"x{index}": 0.0 for index in range(2, 6)}
    for x in (0.0, 0.25, 1.0):
        assert objectives("zdt1", Knobs(x1=x, **best)) == pytest.approx((x, 1 - math.sqrt(x)))
        assert objectives("zdt2", Knobs(x1=x, **best)) == pytest.approx((x, 1 - x**2))
        seventh = 4 - x * (1 + math.sin(3 * math.pi * x))
        assert objectives("dtlz7", Knobs(x1=x, **best)) == pytest.approx((x, seventh))
        third = 1 - math.sqrt(x) - x * math.sin(10 * math.pi * x)
        assert objectives("zdt3", Knobs(x1=x, **best)) == pytest.approx((x, third))
        first, second = objectives("dtlz2", Knobs(x1=x))
        assert math.hypot(first, second) == pytest.approx(1.0)
    assert objectives("zdt1", Knobs(x1=0.0, x2=1.0, x3=1.0, x4=1.0, x5=1.0)) == pytest.approx((0.0, 10.0))
