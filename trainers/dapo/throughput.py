"""How well a device is used: tokens per second by phase, the share of its peak, and how much of the time it is idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import torch

PEAK_RUNS = 5
"""Products that are timed; the fastest counts."""
PEAK_SIZE = {"cpu": 768, "cuda": 4096}
"""Rows and columns of the matrices, by kind of device: some milliseconds a product."""
SAMPLED_EVERY_S = 0.2
"""Between two looks at an accelerator's utilisation."""


@lru_cache
def measured_peak(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """Return FLOP/s of a square matrix product on this device: what a model's products can reach at most.

    Args:
        device: where.
        dtype: of the matrices.
        threads: CPU threads that torch uses now; a part of the cache's key.
    """
    del threads
    size = PEAK_SIZE.get(device.type, PEAK_SIZE["cuda"])
    left = torch.ones(size, size, device=device, dtype=dtype)
    best = 0.0
    for _ in range(PEAK_RUNS + 1):  # the first one warms up, and is never the fastest
        _synchronise(device)
        start = time.perf_counter()
        torch.mm(left, left)
        _synchronise(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


@dataclass(slots=True)
class Work:
    """What one phase of a step computed."""

    tokens: int = 0
    """Sampled in generation, passed through the model elsewhere; a pass that is repeated counts again."""
    flops: float = 0.0

    def add(self, tokens: int, flops: float) -> None:
        """Add more of it."""
        self.tokens += tokens
        self.flops += flops


def rates(work: Mapping[str, Work], seconds: Mapping[str, float], peak: float | None) -> dict[str, float]:
    """Return tokens per second and model FLOPs utilisation by metric name, for each phase that worked.

    Args:
        work: by phase.
        seconds: of each phase.
        peak: FLOP/s of the device; None: no utilisation.
    """
    found = {}
    for phase, done in work.items():
        spent = seconds.get(phase, 0.0)
        if spent > 0.0 and done.tokens:
            found[f"perf/tokens_per_s/{phase}"] = done.tokens / spent
            if peak is not None:
                found[f"perf/mfu/{phase}"] = done.flops / spent / peak
    return found


class IdleWatch(Protocol):
    """Tells how much of the time since it was last asked a device was idle."""

    def take(self) -> float | None:
        """Share in [0, 1]; None where it can't be told."""


@dataclass(slots=True)
class ProcessorIdle:
    """Of the CPU threads that a run has: what it didn't compute, waited for graders, the disk or other processes."""

    threads: int
    _wall: float = field(default_factory=time.perf_counter)
    _busy: float = field(default_factory=time.process_time)

    def take(self) -> float | None:
        """Return the idle share since the last call."""
        wall, busy = time.perf_counter(), time.process_time()
        elapsed, worked = wall - self._wall, busy - self._busy
        self._wall, self._busy = wall, busy
        return min(max(1.0 - worked / (elapsed * self.threads), 0.0), 1.0) if elapsed > 0.0 else None


class AcceleratorIdle:
    """Of an accelerator, by its driver's utilisation, looked at now and then from a thread."""

    def __init__(self, utilisation: Callable[[], float]) -> None:
        """Start to look.

        Args:
            utilisation: percent of the last moments in which the device computed, such as `torch.cuda.utilization`.
        """
        self._utilisation = utilisation
        self._lock = threading.Lock()
        self._seen: list[float] = []
        threading.Thread(target=self._look, daemon=True, name="utilisation").start()

    def take(self) -> float | None:
        """Return the idle share since the last call; None if nothing was seen."""
        with self._lock:
            seen, self._seen = self._seen, []
        return 1.0 - sum(seen) / len(seen) / 100.0 if seen else None

    def _look(self) -> None:
        while True:
            try:
                percent = self._utilisation()
            except Exception:  # the driver's library is missing, or forbids it: nothing can be told
                return
            with self._lock:
                self._seen.append(percent)
            time.sleep(SAMPLED_EVERY_S)


def idle_watch(device: torch.device) -> IdleWatch:
    """Return what watches a device."""
    if device.type == "cuda":
        return AcceleratorIdle(lambda: float(torch.cuda.utilization(device)))
    return ProcessorIdle(torch.get_num_threads())


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
