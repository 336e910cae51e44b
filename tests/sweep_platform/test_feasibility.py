"""What can't run is refused before it costs anything, and what breaks a bound afterwards is told."""

import math
from pathlib import Path

import pytest
from sweep_platform.search import Feasibility, Searcher
from sweep_platform.spec import load_spec
from sweep_platform.trainers import load_trainer

AIME = Path(__file__).parents[2] / "sweeps" / "aime.yaml"
TP = "rollout.tensor_model_parallel_size"
SP = "actor.ulysses_sequence_parallel_size"


def feasibility(*overrides: str) -> Feasibility:
    spec = load_spec(AIME, overrides)
    return Feasibility(spec, load_trainer(spec.trainer))


def test_the_base_config_can_run_again_and_again() -> None:
    limits = feasibility()
    assert limits.refuse({}) is None
    assert limits.refuse({}) is None


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({TP: 2}, "tensor_model_parallel_size: got 2; need"),
        ({SP: 2}, "ulysses_sequence_parallel_size: got 2; need"),
        ({"actor.clip_ratio_low": 0.3, "actor.clip_ratio_high": 0.2}, "does not hold: actor.clip_ratio_high"),
        ({"actor.clip_ratio_low": 1.5}, "actor.clip_ratio_low"),
        ({"actor.ppo_max_token_len_per_gpu": 8}, "ppo_max_token_len_per_gpu"),
        ({"rollout.n": 1}, "rollout.n"),
        ({"algorithm.filter_groups.metric": "nosuch"}, "metric"),
    ],
    ids=str,
)  # fmt: skip
def test_what_can_not_run_is_refused_with_its_reason(params: dict[str, object], told: str) -> None:
    reason = feasibility().refuse(params)
    assert reason is not None
    assert told in reason
    assert "\n" not in reason


def test_a_constraint_on_an_unset_field_does_not_apply() -> None:
    limits = feasibility("constraints=['actor.ppo_mini_batch_size <= data.train_batch_size']")
    assert limits.refuse({}) is None
    assert limits.refuse({"actor.ppo_mini_batch_size": 8, "data.train_batch_size": 8}) is None
    assert limits.refuse({"actor.ppo_mini_batch_size": 16, "data.train_batch_size": 8}) is not None


def test_sizes_above_the_devices_are_impossible_and_only_those() -> None:
    assert {path: set(values) for path, values in feasibility().impossible().items()} == {TP: {2}, SP: {2}}
    searcher = Searcher(load_spec(AIME), feasibility().impossible())
    assert {searcher.ask(number).params[TP] for number in range(10)} == {1}


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"perf/peak_memory_gb": 16.0, "val/accuracy": 0.5}, None),
        ({"perf/peak_memory_gb": 17.5, "val/accuracy": 0.5}, "perf/peak_memory_gb = 17.5, not <= 16"),
        ({"perf/peak_memory_gb": 1.0, "val/accuracy": 0.1}, "val/accuracy = 0.1, not > 0.2"),
        ({"perf/peak_memory_gb": math.nan, "val/accuracy": 0.5}, "perf/peak_memory_gb = nan, not <= 16"),
        ({"val/accuracy": 0.5}, "perf/peak_memory_gb = nan, not <= 16"),
    ],
)
def test_bounds_on_metrics(metrics: dict[str, float], reason: str | None) -> None:
    limits = feasibility("constraints=['perf/peak_memory_gb <= 16', ' val/accuracy > 2e-1 ']")
    assert limits.violated(metrics) == reason


def test_the_memory_of_the_hardware_is_a_bound() -> None:
    limits = feasibility("constraints=[]", "hardware.memory_gb=8")
    assert limits.violated({"perf/peak_memory_gb": 9.0}) == "perf/peak_memory_gb = 9, not <= 8"
    assert feasibility("constraints=[]").violated({}) is None


def test_a_candidate_that_is_estimated_not_to_fit_is_refused_before_it_costs_anything() -> None:
    roomy = feasibility("constraints=[]", "hardware.memory_gb=8")
    tight = feasibility("constraints=['perf/peak_memory_gb <= 0.5']")
    assert roomy.refuse({}) is None
    reason = tight.refuse({})
    assert reason is not None and reason.startswith("perf/peak_memory_gb: got an estimate of 0.")
    assert " GiB in update (" in reason and reason.endswith("; need <= 0.5")
