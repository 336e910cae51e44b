"""What a run needs at its peak on one device, told from its config before it costs anything. Loads no torch.

Prompts and responses count with the greatest length that the config allows, and as many are decoded and packed at once
as it allows. `perf/peak_memory_gb` is what a run really had; `python -m benchmarks memory` compares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.config import Config
from dapo.data import GENERATED
from dapo.errors import DapoError
from dapo.model_config import DecoderConfig, heads_of, is_native
from dapo.model_folder import find_model
from dapo.named_models import NAMED_SHAPES

GIB = 2**30
PROCESS = 0.35 * GIB
"""Python, torch and its libraries, on a CPU; of an accelerator's memory they take none."""
SLACK = 1.25
"""On a CPU: what the allocator holds over what is in use, of everything that comes and goes. Measured."""
LOGITS_AT_ONCE = 2**22
"""`dapo.model_logprobs.CHUNK_ELEMENTS`; a test holds them equal."""
CANDIDATES = 4
"""Copies of a step's logits [rows, vocab] in float32 while tokens are drawn from them."""
SCORED = 5
"""Copies of a chunk of logits, in float32, while it is scored."""
MAX_HEADER = 100 * 2**20
"""Bytes that safetensors allows a header."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes at the peak of a run, by what they are for."""

    parts: Mapping[str, float]
    """Only those that are held at once when most is."""
    phase: str
    """When that is: `generation` or `update`."""

    @property
    def total_gb(self) -> float:
        """GiB in all, as `perf/peak_memory_gb`."""
        return sum(self.parts.values()) / GIB

    def __str__(self) -> str:
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {size / GIB:.2g}" for name, size in largest if size >= 0.005 * GIB)
        return f"{self.total_gb:.3g} GiB in {self.phase} ({parts})"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a model that memory depends on."""

    parameters: int
    hidden: int
    intermediate: int
    layers: int
    queries: int
    """Width of a layer's queries: heads times their size."""
    keys: int
    """Width of a layer's keys; that of its values too."""
    heads: int
    vocab: int
    native: bool
    """Computed by our own decoder, and not by transformers."""

    @classmethod
    def of_decoder(cls, shape: DecoderConfig) -> ModelSize:
        """Read the shape of our own decoder; its parameters follow from it."""
        queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        embeddings = shape.vocab_size * shape.hidden_size
        norms = shape.hidden_size * (2 * shape.num_hidden_layers + 1)
        biases = shape.num_hidden_layers * (queries + 2 * keys) * shape.qkv_bias
        untied = 0 if shape.tie_word_embeddings else embeddings
        return cls(
            parameters=shape.weights_per_token + untied + norms + biases,
            hidden=shape.hidden_size,
            intermediate=shape.intermediate_size,
            layers=shape.num_hidden_layers,
            queries=queries,
            keys=keys,
            heads=shape.num_attention_heads,
            vocab=shape.vocab_size,
            native=True,
        )

    @classmethod
    def of_folder(cls, folder: Path) -> ModelSize | None:
        """Read a Hugging Face folder; None where it doesn't say what is needed."""
        try:
            raw = json.loads((folder / "config.json").read_text("utf-8"))
            if is_native(raw):
                return cls.of_decoder(DecoderConfig.from_dict(raw))
            return _foreign(raw, folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, DapoError):
            return None


def estimate_memory(config: Config) -> MemoryEstimate | None:
    """Estimate the peak memory of a run on one device.

    Args:
        config: valid by its types.

    Returns:
        The larger of what generation and the update hold; None where the model isn't here yet, or doesn't say its size.
    """
    size = _size_of(config)
    if size is None:
        return None
    width = 2 if config.model.dtype == "bfloat16" else 4
    trained = _trained_parameters(config, size)
    on_cpu = config.trainer.device in ("auto", "cpu")
    held = {
        "weights": float(size.parameters * width),
        "reference": float(size.parameters * width * _has_reference(config)),
        "optimizer": float(2 * trained * width),
        "process": PROCESS * on_cpu,
    }
    phases = {
        "generation": _generation(config, size, width),
        "update": _gradients(config, size, width, trained) | _update(config, size, width),
    }
    phase = max(phases, key=lambda name: sum(phases[name].values()))
    passing = {name: part * (SLACK if on_cpu else 1.0) for name, part in phases[phase].items()}
    return MemoryEstimate(held | passing, phase)


