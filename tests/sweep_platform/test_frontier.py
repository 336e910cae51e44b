from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_ledger.records import CostRecord, SweepRecord, TrialRecord, TrialState
from sweep_platform.errors import BadInput, NoFeasibleTrial
from sweep_platform.frontier import Frontier, Goal, Point, indistinguishable, knee, pareto_front, points
from sweep_platform.pick import pick

GOALS = (Goal("val/accuracy", "maximize"), Goal("cost/flops", "minimize"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def point(number, accuracy, cost, error=None):
    return Point(number, GOALS, (accuracy, cost), (error, None), {"a": number})


def sweep(objectives=(("val/accuracy", "maximize"), ("cost/flops", "minimize"))):
    spec = {"objectives": [{"metric": m, "direction": d} for m, d in objectives]}
    return SweepRecord(1, "aime", 2, spec, "id", 0, None, NOW, None)


def trial(number, values, *, state=TrialState.COMPLETE, step=30, metrics=None):
    return TrialRecord(
        id=number + 100,
        sweep_id=1,
        number=number,
        state=state,
        params={"lr": number},
        params_hash=str(number),
        replicate=0,
        origin="tpe",
        sampler_state={},
        config={},
        values=values,
        metrics=metrics or {},
        cost=CostRecord(flops=7.0, tokens=70),
        step=step,
        total_steps=30,
        reason=None,
        attempts=1,
        started_at=NOW,
        ended_at=NOW,
        mlflow_run_id=None,
    )


# Small integers make equal and dominated values likely; the floats cover the whole range.
coordinates = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def clouds(draw):
    directions = draw(st.lists(st.sampled_from(["maximize", "minimize"]), min_size=1, max_size=4))
    goals = tuple(Goal(f"m{i}", d) for i, d in enumerate(directions))
    rows = draw(st.lists(st.tuples(*[coordinates] * len(goals)), max_size=25))
    return [Point(i, goals, row, (None,) * len(goals), {}) for i, row in enumerate(rows)]


def beaten(mine: Point, other: Point) -> bool:
    """Dominance said differently from the code: no goal worse, some goal better."""
    better, worse = 0, 0
    for goal, a, b in zip(mine.goals, other.values, mine.values, strict=True):
        if a != b:
            if (a > b) == (goal.direction == "maximize"):
                better += 1
            else:
                worse += 1
    return better > 0 and worse == 0


@given(clouds(), st.randoms(use_true_random=False))
def test_front_equals_brute_force_whatever_the_order(cloud: list[Point], shuffler: random.Random):
    expected = {p.number for p in cloud if not any(beaten(p, other) for other in cloud)}
    front = pareto_front(cloud)
    assert {p.number for p in front} == expected
    shuffled = list(cloud)
    shuffler.shuffle(shuffled)
    assert pareto_front(shuffled) == front
    assert bool(front) == bool(cloud)


@given(clouds())
def test_knee_is_on_the_front_and_independent_of_order(cloud: list[Point]):
    front = pareto_front(cloud)
    if front:
        assert knee(front) in front
        assert knee(front) == knee(list(reversed(front)))


@given(clouds(), st.floats(-1e6, 1e6))
def test_pick_is_the_best_within_its_bound(cloud: list[Point], bound: float):
    front = pareto_front(cloud)
    if not front or {g.direction for g in front[0].goals} != {"maximize", "minimize"}:
        return
    cost_at = next(i for i, g in enumerate(front[0].goals) if g.direction == "minimize")
    accuracy_at = next(i for i, g in enumerate(front[0].goals) if g.direction == "maximize")
    affordable = [p for p in front if p.values[cost_at] <= bound]
    if not affordable:
        with pytest.raises(BadInput) as caught:
            pick(front, max_cost=bound)
        assert repr(min(p.values[cost_at] for p in front)) in str(caught.value)
    else:
        chosen = pick(front, max_cost=bound)
        assert chosen.values[accuracy_at] == max(p.values[accuracy_at] for p in affordable)
        assert chosen.values[cost_at] <= bound


def test_points_take_complete_trials_at_full_length_only():
    trials = [
        trial(3, (0.5, 2e12), metrics={"val/accuracy_se": 0.02}),
        trial(0, (0.4, 1e12)),
        trial(1, None, state=TrialState.PRUNED, step=3),
        trial(2, (0.9, 1.0), state=TrialState.INFEASIBLE),
        trial(4, (0.9, 1.0), step=29),
        trial(5, (math.inf, 1.0)),
        trial(6, None, state=TrialState.RUNNING),
    ]
    found = points(sweep(), trials)
    assert [p.number for p in found] == [0, 3]
    assert found[1].errors == (0.02, None)
    assert found[0].errors == (None, None)


def test_equal_values_are_all_on_the_front():
    front = pareto_front([point(1, 0.5, 10.0), point(0, 0.5, 10.0), point(2, 0.5, 11.0)])
    assert [p.number for p in front] == [0, 1]


def test_front_is_cheapest_first():
    front = pareto_front([point(0, 0.9, 100.0), point(1, 0.1, 1.0), point(2, 0.5, 10.0)])
    assert [p.number for p in front] == [1, 2, 0]


def test_single_objective_front_is_the_best_value():
    goals = (Goal("val/accuracy", "maximize"),)
    cloud = [Point(i, goals, (v,), (None,), {}) for i, v in enumerate([0.2, 0.7, 0.7, 0.1])]
    assert [p.number for p in pareto_front(cloud)] == [1, 2]


def test_knee_is_furthest_from_the_chord_on_a_log_cost_scale():
    # On a linear scale trial 1 would win; by decades trial 2 bought 0.6 for a third of the way.
    front = pareto_front(
        [
            point(0, 0.0, 1.0),
            point(1, 0.55, 30.0),
            point(2, 0.6, 10.0),
            point(3, 0.8, 300.0),
            point(4, 1.0, 1000.0),
        ]
    )
    distance = {p.number: (p.values[0] + (1 - math.log10(p.values[1]) / 3) - 1) / math.sqrt(2) for p in front}
    assert knee(front).number == max(distance, key=distance.__getitem__) == 2


def test_knee_of_small_fronts():
    assert knee([point(7, 0.3, 5.0)]).number == 7
    # Two ends lie on the chord: the sweep's first objective decides.
    assert knee([point(0, 0.3, 5.0), point(1, 0.4, 9.0)]).number == 1
    assert knee([point(2, 0.3, 5.0), point(1, 0.3, 5.0)]).number == 1
    # A front that sags below the chord has its knee at an end.
    assert knee([point(0, 0.0, 1.0), point(1, 0.1, 90.0), point(2, 1.0, 100.0)]).number == 2


def test_knee_with_costs_that_have_no_logarithm():
    assert knee([point(0, 0.0, 0.0), point(1, 0.9, 1.0), point(2, 1.0, 10.0)]).number == 1


def test_indistinguishable_uses_the_combined_error():
    a, b, c = point(0, 0.50, 1.0, 0.03), point(1, 0.54, 2.0, 0.04), point(2, 0.60, 3.0, 0.03)
    front = [a, b, c]
    assert indistinguishable(a, front) == [1]  # 0.04 < 0.05
    assert indistinguishable(a, front, z=2.0) == [1]  # 0.10 > 2 * 0.042
    assert indistinguishable(b, front, z=2.0) == [0, 2]  # 0.06 < 2 * 0.05
    assert indistinguishable(point(8, 0.5, 1.0), [point(9, 0.5, 1.0)]) == []  # nothing known of the error


def test_pick_names_the_nearest():
    front = pareto_front([point(4, 0.25, 2e12), point(9, 0.5, 8e12)])
    assert pick(front, max_cost=8e12).number == 9
    assert pick(front, min_accuracy=0.3).number == 9
    assert pick(front, min_accuracy=0.1).number == 4
    assert pick(front, max_cost=7e12, min_accuracy=0.2).number == 4
    with pytest.raises(BadInput, match=r"--max-cost: got 1e\+12; need at least 2000000000000.0.*trial 4.*2 TFLOPs"):
        pick(front, max_cost=1e12)
    with pytest.raises(BadInput, match=r"--min-accuracy: got 0.6; need at most 0.5.*trial 9"):
        pick(front, min_accuracy=0.6)
    with pytest.raises(BadInput, match="--min-accuracy: got 0.4; need at most 0.25"):
        pick(front, max_cost=7e12, min_accuracy=0.4)
    with pytest.raises(BadInput, match="--max-cost: got nan; need a number"):
        pick(front, max_cost=math.nan)


def test_pick_without_such_an_objective():
    goals = (Goal("val/accuracy", "maximize"),)
    with pytest.raises(BadInput, match="--max-cost: got 1; need a sweep with an objective to minimize"):
        pick([Point(0, goals, (0.5,), (None,), {})], max_cost=1.0)
    assert pick([Point(0, goals, (0.5,), (None,), {})]).number == 0


def test_nothing_complete_is_no_feasible_trial():
    with pytest.raises(NoFeasibleTrial, match="1 failed, 1 running"):
        Frontier.of(sweep(), [trial(0, None, state=TrialState.FAILED), trial(1, None, state=TrialState.RUNNING)])
    with pytest.raises(NoFeasibleTrial, match="none yet"):
        Frontier.of(sweep(), [])
    for choose in (knee, pick):
        with pytest.raises(NoFeasibleTrial):
            choose([])


@pytest.mark.parametrize(
    ("states", "code"),
    [("failed", 1), ("failed lost", 1), ("infeasible", 3), ("failed infeasible", 3), ("failed running", 3), ("", 3)],
)
def test_that_all_trials_failed_has_the_exit_code_of_a_failure(states, code):
    trials = [trial(number, None, state=TrialState(state)) for number, state in enumerate(states.split())]
    with pytest.raises(NoFeasibleTrial) as caught:
        Frontier.of(sweep(), trials)
    assert caught.value.exit_code == code


def test_json_form():
    trials = [
        trial(0, (0.2, 1e12), metrics={"val/accuracy_se": 0.02}),
        trial(1, (0.21, 2e12), metrics={"val/accuracy_se": 0.02}),
        trial(2, (0.1, 3e12)),
        trial(3, None, state=TrialState.FAILED),
        trial(4, (0.05, 1e11), metrics={"val/accuracy_se": math.nan}),
        trial(5, (math.inf, 1e11)),
    ]
    frontier = Frontier.of(sweep(), trials)
    told = json.loads(json.dumps(frontier.to_json(), allow_nan=False))
    assert told["sweep"] == "aime@2"
    assert told["objectives"][1] == {"metric": "cost/flops", "direction": "minimize"}
    assert told["knee"] == 0
    assert told["states"] == {"complete": 5, "failed": 1}
    assert [point["number"] for point in told["points"]] == [4, 0, 1]
    assert [point["number"] for point in told["dominated"]] == [2]
    cheap, first, second = told["points"]
    assert (
        first
        == frontier.point_json(frontier.front[1])
        == {
            "number": 0,
            "values": {"val/accuracy": 0.2, "cost/flops": 1e12},
            "errors": {"val/accuracy": 0.02},
            "cost": {"flops": 7.0, "tokens": 70.0, "device_seconds": 0.0},
            "params": {"lr": 0},
            "origin": "tpe",
            "knee": True,
            "confirming_runs": 0,
            "probability": None,
            "indistinguishable_from": [1],
            "indistinguishable_from_2se": [1],
        }
    )
    assert cheap["errors"] == {}, "an error that is no number is none"
    assert not second["knee"] and second["indistinguishable_from"] == [0]
    assert told["dominated"][0]["indistinguishable_from"] == []


def test_frontier_and_pick_load_nothing_heavy():
    code = (
        "import sys, sweep_platform.frontier, sweep_platform.pick;"
        "heavy = {'torch', 'ray', 'mlflow', 'sqlalchemy', 'optuna', 'numpy', 'plotly', 'matplotlib'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
