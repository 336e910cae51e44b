"""What a config asks of this machine's devices, by what their drivers say: torch would take seconds to load."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dapo.batch import Fault
from dapo.config import Config

NPU_PLUGIN = "torch_npu"
"""The module without which torch has no NPU."""
COMPILERS = (os.environ.get("CXX", "g++"), "clang++")
"""What torch compiles with."""
DEVICES = Path("/dev")
"""Where each NPU has a file."""


def machine_faults(config: Config) -> Iterator[Fault]:
    """What keeps a run of `config` from starting on this machine, as far as can be told without torch."""
    trainer, started = config.trainer, os.environ.get("LOCAL_WORLD_SIZE")
    if trainer.nnodes > 1 and started is None:
        need = "1 on this machine alone, `torchrun -m dapo.train` on every machine, or a sweep on a Ray cluster"
        yield Fault("trainer.nnodes", str(trainer.nnodes), need, "set it to 1, or start it so")
    if config.actor.use_torch_compile and not any(map(shutil.which, COMPILERS)):
        need = f"a C++ compiler on this machine ({' or '.join(COMPILERS)}), which torch.compile calls"
        yield Fault("actor.use_torch_compile", "true", need, "install one, or set it to false")
    kind = trainer.device.partition(":")[0]
    if kind not in ("cuda", "npu") or (count := count_devices(kind)) is None:
        return
    if count == 0:
        have = f"a {kind} device" if kind == "cuda" else f"an NPU and {NPU_PLUGIN}, which drives it"
        yield Fault("trainer.device", repr(trainer.device), f"{have}; there is none here", "set it to auto")
    elif int(started or trainer.n_gpus_per_node or 1) > count:
        key, got = ("nproc-per-node", started) if started else ("trainer.n_gpus_per_node", trainer.n_gpus_per_node)
        yield Fault(key, str(got), f"at most the {count} {kind} devices of this machine", "lower it")


def count_devices(kind: str) -> int | None:
    """Devices of a kind (`cuda` or `npu`) that torch would find on this machine; None where only torch can tell."""
    if kind == "npu":
        known = NPU_PLUGIN in sys.modules or find_spec(NPU_PLUGIN) is not None
        return len(list(DEVICES.glob("davinci[0-9]*"))) if known else 0
    try:
        _, _, build = version("torch").partition("+")
    except PackageNotFoundError:
        return None
    if build.startswith("rocm"):
        return None  # AMD's devices go by this name too
    return 0 if build == "cpu" else _count_by_driver()


def _count_by_driver() -> int:
    """What NVIDIA's driver counts, as CUDA_VISIBLE_DEVICES lets it see."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value
