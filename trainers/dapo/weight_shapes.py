"""Weights of a decoder, by name, and what a folder's files say of theirs: enough to tell a misfit without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dapo.model_config import DecoderConfig

Shape = tuple[int, ...]
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Names of a layer's projections, as Hugging Face has them: what `all-linear` names; the head is none of them."""
HEAD = "lm_head.weight"
ROTARY = "rotary_emb.inv_freq"
"""Ends the names of frequencies that old checkpoints also hold; `config.json` states them."""


def projection_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """[out, in] of a layer's projections, by their own names."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    attention: list[Shape] = [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)]
    mlp: list[Shape] = [(inner, hidden), (inner, hidden), (hidden, inner)]
    return dict(zip(ALL_LINEAR, attention + mlp, strict=True))


def expected_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Shapes of all weights that `config` describes, by the names that they have in a file."""
    hidden = (config.hidden_size,)
    layer: dict[str, Shape] = {"input_layernorm.weight": hidden, "post_attention_layernorm.weight": hidden}
    for name, shape in projection_shapes(config).items():
        part = "self_attn" if name in ALL_LINEAR[:4] else "mlp"
        layer[f"{part}.{name}.weight"] = shape
        if config.qkv_bias and name in ALL_LINEAR[:3]:
            layer[f"{part}.{name}.bias"] = shape[:1]
    if config.qk_norm:
        layer |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": embedding, "model.norm.weight": hidden}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes if config.tie_word_embeddings else shapes | {HEAD: embedding}


def shapes_in(folder: Path) -> dict[str, Shape]:
    """Shapes of the weights in a folder's safetensors, read from their headers.

    Raises:
        OSError: a file can't be read.
        SafetensorError: a file isn't whole safetensors.
    """
    from safetensors import safe_open

    shapes: dict[str, Shape] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    return {name: shape for name, shape in shapes.items() if not name.endswith(ROTARY)}


def misfits(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> list[str]:
    """What of `found` isn't as `expected`, each in words; the head of tied embeddings may be there or not."""
    told = []
    for name, shape in expected.items():
        if name not in found:
            told.append(f"no {name}")
        elif found[name] != shape:
            told.append(f"{name} of {list(found[name])} where config.json says {list(shape)}")
    extra = [name for name in found if name not in expected and name != HEAD]
    return told + [f"{name}, which config.json doesn't have" for name in extra]
