"""The policy: a decoder with its tokenizer, loaded from and saved as a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dapo.errors import ModelError
from dapo.model_base import ModelShape, PolicyModel
from dapo.model_config import DecoderConfig, first_id, is_native
from dapo.model_decoder import Decoder
from dapo.model_logprobs import flops_per_token, response_logprobs
from dapo.tokenizer import Tokenizer

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Policy",
    "flops_per_token",
    "load_policy",
    "response_logprobs",
    "save_policy",
]

WEIGHTS = "model.safetensors"


@dataclass(slots=True)
class Policy:
    """What generates and is trained."""

    model: PolicyModel
    tokenizer: Tokenizer
    config: ModelShape


def load_policy(path: str | Path, *, dtype: str = "float32", device: str | torch.device = "cpu") -> Policy:
    """Load a Hugging Face folder, by transformers where our decoder doesn't compute it; weights may be sharded.

    Raises:
        ModelError: not such a folder, a model that neither computes, or damaged weights.
    """
    folder = Path(path)
    try:
        raw: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        foreign = not is_native(raw) and raw.get("quantization_config") is None
        config = None if foreign else DecoderConfig.from_dict(raw)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / 'config.json'}: can't be read ({error}); need a Hugging Face folder") from error
    except ModelError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error
    if config is None:
        return _load_foreign(folder, raw, dtype, device)
    tokenizer = Tokenizer.load(folder, config.eos_token_id, config.pad_token_id)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{folder / 'config.json'}:vocab_size: got {config.vocab_size}; need at least the {tokenizer.vocab_size} "
            "tokens of tokenizer.json; save model and tokenizer together"
        )
    with torch.device("meta"):
        model = Decoder(config)
    state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in _read_weights(folder).items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ModelError(f"{folder}: the weights don't fit config.json ({error})") from error
    return Policy(model.to(device).requires_grad_(True), tokenizer, config)


def _load_foreign(folder: Path, raw: dict[str, Any], dtype: str, device: str | torch.device) -> Policy:
    from dapo.model_transformers import load_foreign

    tokenizer = Tokenizer.load(folder, first_id(raw.get("eos_token_id")), raw.get("pad_token_id"))
    model = load_foreign(folder, raw, dtype, device)
    if tokenizer.vocab_size > model.config.vocab_size:
        need = f"at least the {tokenizer.vocab_size} tokens of tokenizer.json"
        raise ModelError(f"{folder}: got a model of {model.config.vocab_size} tokens; need {need}; save both together")
    return Policy(model, tokenizer, model.config)


def save_policy(policy: Policy, folder: str | Path) -> None:
    """Write config.json, model.safetensors (an adapter merged) and the tokenizer, as `from_pretrained` reads them."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.saved_state().items()}
    save_file(state, target / WEIGHTS, metadata={"format": "pt"})
    config = policy.config.to_dict() | {"dtype": str(policy.model.head_weight.dtype).removeprefix("torch.")}
    (target / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    policy.tokenizer.save(target)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder, from one file or from the shards that its index names."""
    index = folder / f"{WEIGHTS}.index.json"
    try:
        names = {WEIGHTS}
        if not (folder / WEIGHTS).is_file() and index.is_file():
            names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        tensors = {key: tensor for name in sorted(names) for key, tensor in load_file(folder / name).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelError(f"{folder}: weights can't be read ({error}); need {WEIGHTS}, whole or in shards") from error
    # Old checkpoints also hold the rotary frequencies, which config.json states.
    return {key: tensor for key, tensor in tensors.items() if not key.endswith("rotary_emb.inv_freq")}
