"""What a run needs at its peak on one device, told from its config before it costs anything. Loads no torch.

Prompts and responses count with the greatest length that the config allows, and as many are decoded and packed at once
as it allows. `perf/peak_memory_gb` is what a run really had; `python -m benchmarks memory` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dapo.config import Config
from dapo.data import GENERATED
from dapo.mesh_sizes import MeshSizes
from dapo.model_size import ModelSize, size_of

GIB = 2**30
PROCESS = 0.35 * GIB
"""Python, torch and its libraries, on a CPU; of an accelerator's memory they take none."""
SLACK = 1.25
"""On a CPU: what the allocator holds over what is in use, of everything that comes and goes. Measured."""
CHURN = 3
"""On a CPU, with gradient checkpointing: layers whose activations the allocator holds although they are freed, since
each layer is made and freed twice. Measured: with every tensor given back at once it is none."""
LOGITS_AT_ONCE = 2**22
"""`dapo.model_logprobs.CHUNK_ELEMENTS`; a test holds them equal."""
CANDIDATES = 4
"""Copies of a step's logits [rows, vocab] in float32 while tokens are drawn from them."""
SCORED = 5
"""Copies of a chunk of logits, in float32, while it is scored."""
GATHERED = 2
"""Layers that are whole at once under FSDP: the one that is computed, and the next."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes at the peak of a run, on one device, by what they are for."""

    phases: Mapping[str, Mapping[str, float]]
    """Of `generation` and `update`: what is held at once when most is."""

    @property
    def phase(self) -> str:
        """The phase that holds more."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def parts(self) -> Mapping[str, float]:
        """What it holds."""
        return self.phases[self.phase]

    @property
    def total_gb(self) -> float:
        """GiB in all, as `perf/peak_memory_gb`."""
        return sum(self.parts.values()) / GIB

    def __str__(self) -> str:
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {size / GIB:.3g}" for name, size in largest if size >= 0.005 * GIB)
        return f"{self.total_gb:.3g} GiB in {self.phase} ({parts})"


def estimate_memory(config: Config, devices: int = 1) -> MemoryEstimate | None:
    """Estimate the peak memory of a run on one of its devices.

    Args:
        config: valid by its types.
        devices: that train together, unless the config says how many.

    Returns:
        What generation and the update hold; None where the model isn't here yet, or doesn't say its size.
    """
    size, trainer = size_of(config), config.trainer
    if trainer.n_gpus_per_node is not None:
        devices = trainer.n_gpus_per_node * trainer.nnodes
    return None if size is None else memory_of(config, size, MeshSizes.of(config, devices))


def memory_of(config: Config, size: ModelSize, mesh: MeshSizes) -> MemoryEstimate:
    """Estimate the peak memory of a run of a model of this size on one device of a mesh."""
    width = bytes_of(config)
    trained = _trained_parameters(config, size)
    on_cpu = config.trainer.device in ("auto", "cpu")
    on_host = config.actor.fsdp_config.offload_policy and mesh.devices > 1 and not on_cpu
    here = 0.0 if on_host else 1.0 / mesh.shards
    held = {
        "weights": size.parameters * width * here,
        "reference": size.parameters * width * _has_reference(config) * here,
        "optimizer": 2 * trained * width * here,
        "process": PROCESS * on_cpu,
    }
    passing = {
        "generation": _generation(config, size, mesh),
        "update": _gradients(config, size, mesh, trained, here) | _update(config, size, mesh, churn=CHURN * on_cpu),
    }
    slack = SLACK if on_cpu else 1.0
    return MemoryEstimate(
        {phase: held | {name: part * slack for name, part in parts.items()} for phase, parts in passing.items()}
    )


def bytes_of(config: Config) -> int:
    """Bytes of one number of the model."""
    return 2 if config.model.dtype == "bfloat16" else 4


def _trained_parameters(config: Config, size: ModelSize) -> int:
    """All, or those of an adapter: two matrices of its rank at each projection that has one."""
    rank = config.model.lora_rank
    if rank == 0:
        return size.parameters
    ends = {
        "q_proj": size.hidden + size.queries,
        "k_proj": size.hidden + size.keys,
        "v_proj": size.hidden + size.keys,
        "o_proj": size.queries + size.hidden,
        "gate_proj": size.hidden + size.intermediate,
        "up_proj": size.hidden + size.intermediate,
        "down_proj": size.intermediate + size.hidden,
    }
    named = config.model.target_modules
    chosen = ends if named == "all-linear" else {name: ends.get(name, 2 * size.hidden) for name in named}
    return size.layers * rank * sum(chosen.values())


def _has_reference(config: Config) -> bool:
    """Whether a second copy of the weights is held for a KL; with an adapter it is the same one without it."""
    return (config.actor.use_kl_loss or config.algorithm.use_kl_in_reward) and config.model.lora_rank == 0


def _gradients(config: Config, size: ModelSize, mesh: MeshSizes, trained: int, here: float) -> dict[str, float]:
    """Those of what is trained; with the head's, the one that is being added to it.

    An adapter's products with the weights are held too, each with the sum. Of a model in parts some layers are whole
    for the time of their computation, with their gradients, and the embeddings and the head for all of it.
    """
    width = bytes_of(config)
    if config.model.lora_rank:
        found = {"gradients": trained * width * here, "adapted weights": float(2 * size.layer_weights * width)}
    else:
        found = {"gradients": (trained * here + 2 * size.vocab * size.hidden) * width}
    if mesh.shards > 1:
        layers = GATHERED * 2 * size.layer_weights / size.layers
        found["gathered weights"] = (layers + size.root_weights) * width
    return found


def _generation(config: Config, size: ModelSize, mesh: MeshSizes) -> dict[str, float]:
    """Keys and values of all rows at their longest, the engine's weights, and a step's logits.

    The engine shares what it doesn't fuse with a model that is whole on this device and of its type; otherwise all is
    its own.
    """
    width, rows = _rollout_bytes(config), rows_at_once(config, mesh)
    length = config.data.max_prompt_length + config.data.max_response_length
    shared = mesh.shards == mesh.tp == 1 and width == bytes_of(config)
    fused = size.layers * size.hidden * (size.queries + 2 * size.keys + 2 * size.intermediate)
    own = fused if shared else (size.parameters - size.root_weights) / mesh.tp
    root = 0.0 if shared else size.hidden * size.vocab * (1 + 1 / mesh.tp)
    keys = size.keys / min(mesh.tp, size.kv_heads)
    return {
        "KV cache": float(2 * size.layers * keys * rows * length * width),
        "engine weights": float((own + root) * width * size.native),
        "logits": float(CANDIDATES * rows * size.vocab * 4),
    }


def _rollout_bytes(config: Config) -> int:
    """Bytes of one number in generation; where the device decides, those of what it usually decides on."""
    dtype = config.rollout.dtype or config.model.dtype
    if dtype == "auto":
        dtype = "float32" if config.trainer.device in ("auto", "cpu") else "bfloat16"
    return 2 if dtype == "bfloat16" else 4


def rows_at_once(config: Config, mesh: MeshSizes) -> int:
    """Responses that one copy of the model decodes at once, at most."""
    prompts = config.data.gen_batch_size or config.data.train_batch_size
    responses = max(prompts * config.rollout.n, _evaluated_rows(config))
    return min(config.rollout.max_num_seqs, -(-responses // mesh.replicas))


def _evaluated_rows(config: Config) -> int:
    """Responses of an evaluation; as many as fit at once where the number of problems isn't known."""
    problems = evaluated_problems(config)
    return (config.rollout.max_num_seqs if problems is None else problems) * config.rollout.val_kwargs.n


