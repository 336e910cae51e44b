"""How well devices are used: tokens per second by phase, the share of their peak, and how long they idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

PEAK_RUNS = 5
"""Products that are timed; the fastest counts."""
PEAK_SIZE = {"cpu": 768, "cuda": 4096}
"""Rows and columns of the matrices, by kind of device: some milliseconds a product."""
SAMPLED_EVERY_S = 0.2
"""Between two looks at an accelerator's utilisation."""
MFU_NAMES = {"update_actor": "actor", "old_log_prob": "actor_infer"}
"""What verl calls a phase in `perf/mfu/…`, where it has another name for it there."""


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
    for _ in range(PEAK_RUNS):
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
    """The model's: without what gradient checkpointing computes a second time (arXiv 2204.02311, appendix B)."""

    def add(self, tokens: int, flops: float) -> None:
        """Add more of it."""
        self.tokens += tokens
        self.flops += flops


def rates(
    work: Mapping[str, Work], seconds: Mapping[str, float], peak: float | None, devices: int = 1
) -> dict[str, float]:
    """Return speeds and model FLOPs utilisation by metric name, for each phase that worked.

    Args:
        work: by phase, of all devices.
        seconds: of each phase.
        peak: FLOP/s of all devices; None: no utilisation.
        devices: that worked at the same time.
    """
    found = {}
    for phase, done in work.items():
        spent = seconds.get(phase, 0.0)
        if spent > 0.0 and done.tokens:
            found[f"perf/tokens_per_s/{phase}"] = done.tokens / spent
            found[f"perf/tokens_per_s_per_device/{phase}"] = done.tokens / spent / devices
            found[f"timing_per_token_ms/{phase}"] = 1000.0 * spent / done.tokens
            if peak is not None:
                found[f"perf/mfu/{MFU_NAMES.get(phase, phase)}"] = done.flops / spent / peak
    return found


def idle_shares(wall: Mapping[str, float], busy: Mapping[str, float]) -> dict[str, float]:
    """Shares in [0, 1] by metric name: `perf/idle/<phase>`, and `perf/idle_share` of the key `all`.

    Args:
        wall: seconds of each phase.
        busy: seconds of them in which the device computed.
    """
    shares = {phase: min(max(1.0 - busy[phase] / spent, 0.0), 1.0) for phase, spent in wall.items() if spent > 0.0}
    return {"perf/idle_share" if phase == "all" else f"perf/idle/{phase}": share for phase, share in shares.items()}


def of_all_devices(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Put together what each device says of itself: the largest memory; of idle shares the mean, the least, the most.

    A device that waits for the others idles on a CPU. An accelerator's driver counts NCCL's waiting as work: there only
    waiting outside of it is seen.

    Args:
        found: of each device, `perf/idle…` and `perf/…memory…` by metric name.
    """
    named = [name for name in found[0] if all(name in one for one in found)]
    values = {name: [one[name] for one in found] for name in named}
    together = {
        name: sum(each) / len(each) if name.startswith("perf/idle") else max(each) for name, each in values.items()
    }
    if len(found) > 1 and "perf/idle_share" in values:
        together["perf/idle_share_min"] = min(values["perf/idle_share"])
        together["perf/idle_share_max"] = max(values["perf/idle_share"])
    return together


class BusyClock(Protocol):
    """Tells for how long a device has computed."""

    def busy_s(self) -> float | None:
        """Seconds since some instant; None where it can't be told."""


@dataclass(frozen=True, slots=True)
class ProcessorClock:
    """Of the CPU threads that a run has: they idle while graders, the disk or other processes are waited for."""

    threads: int

    def busy_s(self) -> float:
        """Return the mean over the threads."""
        return time.process_time() / self.threads


class AcceleratorClock:
    """Of an accelerator, by its driver's utilisation; a thread looks at it now and then, to the end of the process."""

    def __init__(self, utilisation: Callable[[], float]) -> None:
        """Start to look.

        Args:
            utilisation: percent of the last moments in which the device computed, such as `torch.cuda.utilization`.
        """
        self._utilisation = utilisation
        self._lock = threading.Lock()
        self._busy_s = 0.0
        self._share: float | None = None
        self._seen_at = time.perf_counter()
        threading.Thread(target=self._look, daemon=True, name="utilisation").start()

    def busy_s(self) -> float | None:
        """Return the sum over what was seen; since the last look, as it was then."""
        with self._lock:
            if self._share is None:
                return None
            return self._busy_s + self._share * (time.perf_counter() - self._seen_at)

    def _look(self) -> None:
        while True:
            try:
                share = self._utilisation() / 100.0
            except Exception:  # the driver's library is missing, or forbids it: nothing can be told
                with self._lock:
                    self._share = None
                return
            with self._lock:
                now = time.perf_counter()
                self._busy_s += (share if self._share is None else self._share) * (now - self._seen_at)
                self._share, self._seen_at = share, now
            time.sleep(SAMPLED_EVERY_S)


def busy_clock(device: torch.device) -> BusyClock:
    """Return what watches a device; all runs of a process share an accelerator's."""
    return _accelerator_clock(device) if device.type == "cuda" else ProcessorClock(torch.get_num_threads())


@lru_cache
def _accelerator_clock(device: torch.device) -> AcceleratorClock:
    return AcceleratorClock(lambda: float(torch.cuda.utilization(device)))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
