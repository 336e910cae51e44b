"""The numbers of a model that its memory and its time depend on, read from its config.json alone. Loads no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.config import Config
from dapo.errors import DapoError
from dapo.model_config import DecoderConfig, heads_of, is_native
from dapo.model_folder import find_model
from dapo.named_models import NAMED_SHAPES, PUBLIC_SHAPES

MAX_HEADER = 100 * 2**20
"""Bytes that safetensors allows a header."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a model that memory and time depend on."""

    parameters: int
    hidden: int
    intermediate: int
    layers: int
    queries: int
    """Width of a layer's queries: heads times their size."""
    keys: int
    """Width of a layer's keys; that of its values too."""
    heads: int
    kv_heads: int
    vocab: int
    native: bool
    """Computed by our own decoder, and not by transformers."""
    tied: bool = True
    """The embeddings are the head."""

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' projections."""
        return self.layers * self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)

    @property
    def weights_per_token(self) -> int:
        """Weights of the matrix products that a token goes through, the head's included."""
        return self.layer_weights + self.hidden * self.vocab

    @property
    def root_weights(self) -> int:
        """Those of the embeddings and the head."""
        return self.hidden * self.vocab * (1 if self.tied else 2)

    @property
    def kept_per_token(self) -> int:
        """Numbers that autograd keeps of a token in one layer; a test counts them."""
        return 6 * self.hidden + 4 * self.queries + 3 * self.keys + 4 * self.intermediate

    def flops_per_token(self, context: float) -> float:
        """FLOPs of a forward pass over a token, as `dapo.model_logprobs.flops_per_token` has it."""
        return 2.0 * self.weights_per_token + 4.0 * self.layers * self.queries * context

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
            kv_heads=shape.num_key_value_heads,
            vocab=shape.vocab_size,
            native=True,
            tied=shape.tie_word_embeddings,
        )

    @classmethod
    def of_folder(cls, folder: Path) -> ModelSize | None:
        """Read a Hugging Face folder; None where it doesn't say what is needed. Ours needs no weights in it."""
        try:
            raw = json.loads((folder / "config.json").read_text("utf-8"))
            if is_native(raw):
                return cls.of_decoder(DecoderConfig.from_dict(raw))
            return _foreign(raw, folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, DapoError):
            return None


def size_of(config: Config) -> ModelSize | None:
    """Size of a config's model; None where it isn't here yet and its shape isn't known, or it doesn't say."""
    path = config.model.path
    if path in NAMED_SHAPES:
        return ModelSize.of_decoder(NAMED_SHAPES[path])
    folder = find_model(path, config.model.revision)
    if folder is None:
        return ModelSize.of_decoder(PUBLIC_SHAPES[path]) if path in PUBLIC_SHAPES else None
    return ModelSize.of_folder(folder)


def _foreign(raw: Mapping[str, Any], folder: Path) -> ModelSize | None:
    """Read a model of transformers': names differ between families, and the files say how many weights there are."""
    heads = heads_of(raw)
    hidden = raw.get("hidden_size") or raw.get("n_embd")
    layers = raw.get("num_hidden_layers") or raw.get("n_layer")
    if heads is None or not hidden or not layers:
        return None
    head = raw.get("head_dim") or hidden // heads[0]
    return ModelSize(
        parameters=sum(_stored_parameters(path) for path in folder.glob("*.safetensors")),
        hidden=hidden,
        intermediate=raw.get("intermediate_size") or raw.get("n_inner") or 4 * hidden,
        layers=layers,
        queries=heads[0] * head,
        keys=heads[1] * head,
        heads=heads[0],
        kv_heads=heads[1],
        vocab=raw["vocab_size"],
        native=False,
    )


def _stored_parameters(path: Path) -> int:
    """Numbers in a safetensors file, by its header (https://huggingface.co/docs/safetensors)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"{path}: a header of {length} bytes")
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