def evaluated_problems(config: Config) -> int | None:
    """Problems of an evaluation; None where only the file would tell."""
    if config.data.val_size is not None:
        return config.data.val_size
    return GENERATED[config.data.val][1] if config.data.val in GENERATED else None


def _update(config: Config, size: ModelSize, mesh: MeshSizes, *, churn: int) -> dict[str, float]:
    """What the backward pass of the largest micro-batch needs, and the logits of a chunk.

    Args:
        config: of the run.
        size: of the model.
        mesh: the processes; those of a Ulysses group share the tokens.
        churn: layers that the allocator holds although they are freed, with gradient checkpointing.
    """
    actor, width = config.actor, bytes_of(config)
    length = config.data.max_prompt_length + config.data.max_response_length
    responses = -(-config.mini_batch_size * config.rollout.n // mesh.dp)
    if actor.use_dynamic_bsz:
        packed = min(max(actor.ppo_max_token_len_per_gpu, length), responses * length)
    else:
        packed = min(actor.ppo_micro_batch_size_per_gpu or responses, responses) * length
    tokens = -(-packed // mesh.sp)
    layer = size.kept_per_token * width
    layer += 4 * size.hidden * (width == 2)  # norms compute in float32
    # Checkpointing keeps each layer's input; one layer is computed again, and its gradients are as large.
    kept = size.layers * size.hidden * width + (2 + churn) * layer
    activations = tokens * (kept if config.model.enable_gradient_checkpointing else size.layers * layer)
    if mesh.sp > 1:
        activations += 2 * packed * size.hidden * width  # what comes out of the model is whole, and its gradient
    chunk = min(tokens * size.vocab, max(LOGITS_AT_ONCE, size.vocab))
    if not size.native:  # whole sequences, padded: scores of every token with every other, before and after softmax
        activations += size.layers * size.heads * tokens * length * (2 * width + 4)
    return {"activations": float(activations), "logits": float(SCORED * chunk * 4)}
