import pytest
import torch
from dapo.accounting import (
    Meter,
    RolloutStats,
    forward_flops,
    generation_flops,
    pass_flops,
    peak_memory_gb,
    reset_peak_memory,
    update_flops,
)
from dapo.batch import Response
from hypothesis import given
from hypothesis import strategies as st


def flops(context: float) -> float:
    return 1000.0 + 3.0 * context


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_pass_costs_the_sum_of_its_tokens(context: int, length: int) -> None:
    expected = sum(flops(context + place) for place in range(1, length + 1))
    assert forward_flops(context, length, flops) == pytest.approx(expected)


def test_a_group_pays_its_prompt_once_and_never_its_last_tokens() -> None:
    responses = [Response([1] * length, [0.0] * length, True, "") for length in (3, 1)]
    prompt, fed = [flops(place) for place in range(1, 6)], [flops(6), flops(7)]
    assert generation_flops(5, responses, flops) == pytest.approx(sum(prompt) + sum(fed))


def test_a_backward_pass_costs_two_forward_ones() -> None:
    forward = forward_flops(0, 7, flops)
    assert update_flops([(0, 7), (0, 7)], 1, flops) == pytest.approx(6 * forward)
    assert update_flops([(0, 7)], 4, flops) == pytest.approx(12 * forward)
    assert update_flops([(0, 7)], 4, flops, recomputed=True) == pytest.approx(16 * forward)
    assert pass_flops([(0, 3), (3, 4)], flops) == pytest.approx(forward)


def test_phases_add_up_and_testing_is_charged_apart() -> None:
    meter = Meter()
    for phase in ("gen", "gen", "testing"):
        with meter.time(phase):
            pass
    seconds = meter.take_step()
    assert set(seconds) == {"timing_s/gen", "timing_s/testing", "timing_s/other"}
    assert meter.cost.device_seconds == pytest.approx(seconds["timing_s/gen"])
    assert meter.cost.evaluation_device_seconds == pytest.approx(seconds["timing_s/testing"])
    assert meter.take_step() == {}


def test_time_is_counted_when_the_work_fails() -> None:
    meter = Meter()
    with pytest.raises(ZeroDivisionError), meter.time("gen"):
        _ = 1 / 0
    assert meter.cost.device_seconds > 0


def test_stats_cover_every_round(make_group) -> None:
    stats = RolloutStats()
    stats.add([make_group([1.0, 0.0], lengths=[2, 6], rewards=[1.0, -0.5], finished=[True, False])])
    stats.add([make_group([0.0, 0.0], lengths=[4, 4])])
    assert stats.tokens == 16
    assert stats.metrics() == {
        "reward/acc_mean": 0.25,
        "reward/score_mean": 0.25,
        "reward/seq_reward_mean": 0.125,
        "reward/overlong_penalised": 0.25,
        "reward/grader_failures": 0.0,
        "tokens/truncated": 6.0,
        "response_length/mean": 4.0,
        "response_length/max": 6.0,
        "response_length/clip_ratio": 0.25,
    }


CPU = torch.device("cpu")


def test_peak_memory_counts_from_its_last_reset() -> None:
    reset_peak_memory(CPU)
    before = peak_memory_gb(CPU)
    held = bytearray(b"x" * 2**28)
    del held
    assert before + 0.24 < peak_memory_gb(CPU) < before + 0.6
    reset_peak_memory(CPU)
    assert 0.05 < peak_memory_gb(CPU) < before + 0.1
