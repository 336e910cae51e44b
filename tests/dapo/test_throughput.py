"""Rates by phase, the device's peak, and how much it idles."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from dapo.accounting import Meter
from dapo.throughput import (
    AcceleratorClock,
    ProcessorClock,
    Work,
    busy_clock,
    idle_shares,
    measured_peak,
    of_all_devices,
    rates,
)


def test_rates_are_of_the_phase_that_worked() -> None:
    work = {"gen": Work(100, 2e9), "ref": Work(50, 1e9), "update_actor": Work()}
    seconds = {"gen": 2.0, "ref": 0.0, "update_actor": 3.0, "reward": 9.0}
    speeds = {"perf/tokens_per_s/gen": 50.0, "perf/tokens_per_s_per_device/gen": 12.5, "timing_per_token_ms/gen": 20.0}
    assert rates(work, seconds, 1e10, 4) == speeds | {"perf/mfu/gen": 0.1}
    assert rates(work, seconds, None, 4) == speeds


def test_what_is_computed_a_second_time_to_save_memory_is_a_cost_and_no_utilisation() -> None:
    meter = Meter(peak=1e9)
    meter.spend("update_actor", 8e6, 10, repeated=2e6)
    meter.note_part("update_actor", 1.0)
    assert meter.take_step()["perf/mfu/actor"] == pytest.approx(6e-3)
    assert meter.cost.flops == 8e6


def test_a_step_tells_its_own_work_and_tokens_cost_only_where_they_are_sampled() -> None:
    meter = Meter(peak=1e9)
    for tokens in (10, 30):
        meter.spend("gen", 1e6, tokens)
        meter.spend("update_actor", 6e6, 2 * tokens)
        meter.spend("old_log_prob", 1e6, tokens)
        for phase, seconds in (("gen", 1.0), ("update_actor", 4.0), ("old_log_prob", 1.0)):
            meter.note_part(phase, seconds)
        found = meter.take_step()
        assert found["perf/tokens_per_s/gen"] == tokens
        assert found["perf/tokens_per_s/update_actor"] == 2 * tokens / 3, "without the scoring in it"
        assert found["perf/tokens_per_s/old_log_prob"] == tokens
        assert found["perf/mfu/actor"] == pytest.approx(6e6 / 3 / 1e9)
        assert found["perf/mfu/actor_infer"] == pytest.approx(1e6 / 1e9)
        assert found["timing_s/update_actor"] == 4.0
        assert not any(name.startswith("perf/idle") for name in found), "nobody watched"
    assert meter.cost.tokens == 40 and meter.cost.flops == 1.6e7
    meter.spend_evaluation(1e6, 7)
    meter.note_part("testing", 0.5)
    assert meter.take_step()["perf/tokens_per_s/testing"] == 14.0
    assert meter.cost.tokens == 40


def test_the_peak_is_that_of_the_fastest_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 3.0, 5.0, 5.0, 5.5, 5.5, 7.5, 7.5, 9.5])  # the third of five takes half a second
    monkeypatch.setattr("dapo.throughput.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    measured_peak.cache_clear()
    assert measured_peak(torch.device("cpu"), torch.float32, 1) == 2 * 768**3 / 0.5
    assert measured_peak(torch.device("cpu"), torch.float32, 1) == 2 * 768**3 / 0.5, "measured once"
    measured_peak.cache_clear()


def test_a_processor_idles_in_the_phase_that_waits() -> None:
    meter = Meter()
    meter.start(ProcessorClock(threads=1))
    with meter.time("reward"):
        time.sleep(0.2)
    start = time.process_time()
    with meter.time("gen"):
        while time.process_time() - start < 0.1:
            pass
    time.sleep(0.1)  # in no phase
    found = meter.take_step()
    assert found["perf/idle/reward"] > 0.8
    assert found["perf/idle/gen"] < found["perf/idle_share"] < found["perf/idle/reward"]
    assert 0.09 < found["timing_s/other"] < found["timing_s/other"] + found["timing_s/gen"]
    with meter.time("gen"):
        pass
    assert "perf/idle/reward" not in meter.take_step(), "of the step before"


def test_shares_are_shares_whatever_the_clocks_say() -> None:
    assert idle_shares({"gen": 2.0, "all": 4.0, "ref": 0.0}, {"gen": 2.1, "all": 1.0, "ref": 0.0}) == {
        "perf/idle/gen": 0.0,
        "perf/idle_share": 0.75,
    }


def test_of_several_devices_the_extremes_show_who_waited() -> None:
    one = {"perf/idle_share": 0.1, "perf/idle/gen": 0.2, "perf/peak_memory_gb": 3.0}
    other = {"perf/idle_share": 0.7, "perf/peak_memory_gb": 5.0}
    assert of_all_devices([one]) == one
    assert of_all_devices([one, other]) == {
        "perf/idle_share": pytest.approx(0.4),
        "perf/idle_share_min": 0.1,
        "perf/idle_share_max": 0.7,
        "perf/peak_memory_gb": 5.0,
    }


def test_an_accelerator_is_looked_at_until_its_driver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "dapo.throughput.time", SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda _: turn.acquire())
    )
    turn, looked = threading.Semaphore(0), threading.Semaphore(0)
    percents = iter([30.0, 50.0])

    def utilisation() -> float:
        looked.release()
        try:
            return next(percents)
        except StopIteration:
            raise RuntimeError("no driver") from None

    def look() -> None:
        turn.release()
        assert looked.acquire(timeout=10)

    watch = AcceleratorClock(utilisation)
    assert looked.acquire(timeout=10)
    look_until(lambda: watch.busy_s() == 0.0)
    now[0] += 2.0
    assert watch.busy_s() == pytest.approx(0.6)
    look()
    now[0] += 2.0
    look_until(lambda: watch.busy_s() == pytest.approx(1.6))
    look()
    look_until(lambda: watch.busy_s() is None)


def look_until(holds: Callable[[], bool]) -> None:
    """A thread is between its look and its note of it."""
    for _ in range(1000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError


def test_the_devices_clock() -> None:
    assert busy_clock(torch.device("cpu")) == ProcessorClock(torch.get_num_threads())
