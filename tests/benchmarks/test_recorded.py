"""The benchmark of the simulator."""

from __future__ import annotations

import math

import pytest
from recorded.table import recorded_runs

from benchmarks import recorded


def test_a_config_that_is_left_out_is_predicted_from_the_others() -> None:
    run = next(run for run in recorded_runs() if run.seed == 1)
    errors = recorded.left_out(run.key)
    assert len(errors) == 2, "both of its seeds"
    assert all(0 < abs(error["accuracy"]) < 0.15 for error in errors)
    assert all(abs(error["flops"]) < math.log(2) for error in errors)
    # Both are held against one prediction.
    pair = [other.curve["accuracy"][-1] for other in recorded_runs() if other.key == run.key]
    assert errors[0]["accuracy"] - errors[1]["accuracy"] == pytest.approx(pair[1] - pair[0])


def test_noise_is_of_one_run_and_speed_is_measured() -> None:
    floor = recorded.between_seeds()
    assert 0.002 < floor["accuracy"] < 0.04
    assert floor["flops"] < 0.2
    _, later = recorded.seconds_per_run()
    assert later < 0.1
