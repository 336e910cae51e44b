"""The shapes of the models that `model.path` may name, known before they are made or fetched."""

from __future__ import annotations

from dapo.model_config import DecoderConfig

TINY = DecoderConfig(
    model_type="llama",
    vocab_size=265,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=10.0,
    max_position_embeddings=512,
    eos_token_id=1,
    pad_token_id=0,
)
"""The embedded model; about 0.8M parameters. Vocabulary and ids are its tokenizer's."""
SMOLLM2_135M = DecoderConfig(
    model_type="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    max_position_embeddings=8192,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=2,
)
NAMED_SHAPES = {"tiny": TINY, "smollm2-135m": SMOLLM2_135M}
"""By what `model.path` says."""


def _qwen(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **changes: float) -> DecoderConfig:
    """A Qwen2.5 of 7B and more, as its config.json has it."""
    settings = {"rope_theta": 1000000.0, "max_position_embeddings": 131072, **changes}
    return DecoderConfig(
        model_type="qwen2",
        vocab_size=152064,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        rope_theta=settings["rope_theta"],
        max_position_embeddings=int(settings["max_position_embeddings"]),
        tie_word_embeddings=False,
        eos_token_id=151643,
    )


PUBLIC_SHAPES = {
    "Qwen/Qwen2.5-7B": _qwen(28, 3584, 18944, 28, 4),
    "Qwen/Qwen2.5-Math-7B": _qwen(28, 3584, 18944, 28, 4, rope_theta=10000.0, max_position_embeddings=4096),
    "Qwen/Qwen2.5-32B": _qwen(64, 5120, 27648, 40, 8),
}
"""By the hub's id: models whose runs can be estimated before they are downloaded."""
