"""The shape of a decoder, read from and written as Hugging Face's `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dapo.errors import ModelError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
FAMILIES = tuple(_ARCHITECTURES)
_ROPE_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""By type of rope scaling: the numbers that it needs."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts that are longer than those of the first training."""

    rope_type: Literal["linear", "llama3"]
    """`linear` divides all by `factor`; `llama3` the slow ones, as Llama 3.1 does."""
    factor: float
    low_freq_factor: float = 1.0
    """Waves longer than the original context over this are slow."""
    high_freq_factor: float = 4.0
    """Waves shorter than the original context over this are left alone; those between are blended."""
    original_max_position_embeddings: int = 8192
    """The original context."""

    @classmethod
    def from_dict(cls, rope: Mapping[str, Any]) -> RopeScaling | None:
        """Read `rope_parameters` or `rope_scaling` of a `config.json`; None is no scaling."""
        kind = _rope_type(rope)
        return None if kind == "default" else cls(kind, **{key: rope[key] for key in _ROPE_NUMBERS[kind]})

    def to_dict(self) -> dict[str, Any]:
        """Return what a `config.json` says of it."""
        return {key: getattr(self, key) for key in ("rope_type", *_ROPE_NUMBERS[self.rope_type])}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama- or Qwen-style decoder; field names are Hugging Face's."""

    model_type: str
    """`llama`; `qwen2`, which has a bias on q, k and v; or `qwen3`, which normalises each head's q and k."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    @property
    def qkv_bias(self) -> bool:
        """Whether q, k and v have a bias."""
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether each head's q and k are normalised."""
        return self.model_type == "qwen3"

    @property
    def weights_per_token(self) -> int:
        """Weights of the matrix products that a token goes through, the head's included."""
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        layer = self.hidden_size * (2 * queries + 2 * keys + 3 * self.intermediate_size)
        return self.num_hidden_layers * layer + self.hidden_size * self.vocab_size

    @property
    def attention_width(self) -> int:
        """Layers times the width of their queries."""
        return self.num_hidden_layers * self.num_attention_heads * self.head_dim

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> DecoderConfig:
        """Read the content of a `config.json`, of transformers 4 or 5.

        Raises:
            ModelError: another family, a variant that would compute something else, or a missing field; all
                reasons in one message.
        """
        faults = _unsupported(raw)
        needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        faults += [
            f"{key}: got {raw.get(key)!r}; need a positive integer" for key in needed if not _positive(raw.get(key))
        ]
        if faults:
            raise ModelError("; ".join(faults))
        heads = raw["num_attention_heads"]
        rope = _rope(raw)
        return cls(
            model_type=raw["model_type"],
            **{key: raw[key] for key in needed},
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
            rope_scaling=RopeScaling.from_dict(rope),
            max_position_embeddings=raw.get("max_position_embeddings", 2048),
            tie_word_embeddings=raw.get("tie_word_embeddings", False),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_id=first_id(raw.get("eos_token_id")),
            pad_token_id=raw.get("pad_token_id"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `config.json`, readable by transformers 4 and 5."""
        scaling = {} if self.rope_scaling is None else self.rope_scaling.to_dict()
        return {
            "architectures": [_ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default", **scaling},
            **({"rope_scaling": scaling} if scaling else {}),
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            "dtype": "float32",
        }


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """The shape of a model that transformers computes."""

    raw: Mapping[str, Any]
    vocab_size: int
    weights_per_token: int
    """Parameters of matrices, without the embeddings; of a mixture of experts all, though a token meets a few."""
    attention_width: int
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        return dict(self.raw)


def first_id(token: Any) -> int | None:
    """A token's id; of several, as some configs list end tokens, the first."""
    return next(iter(token), None) if isinstance(token, list) else token


def is_native(raw: Mapping[str, Any]) -> bool:
    """Whether our decoder computes what a `config.json` describes, or would if it were whole; transformers, if not."""
    rope = _rope(raw)
    return not _unsupported(raw) or any(
        not _is_number(rope.get(key)) for key in _ROPE_NUMBERS.get(_rope_type(rope), ())
    )


def heads_of(raw: Mapping[str, Any]) -> tuple[int, int] | None:
    """Attention heads and key-value heads of any `config.json`; None where it doesn't say."""
    heads = raw.get("num_attention_heads") or raw.get("n_head")
    keys = raw.get("num_key_value_heads") or heads
    return (heads, keys) if isinstance(heads, int) and isinstance(keys, int) else None


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config of transformers 5 or 4 says of rotary positions."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_type(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _positive(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _unsupported(raw: Mapping[str, Any]) -> list[str]:
    """Name everything in a `config.json` that this decoder would compute differently."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        return [f"model_type: got {family!r}; need one of {', '.join(FAMILIES)}; choose another model"]
    rope = _rope(raw)
    kind = _rope_type(rope)
    lacking = [key for key in _ROPE_NUMBERS.get(kind, ()) if not _is_number(rope.get(key))]
    known = f"one of {', '.join(_ROPE_NUMBERS)}"
    checks: dict[str, tuple[object, object]] = {
        "rope scaling": (kind, kind if kind in _ROPE_NUMBERS else known),
        "numbers that rope scaling lacks": (lacking, []),
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "mlp_bias": (raw.get("mlp_bias", False), False),
        "use_sliding_window": (raw.get("use_sliding_window", False), False),
        "attention_bias": (raw.get("attention_bias", False) and family != "qwen2", False),
        "pretraining_tp": (raw.get("pretraining_tp", 1), 1),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", 1.0), 1.0),
        "quantization_config": (raw.get("quantization_config"), None),
    }
    return [
        f"{key}: got {got!r}; need {need!r}; choose another model" for key, (got, need) in checks.items() if got != need
    ]
