"""Rates by phase, the device's peak, and how much it idles."""

import threading
import time

import pytest
import torch
from dapo.accounting import Meter
from dapo.throughput import AcceleratorIdle, ProcessorIdle, Work, idle_watch, measured_peak, rates


def test_rates_are_of_the_phase_that_worked() -> None:
    work = {"gen": Work(100, 2e9), "ref": Work(50, 1e9), "update_actor": Work()}
    seconds = {"gen": 2.0, "ref": 0.0, "update_actor": 3.0, "reward": 9.0}
    assert rates(work, seconds, 1e10) == {"perf/tokens_per_s/gen": 50.0, "perf/mfu/gen": 0.1}
    assert rates(work, seconds, None) == {"perf/tokens_per_s/gen": 50.0}


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
        assert found["perf/mfu/update_actor"] == pytest.approx(6e6 / 3 / 1e9)
        assert found["timing_s/update_actor"] == 4.0
        assert "perf/idle_share" not in found
    assert meter.cost.tokens == 40 and meter.cost.flops == 1.6e7
    meter.spend_evaluation(1e6, 7)
    meter.note_part("testing", 0.5)
    assert meter.take_step()["perf/tokens_per_s/testing"] == 14.0
    assert meter.cost.tokens == 40


def test_the_peak_is_that_of_a_matrix_product() -> None:
    peak = measured_peak(torch.device("cpu"), torch.float32, torch.get_num_threads())
    left = torch.ones(768, 768)
    start = time.perf_counter()
    torch.mm(left, left)
    once = 2 * 768**3 / (time.perf_counter() - start)
    assert 1e8 < peak < 1e14 and once < 3 * peak


def test_a_processor_idles_while_it_waits_and_not_while_it_computes() -> None:
    watch = ProcessorIdle(threads=1)
    time.sleep(0.2)
    waited = watch.take()
    assert waited is not None and waited > 0.8
    start = time.process_time()
    while time.process_time() - start < 0.1:
        pass
    busy = watch.take()
    assert busy is not None and busy < waited


def test_an_accelerator_is_looked_at_until_its_driver_fails() -> None:
    looked = threading.Event()
    percents = iter([30.0, 50.0])

    def utilisation() -> float:
        try:
            return next(percents)
        except StopIteration:
            looked.set()
            raise RuntimeError("no driver") from None

    watch = AcceleratorIdle(utilisation)
    assert looked.wait(10)
    assert watch.take() == pytest.approx(0.6)
    assert watch.take() is None


def test_the_devices_watch() -> None:
    assert isinstance(idle_watch(torch.device("cpu")), ProcessorIdle)
