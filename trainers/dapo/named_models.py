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
