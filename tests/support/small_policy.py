"""A policy that trains in a moment."""

from collections.abc import Iterable

import torch
from dapo.model import Decoder, DecoderConfig, Policy
from dapo.tokenizer import byte_tokenizer
from dapo.warmstart import initialise


def small_policy(words: Iterable[str] = ("Answer: ",)) -> Policy:
    """An untrained decoder of 25k parameters, whose tokenizer has each of `words` as one token."""
    tokenizer = byte_tokenizer(words)
    config = DecoderConfig(
        model_type="llama",
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(1))
    return Policy(model, tokenizer, config)


def skewed_policy(head_dim: int = 8) -> Policy:
    """Twelve tokens, so that a row ends after a dozen on average."""
    tokenizer = byte_tokenizer(())
    config = DecoderConfig(
        model_type="llama",
        vocab_size=12,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(20.0 if "embed" in name else 2.0)
    return Policy(model, tokenizer, config)
