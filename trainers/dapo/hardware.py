"""What a run is estimated on: devices by their figures, and how much of these it reaches. Loads no torch for most."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo.batch import Fault
from dapo.config import Config
from dapo.errors import DataError

COPIED = 2**25
"""Numbers that are copied to measure a memory's bandwidth: 128 MiB, more than caches hold."""
COPIES = 3
"""The fastest counts."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Which share of a device's figures a run reaches, and what costs time whatever its size.

    `ON_CPU` was measured (`python -m benchmarks growth` measures it again). `ON_ACCELERATOR` is assumed: shares that
    are common for such kernels, and the cost of launching them one by one. The benchmark holds what comes of it
    against published runs.
    """

    matmul: float
    """Share of the peak in the products of update and scoring."""
    decode: float
    """Share of the peak in the products of generation, where rows are few."""
    memory: float
    """Share of the memory's bandwidth."""
    link: float
    """Share of the bandwidth between devices."""
    overlap: float
    """Share of the shorter of computing and communicating that the longer hides, in the update."""
    layer_s: float
    """Seconds of a layer's forward pass that don't depend on its size: launching kernels, or calling them."""
    message_s: float
    """Seconds of one exchange between devices that don't depend on its size."""
    response_s: float
    """Seconds of a response outside of the model: sampling's share, grading, bookkeeping."""


ON_CPU = Reached(
    matmul=0.55, decode=0.35, memory=0.5, link=1.0, overlap=0.0, layer_s=1e-4, message_s=2e-4, response_s=2e-4
)
ON_ACCELERATOR = Reached(
    matmul=0.45, decode=0.6, memory=0.7, link=0.7, overlap=0.7, layer_s=1e-4, message_s=2e-5, response_s=1e-3
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices that train together, in SI units."""

    kind: str
    """`cpu`, `cuda` or `npu`."""
    devices: int
    per_node: int
    """Devices of one machine."""
    peak: float
    """FLOP/s of one device's matrix products, in the model's type."""
    memory: float
    """Bytes per second between a device and its memory."""
    link: float
    """Bytes per second from one device to others of its machine."""
    network: float
    """Bytes per second from one device to those of other machines."""
    memory_gb: float | None = None
    """GiB of one device; None: no limit."""
    reached: Reached = ON_ACCELERATOR

    @classmethod
    def of(cls, config: Config, hardware: Mapping[str, Any]) -> Machine:
        """Read a sweep's `hardware`; of a CPU what it doesn't say is measured here, in under a second.

        Raises:
            DataError: a figure is missing.
        """
        kind = str(hardware.get("kind") or config.trainer.device).partition(":")[0]
        kind = "cpu" if kind == "auto" else kind
        devices = int(hardware.get("devices") or 1)
        per_node = min(devices, int(hardware.get("devices_per_node") or devices))
        figures = {
            f"peak_tflops.{config.model.dtype}": (hardware.get("peak_tflops") or {}).get(config.model.dtype),
            "memory_gb_per_s": hardware.get("memory_gb_per_s"),
            "link_gb_per_s": hardware.get("link_gb_per_s") if devices > 1 else 1.0,
            "network_gb_per_s": hardware.get("network_gb_per_s") if devices > per_node else 1.0,
        }
        if kind == "cpu":
            figures = _measured(config, figures)
        lacking = [key for key, value in figures.items() if value is None]
        if lacking:
            do = "write it, or name a preset with --hardware"
            raise DataError(*(Fault(f"hardware.{key}", "nothing", "a number, to estimate with", do) for key in lacking))
        peak, memory, link, network = (float(value or 0.0) for value in figures.values())
        return cls(
            kind=kind,
            devices=devices,
            per_node=per_node,
            peak=peak * 1e12,
            memory=memory * 1e9,
            link=link * 1e9,
            network=network * 1e9,
            memory_gb=hardware.get("memory_gb"),
            reached=ON_CPU if kind == "cpu" else ON_ACCELERATOR,
        )

    def between(self, devices: int) -> float:
        """Bytes per second that each of so many devices, side by side, sends to the others."""
        return self.reached.link * (self.link if devices <= self.per_node else self.network)


def _measured(config: Config, figures: Mapping[str, float | None]) -> dict[str, float | None]:
    """The figures, with what a CPU's owner didn't say as it is measured here; processes exchange through memory."""
    peak, memory, link, network = figures
    found = dict(figures)
    if found[peak] is None:
        import torch

        from dapo.throughput import measured_peak

        threads = torch.get_num_threads()
        found[peak] = measured_peak(torch.device("cpu"), getattr(torch, config.model.dtype), threads) / 1e12
    if found[memory] is None:
        found[memory] = memory_bandwidth() / 1e9
    if found[link] is None:
        found[link] = (found[memory] or 0.0) / 4  # gloo copies into a socket and out of it, both read and write
    if found[network] is None:
        found[network] = found[link]
    return found


def memory_bandwidth() -> float:
    """Measure the bytes per second that this process reads and writes."""
    import torch

    source = torch.ones(COPIED)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(COPIES):
        start = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * 4 * COPIED / (time.perf_counter() - start))
    return best
