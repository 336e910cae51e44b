"""Memory and time of a run in each way that its devices can share it, before it costs anything. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dapo.batch import Fault
from dapo.config import Config
from dapo.errors import DataError
from dapo.hardware import Machine
from dapo.memory import GIB, MemoryEstimate, memory_of, rows_at_once
from dapo.mesh_sizes import MeshSizes
from dapo.model_size import ModelSize, size_of
from dapo.preflight import parallel_faults
from dapo.step_time import StepModel, StepTime, Workload

TP, SP = "rollout.tensor_model_parallel_size", "actor.ulysses_sequence_parallel_size"
RESPONSE_SHARE, PROMPT_SHARE = 0.4, 0.5
"""Mean lengths where they aren't told, as shares of their limits."""
KEPT = 0.5
"""Share of the groups that a filter keeps where it isn't told."""


@dataclass(frozen=True)
class LayoutEstimate:
    """A run on a mesh."""

    choice: Mapping[str, int]
    """Dotted path in `Config` -> value: the sizes of tensor and sequence parallelism."""
    refused: tuple[str, ...]
    """Why the sizes can't be, each reason in a line; there are no numbers then."""
    memory: MemoryEstimate | None = None
    """Of one device."""
    time: StepTime | None = None
    fits: bool = False
    """Whether the memory is there."""
    rows: int = 0
    """Largest `rollout.max_num_seqs` with which it is, up to the responses that there are; 0: there is none."""

    @property
    def order(self) -> tuple[bool, bool, float]:
        """What fits first, and the fastest of it."""
        return self.time is None, not self.fits, 0.0 if self.time is None else self.time.total


def estimate_layouts(
    config: Config,
    hardware: Mapping[str, Any],
    searched: Mapping[str, Sequence[Any]],
    assumed: Mapping[str, float | None],
) -> tuple[list[LayoutEstimate], Workload]:
    """Estimate a config for each size of tensor and sequence parallelism.

    Args:
        config: valid by its types; the model needs no weights, and its data needn't be here.
        hardware: of a sweep, as it is written.
        searched: by path, the values that a search chooses among. Sizes that aren't searched are tried as far as they
            divide the devices of a machine and the model's heads.
        assumed: by field of `Workload`, what a run would be like; None takes what is usual.

    Returns:
        The estimates, those that fit and the fastest first, and what was assumed.

    Raises:
        DataError: the model's size isn't known, or a figure of the hardware.
    """
    machine = Machine.of(config, hardware)
    size = size_of(config)
    if size is None:
        need = "a model whose shape is known: a folder with a config.json, or one that is here"
        raise DataError(Fault("model.path", repr(config.model.path), need, "name one, or fetch it"))
    if config.trainer.device == "auto":
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"device": machine.kind})})
    workload = workload_of(config, assumed)
    found = [
        _estimated(config, size, machine, workload, {TP: tp, SP: sp})
        for tp in _choices(config, size, machine, searched, TP)
        for sp in _choices(config, size, machine, searched, SP)
    ]
    return sorted(found, key=lambda layout: layout.order), workload


def workload_of(config: Config, assumed: Mapping[str, float | None]) -> Workload:
    """What a run of a config is assumed to be like."""
    data = config.data
    usual = Workload(
        prompt=PROMPT_SHARE * data.max_prompt_length,
        response=RESPONSE_SHARE * data.max_response_length,
        kept=KEPT if config.algorithm.filter_groups.enable else 1.0,
    )
    found = replace(usual, **{name: value for name, value in assumed.items() if value is not None})
    return replace(
        found, prompt=min(found.prompt, data.max_prompt_length), response=min(found.response, data.max_response_length)
    )


def _choices(
    config: Config, size: ModelSize, machine: Machine, searched: Mapping[str, Sequence[Any]], path: str
) -> list[int]:
    """The sizes to estimate: those that are searched, or all that can be within a machine."""
    if path in searched:
        return sorted(int(value) for value in searched[path])
    possible = (count for count in range(1, machine.per_node + 1) if machine.per_node % count == 0)
    return [count for count in possible if not list(_faults(config, size, machine, {path: count}))]


def _faults(config: Config, size: ModelSize, machine: Machine, choice: Mapping[str, int]) -> Iterator[Fault]:
    heads = (size.heads, size.kv_heads)
    yield from (
        fault for fault in parallel_faults(_with(config, choice), machine.devices, heads) if fault.key in choice
    )


def _with(config: Config, choice: Mapping[str, int]) -> Config:
    """The config with these sizes, for all of a machine's devices."""
    rollout, actor = config.rollout, config.actor
    trainer = config.trainer.model_copy(update={"n_gpus_per_node": None, "nnodes": 1})
    if TP in choice:
        rollout = rollout.model_copy(update={TP.rpartition(".")[2]: choice[TP]})
    if SP in choice:
        actor = actor.model_copy(update={SP.rpartition(".")[2]: choice[SP]})
    return config.model_copy(update={"rollout": rollout, "actor": actor, "trainer": trainer})


def _estimated(
    config: Config, size: ModelSize, machine: Machine, workload: Workload, choice: Mapping[str, int]
) -> LayoutEstimate:
    faults = list(_faults(config, size, machine, choice))
    if faults:
        return LayoutEstimate(choice, tuple(f"{fault.key}: got {fault.got}; need {fault.need}" for fault in faults))
    config = _with(config, choice)
    mesh = MeshSizes.of(config, machine.devices)
    memory = memory_of(config, size, mesh)
    time = StepModel(config, size, machine, mesh, workload).estimate()
    fits = machine.memory_gb is None or memory.total_gb <= machine.memory_gb
    return LayoutEstimate(choice, (), memory, time, fits, _rows_that_fit(config, memory, mesh, machine.memory_gb))


def _rows_that_fit(config: Config, memory: MemoryEstimate, mesh: MeshSizes, limit_gb: float | None) -> int:
    """How many responses a device can decode at once; a row's keys and values, and its logits, are all of one size."""
    every = -(-config.gen_batch_size * config.rollout.n // mesh.replicas)
    if limit_gb is None:
        return every
    held = memory.phases["generation"]
    by_row = held["KV cache"] + held["logits"]
    room = limit_gb * GIB - (sum(held.values()) - by_row)
    if room < 0 or sum(memory.phases["update"].values()) > limit_gb * GIB:
        return 0
    return min(every, int(room / by_row * rows_at_once(config, mesh)))
