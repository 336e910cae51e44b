"""How many processes share what, of the mesh that `dapo.parallel` forms, known without one. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from dapo.config import Config


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """The numbers of a mesh; each divides `devices`."""

    devices: int = 1
    sp: int = 1
    """That share each sequence in the update (Ulysses)."""
    tp: int = 1
    """That share a copy of the model in generation."""
    shards: int = 1
    """That share a copy of weights, gradients and optimiser (FSDP2)."""

    @classmethod
    def of(cls, config: Config, devices: int) -> MeshSizes:
        """What a config makes of so many devices."""
        wanted = config.actor.fsdp_config.fsdp_size
        return cls(
            devices=devices,
            sp=config.actor.ulysses_sequence_parallel_size,
            tp=config.rollout.tensor_model_parallel_size,
            shards=devices if wanted <= 0 else min(wanted, devices),
        )

    @property
    def dp(self) -> int:
        """Parts that a mini-batch is trained in."""
        return max(1, self.devices // self.sp)

    @property
    def replicas(self) -> int:
        """Copies of the model that generate."""
        return max(1, self.devices // self.tp)
