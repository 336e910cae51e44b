"""Devices by name, and what communicates between them: `cpu` with gloo, `cuda` with NCCL, `npu` with HCCL."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dapo.errors import DapoError

if TYPE_CHECKING:
    from dapo.config import RolloutConfig

BACKENDS: Mapping[str, str] = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""Of torch.distributed, by kind of device."""
PLUGINS: Mapping[str, str] = {"npu": "torch_npu"}
"""The module that teaches torch a kind of device, where it isn't built in."""
Import = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Device:
    """Where this process computes."""

    torch: torch.device
    backend: str
    """Of torch.distributed."""


def choose_device(name: str, load: Import = importlib.import_module) -> Device:
    """Return this process's device: of several of a kind, the one of its LOCAL_RANK.

    Args:
        name: `trainer.device`: `auto` (an accelerator, if there is one), `cpu`, `cuda`, `npu`, or one with its number.
        load: imports a plug-in by its module's name.

    Raises:
        DapoError: there is no such device here.
    """
    if name == "auto":
        name = next((kind for kind in ("cuda", "npu") if _count(kind, load)), "cpu")
    kind, _, number = name.partition(":")
    if kind not in BACKENDS:
        raise DapoError(f"trainer.device: got {name!r}; need auto or one of {sorted(BACKENDS)}; set it to auto")
    if kind == "cpu":
        return Device(torch.device("cpu"), BACKENDS[kind])
    count = _count(kind, load)
    if not count:
        have = f"a {kind} device" if kind == "cuda" else f"a {kind} device and {PLUGINS[kind]}, which drives it"
        raise DapoError(f"trainer.device: got {name}, and there is none here; need {have}; set it to auto")
    index = int(number) if number else int(os.environ.get("LOCAL_RANK", "0"))
    if index >= count:
        need = f"one of the {count} of this machine, from 0"
        raise DapoError(f"trainer.device: got {kind}:{index}; need {need}; start fewer processes, or set it to auto")
    _module(kind, load).set_device(index)
    return Device(torch.device(kind, index), BACKENDS[kind])


def rollout_dtype(rollout: RolloutConfig, like: torch.Tensor) -> torch.dtype:
    """Return the type that generation computes in; `like` has the device, and the model's own type."""
    if rollout.dtype is None:
        return like.dtype
    name = rollout.dtype
    if name == "auto":
        name = "bfloat16" if has_fast_bfloat16(like.device) else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies matrices faster in bfloat16 than in float32; of processors, those with AMX."""
    if device.type == "cpu":
        return bool(torch.cpu.get_capabilities().get("amx_bf16", False))
    return bool(_module(device.type, importlib.import_module).is_bf16_supported())


def _count(kind: str, load: Import) -> int:
    """Devices of a kind on this machine."""
    try:
        module = _module(kind, load)
        return int(module.device_count()) if module.is_available() else 0
    except (ImportError, AttributeError):
        return 0


def _module(kind: str, load: Import) -> Any:
    """Torch's module of a kind of device, such as `torch.cuda`."""
    if kind in PLUGINS:
        load(PLUGINS[kind])
    return getattr(torch, kind)
