"""The policy: a decoder with its tokenizer, loaded from and saved as a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dapo.errors import ModelError
from dapo.model_base import ModelShape, PolicyModel
from dapo.model_config import DecoderConfig, first_id, is_native
from dapo.model_decoder import Decoder
from dapo.model_logprobs import flops_per_token, response_logprobs
from dapo.parallel import ALONE, World
from dapo.sharding import rows_here, rows_of
from dapo.tokenizer import Tokenizer
from dapo.weight_files import WEIGHTS, weight_files
from dapo.weight_shapes import expected_shapes, misfits

if TYPE_CHECKING:
    from dapo.engine_vllm import VllmEngine

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Policy",
    "Spread",
    "flops_per_token",
    "load_policy",
    "response_logprobs",
    "save_policy",
]


@dataclass(slots=True)
class Policy:
    """What generates and is trained."""

    model: PolicyModel
    tokenizer: Tokenizer
    config: ModelShape
    world: World = ALONE
    """The processes that it is spread over."""
    served: VllmEngine | None = None
    """The engine of a package, in a process of its own, once it was asked for."""


Spread = Callable[[Policy], None]
"""Spreads a policy over the processes that train it."""


def load_policy(
    path: str | Path, *, dtype: str = "float32", device: str | torch.device = "cpu", spread: Spread | None = None
) -> Policy:
    """Load a Hugging Face folder, by transformers where our decoder doesn't compute it; weights may be sharded.

    Args:
        path: the folder.
        dtype: torch's name of the weights' type.
        device: where they lie.
        spread: called while the decoder has no weights yet, so that each process reads and holds its own rows only.

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
        policy = _load_foreign(folder, raw, dtype, device)
        if spread is not None:
            spread(policy)
        return policy
    tokenizer = Tokenizer.load(folder, config.eos_token_id, config.pad_token_id)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{folder / 'config.json'}:vocab_size: got {config.vocab_size}; need at least the {tokenizer.vocab_size} "
            "tokens of tokenizer.json; save model and tokenizer together"
        )
    with torch.device("meta"):
        policy = Policy(Decoder(config).to(getattr(torch, dtype)), tokenizer, config)
    if spread is not None:
        spread(policy)
    with weight_files(folder) as files:
        if wrong := misfits(expected_shapes(config), files.shapes):
            raise ModelError(f"{folder}: the weights don't fit config.json ({'; '.join(wrong)})")
        policy.model.to_empty(device=device)
        with torch.no_grad():
            for name, weight in policy.model.named_parameters():
                rows_of(weight).copy_(files.read(name, rows_here(weight)))
    return policy


def _load_foreign(folder: Path, raw: dict[str, Any], dtype: str, device: str | torch.device) -> Policy:
    from dapo.model_transformers import load_foreign

    tokenizer = Tokenizer.load(folder, first_id(raw.get("eos_token_id")), raw.get("pad_token_id"))
    model = load_foreign(folder, raw, dtype, device)
    if tokenizer.vocab_size > model.config.vocab_size:
        need = f"at least the {tokenizer.vocab_size} tokens of tokenizer.json"
        raise ModelError(f"{folder}: got a model of {model.config.vocab_size} tokens; need {need}; save both together")
    return Policy(model, tokenizer, model.config)


def save_policy(policy: Policy, folder: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write config.json, model.safetensors (an adapter merged) and the tokenizer, as `from_pretrained` reads them.

    Args:
        policy: what to save.
        folder: is made if it isn't there.
        weights: its model's `saved_state()`, where that was asked for already.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    weights = policy.model.saved_state() if weights is None else weights
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    save_file(state, target / WEIGHTS, metadata={"format": "pt"})
    config = policy.config.to_dict() | {"dtype": str(policy.model.head_weight.dtype).removeprefix("torch.")}
    (target / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    policy.tokenizer.save(target)
