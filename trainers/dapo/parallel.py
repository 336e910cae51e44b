"""The processes that train together, and the one mesh that they form.

Every process runs the same algorithm on the same state: rollouts and gradients are computed in parts and exchanged, so
that all of them take the same decisions. Two views of one mesh:

- in the update (dp, sp): each of dp parts of a mini-batch goes to sp processes that share its sequences (Ulysses);
  weights, gradients and optimiser lie in parts on all of them, or on groups of `fsdp_size` (FSDP2);
- in generation (replica, tp): tp processes hold one copy of the model in parts, and each replica samples its prompts.

What a config computes doesn't depend on the mesh, up to rounding: every random number belongs to a response's place in
the round, and every loss weight to the whole mini-batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dapo.device import Device
from dapo.errors import DapoError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from dapo.config import Config

TIMEOUT = timedelta(hours=2)
"""For which a process waits for the others: one of them may grade, or write a checkpoint, meanwhile."""
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process's place among those that train together; the default is a process alone."""

    rank: int = 0
    size: int = 1
    update: DeviceMesh | None = None
    """(dp, sp); None of a process alone."""
    rollout: DeviceMesh | None = None
    """(replica, tp); None of a process alone."""

    @classmethod
    def of(cls, config: Config, device: Device) -> World:
        """Join the processes that the environment names (RANK, WORLD_SIZE, … as torchrun sets them).

        Raises:
            DapoError: the config's sizes don't divide them, or they can't be reached.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        sp, tp = config.actor.ulysses_sequence_parallel_size, config.rollout.tensor_model_parallel_size
        for key, part in (("actor.ulysses_sequence_parallel_size", sp), ("rollout.tensor_model_parallel_size", tp)):
            if size % part:
                raise DapoError(f"{key}: got {part}; need a divisor of the {size} processes; lower it, or start others")
        if not dist.is_initialized():
            try:
                dist.init_process_group(device.backend, timeout=TIMEOUT)
            except (RuntimeError, ValueError) as error:
                raise DapoError(f"torch.distributed: {error}; need all {size} processes; start them again") from error
        from torch.distributed.device_mesh import init_device_mesh

        kind = device.torch.type
        return cls(
            rank=dist.get_rank(),
            size=size,
            update=init_device_mesh(kind, (size // sp, sp), mesh_dim_names=("dp", "sp")),
            rollout=init_device_mesh(kind, (size // tp, tp), mesh_dim_names=("replica", "tp")),
        )

    @property
    def dp(self) -> Group:
        """The processes that train on different sequences."""
        return Group.of(self.update, "dp")

    @property
    def sp(self) -> Group:
        """The processes that share each sequence in the update."""
        return Group.of(self.update, "sp")

    @property
    def tp(self) -> Group:
        """The processes that share one copy of the model in generation."""
        return Group.of(self.rollout, "tp")

    @property
    def replicas(self) -> Group:
        """The copies of the model in generation."""
        return Group.of(self.rollout, "replica")

    @property
    def leads(self) -> bool:
        """Whether this process reports, grades and writes."""
        return self.rank == 0

    def all(self, flag: bool) -> bool:
        """Whether all processes say so."""
        if self.size == 1:
            return flag
        votes = torch.tensor([float(flag)], device=self._device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return bool(votes.item())

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            self.all(True)

    def gather(self, item: bytes) -> list[bytes]:
        """Return what each process gives, by rank."""
        if self.size == 1:
            return [item]
        device = self._device
        length = torch.tensor([len(item)], device=device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length)
        sizes = [int(count) for count in lengths]
        sent = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
        if item:
            sent[: len(item)] = torch.frombuffer(bytearray(item), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent)
        return [bytes(part[:count].cpu().numpy()) for part, count in zip(received, sizes, strict=True)]

    def told_by_leader(self, item: Any) -> Any:
        """Return what the leading process says: numbers, texts and lists, as JSON has them."""
        return json.loads(self.gather(json.dumps(item).encode() if self.leads else b"")[0])

    @property
    def kind(self) -> str:
        """Of device that they compute on, such as cpu; of a process alone it isn't known here."""
        return "cpu" if self.update is None else self.update.device_type

    @property
    def _device(self) -> torch.device:
        kind = self.kind
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


ALONE = World()


@dataclass(frozen=True)
class Group:
    """Processes along one dimension of the mesh."""

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, mesh: DeviceMesh | None, dimension: str) -> Group:
        """The group of this process; itself alone without a mesh."""
        if mesh is None:
            return cls()
        handle = mesh.get_group(dimension)
        return cls(dist.get_rank(handle), dist.get_world_size(handle), handle)

    def mine(self, items: Sequence[T]) -> list[T]:
        """Every `size`-th item, from this process's on."""
        return list(items[self.rank :: self.size])

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over the group, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.handle)
        return tensor

    def most(self, tensor: Tensor) -> Tensor:
        """The largest values over the group, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.handle)
        return tensor

    def joined(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """The tensors of the group, of equal shape, side by side along `dim`; without gradient."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.handle)
        return torch.cat(parts, dim)


ITSELF = Group()
"""The group of a process alone."""


def interleaved(parts: Iterable[Sequence[T]]) -> list[T]:
    """Put together again what `Group.mine` took apart."""
    columns = [list(part) for part in parts]
    return [columns[place % len(columns)][place // len(columns)] for place in range(sum(map(len, columns)))]


@contextmanager
def processes_end_together() -> Iterator[None]:
    """Leave the group when all are done: one that leaves before can end its peers. After a failure nobody waits."""
    yield
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