def _size_of(config: Config) -> ModelSize | None:
    shape = NAMED_SHAPES.get(config.model.path)
    if shape is not None:
        return ModelSize.of_decoder(shape)
    folder = find_model(config.model.path, config.model.revision)
    return None if folder is None else ModelSize.of_folder(folder)


def _foreign(raw: Mapping[str, Any], folder: Path) -> ModelSize | None:
    """Read a model of transformers': names differ between families, and the files say how many weights there are."""
    heads = heads_of(raw)
    hidden = raw.get("hidden_size") or raw.get("n_embd")
    layers = raw.get("num_hidden_layers") or raw.get("n_layer")
    if heads is None or not hidden or not layers:
        return None
    head = raw.get("head_dim") or hidden // heads[0]
    inner = raw.get("intermediate_size") or raw.get("n_inner") or 4 * hidden
    parameters = sum(_stored_parameters(path) for path in folder.glob("*.safetensors"))
    vocab = raw["vocab_size"]
    return ModelSize(parameters, hidden, inner, layers, heads[0] * head, heads[1] * head, heads[0], vocab, native=False)


def _stored_parameters(path: Path) -> int:
    """Numbers in a safetensors file, by its header (https://huggingface.co/docs/safetensors)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"{path}: a header of {length} bytes")
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


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


def _gradients(config: Config, size: ModelSize, width: int, trained: int) -> dict[str, float]:
    """Those of what is trained; with the head's, the one that is being added to it.

    An adapter's products with the weights are held too, each with the sum.
    """
    if config.model.lora_rank:
        return {"gradients": float(trained * width), "adapted weights": float(2 * _layer_weights(size) * width)}
    return {"gradients": float((trained + 2 * size.vocab * size.hidden) * width)}


def _layer_weights(size: ModelSize) -> int:
    """Weights of all layers' projections."""
    return size.layers * size.hidden * (2 * size.queries + 2 * size.keys + 3 * size.intermediate)


def _generation(config: Config, size: ModelSize, width: int) -> dict[str, float]:
    """Keys and values of all rows at their longest, the engine's fused weights, and a step's logits."""
    prompts = config.data.gen_batch_size or config.data.train_batch_size
    rows = min(config.rollout.max_num_seqs, max(prompts * config.rollout.n, _evaluated_rows(config)))
    length = config.data.max_prompt_length + config.data.max_response_length
    fused = size.layers * size.hidden * (size.queries + 2 * size.keys + 2 * size.intermediate)
    return {
        "KV cache": float(2 * size.layers * size.keys * rows * length * width),
        "fused weights": float(fused * width * size.native),
        "logits": float(CANDIDATES * rows * size.vocab * 4),
    }


def _evaluated_rows(config: Config) -> int:
    """Responses of an evaluation; as many as fit at once where the number of problems isn't known."""
    problems = config.data.val_size
    if problems is None:
        problems = GENERATED[config.data.val][1] if config.data.val in GENERATED else config.rollout.max_num_seqs
    return problems * config.rollout.val_kwargs.n


def _update(config: Config, size: ModelSize, width: int) -> dict[str, float]:
    """What the backward pass of the largest micro-batch needs, and the logits of a chunk."""
    actor = config.actor
    length = config.data.max_prompt_length + config.data.max_response_length
    responses = config.mini_batch_size * config.rollout.n
    if actor.use_dynamic_bsz:
        tokens = min(max(actor.ppo_max_token_len_per_gpu, length), responses * length)
    else:
        tokens = min(actor.ppo_micro_batch_size_per_gpu or responses, responses) * length
    layer = (6 * size.hidden + 4 * size.queries + 3 * size.keys + 4 * size.intermediate) * width
    layer += 4 * size.hidden * (width == 2)  # norms compute in float32
    # Checkpointing keeps each layer's input; one layer is computed again, and its gradients are as large.
    kept = size.layers * size.hidden * width + 2 * layer
    activations = tokens * (kept if config.model.enable_gradient_checkpointing else size.layers * layer)
    chunk = min(tokens * size.vocab, max(LOGITS_AT_ONCE, size.vocab))
    if not size.native:  # whole sequences, padded: scores of every token with every other, before and after softmax
        activations += size.layers * size.heads * tokens * length * (2 * width + 4)
    return {"activations": float(activations), "logits": float(SCORED * chunk * 4)}
