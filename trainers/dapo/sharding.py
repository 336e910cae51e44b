"""Weights, gradients and optimiser in parts over processes (FSDP2), and whole again where something reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dapo.errors import DapoError, ModelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from dapo.config_actor import FSDPConfig
    from dapo.model import Policy

# FSDP and DTensor are imported where a model is spread: they take a second, which a process alone has no use for. So
# what may be in parts is told by what it can do.


def shard(policy: Policy, config: FSDPConfig) -> None:
    """Spread a policy's weights over its world, in place; a process alone keeps them.

    Gradients are summed, not averaged: each loss weight belongs to the whole mini-batch already.

    Args:
        policy: whole, and the same in all processes; or without weights yet (on torch's meta device), as it then stays.
        config: over how many processes, and where the parts lie.

    Raises:
        DapoError: `fsdp_size` doesn't divide the processes.
        ModelError: the model isn't one that can be spread.
    """
    if policy.world.size == 1:
        return
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    from dapo.model_decoder import Decoder

    world, model = policy.world, policy.model
    if not isinstance(model, Decoder):
        raise ModelError(
            f"model.path: got a model that runs through transformers, on {world.size} processes; need one of the "
            "Llama, Qwen2 or Qwen3 family; use one process, or another model"
        )
    model.sequence_group = world.sp
    kind = world.kind
    mesh = _mesh(kind, world.size, config.fsdp_size)
    offload = CPUOffloadPolicy(pin_memory=kind == "cuda") if config.offload_policy else OffloadPolicy()
    for layer in model.blocks:
        fully_shard(layer, mesh=mesh, offload_policy=offload, reshard_after_forward=config.reshard_after_forward)
    # The head is read after the forward pass: it stays whole until the gradients are summed.
    fully_shard(model, mesh=mesh, offload_policy=offload, reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden_packed")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can't scale in passing


def _mesh(kind: str, size: int, fsdp_size: int) -> DeviceMesh:
    """Over which weights lie in parts: all processes, or copies on groups of `fsdp_size`."""
    from torch.distributed.device_mesh import init_device_mesh

    shards = size if fsdp_size <= 0 else min(fsdp_size, size)
    if size % shards:
        need = f"a divisor of the {size} processes, or -1 for all"
        raise DapoError(f"actor.fsdp_config.fsdp_size: got {fsdp_size}; need {need}; lower it")
    if shards == size:
        return init_device_mesh(kind, (size,), mesh_dim_names=("fsdp",))
    return init_device_mesh(kind, (size // shards, shards), mesh_dim_names=("ddp", "fsdp"))


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor of which this process may have a part, whole; all processes must ask."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole


def rows_here(like: Tensor) -> slice:
    """Which of its first dimension's rows this process has of a tensor that may be in parts: all of one that isn't."""
    if not hasattr(like, "full_tensor"):
        return slice(None)
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    # The parts lie along the mesh's last dimension, each as torch.chunk cuts them.
    mesh, last = like.device_mesh, like.device_mesh.ndim - 1
    start = mesh.get_local_rank(last) * -(-like.shape[0] // mesh.size(last))
    return slice(min(start, like.shape[0]), min(start + len(like.to_local()), like.shape[0]))


def rows_of(tensor: Tensor) -> Tensor:
    """The rows that this process has, as a plain tensor that shares their memory."""
    return torch.as_tensor(tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def part_like(rows: Tensor, like: Tensor) -> Tensor:
    """A tensor in parts as those of `like` lie, of which this process has the rows that `rows_here` names."""
    if not hasattr(like, "full_tensor") or rows.dim() == 0:
        return rows
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    part: Tensor = DTensor.from_local(
        rows.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return part


@contextmanager
def unsharded(module: nn.Module) -> Iterator[bool]:
    """Have a module's own weights whole in the block; whether they'll be gone after it. All processes must ask."""
    if not hasattr(module, "unshard"):
        yield False
        return
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(module, FSDPModule)
    module.unshard()
    try:
        with torch.no_grad():
            yield True
    finally:
        module.reshard()


def clip_gradients(weights: Iterable[nn.Parameter], limit: float) -> float:
    """Scale gradients down to a norm of `limit` in all, over all processes; return the norm that they had."""
    return float(whole_tensor(nn.utils.clip_grad_norm_(weights, limit)).item())
