"""Any causal language model that transformers computes, behind what the trainer uses of its own decoder.

The slow way: padded forward passes, and generation with transformers' cache in a batch that keeps its size. Log-probs
are computed as the decoder's are, from the last hidden states and the head, so that what was sampled and what is
trained agree. A model whose logits are something else (a bias, a cap or a scale) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from dapo.errors import ModelError
from dapo.model_base import PolicyModel
from dapo.model_config import ForeignConfig
from dapo.model_decoder import merged_state
from dapo.rollout import Sampling, draw

PROBE = 6
"""Tokens on which a model's logits are compared with its head on its last hidden states."""


class ForeignDecoder(PolicyModel):
    """A model of transformers'; its dropout is off, as old and new log-probs would differ by it."""

    def __init__(self, theirs: Any, config: ForeignConfig) -> None:
        super().__init__()
        self.theirs = theirs.eval()
        self.config = config

    @property
    def head_weight(self) -> Tensor:
        """[vocab, hidden] weight of the output projection."""
        weight: Tensor = self.theirs.get_output_embeddings().weight
        return weight

    def hidden_packed(self, input_ids: Tensor, cu_seqlens: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the last hidden states of packed sequences; see `Decoder.hidden_packed`."""
        tokens = input_ids if places is None else input_ids[places]
        lengths = cu_seqlens.diff().to(tokens.device)
        mask = torch.arange(int(lengths.max()), device=tokens.device) < lengths.unsqueeze(1)
        padded = tokens.new_zeros(mask.shape).masked_scatter(mask, tokens)
        hidden = self.theirs.base_model(
            input_ids=padded, attention_mask=mask.long(), use_cache=False
        ).last_hidden_state[mask]
        if places is None:
            return torch.as_tensor(hidden)
        first = torch.empty(len(input_ids), dtype=torch.long, device=tokens.device)
        first[places.flip(0)] = torch.arange(len(places), device=tokens.device).flip(0)
        return torch.as_tensor(hidden[first])

    def engine(self) -> ForeignEngine:
        """Return what generates from the weights as they are."""
        return ForeignEngine(self)

    def saved_state(self) -> dict[str, Tensor]:
        """Weights by transformers' names, those that share memory once."""
        seen: dict[int, str] = {}
        state = {name.removeprefix("theirs."): tensor for name, tensor in merged_state(self).items()}
        return {name: t for name, t in state.items() if seen.setdefault(t.data_ptr(), name) == name}


@dataclass(slots=True)
class ForeignCache:
    """What N rows have read."""

    past: Any
    """transformers' cache, left-padded."""
    mask: Tensor
    """[N, columns] 0 at left padding."""
    positions: Tensor
    """[N] position of the next token."""
    hidden: Tensor
    """[N, hidden] last hidden state of each prompt."""


class ForeignEngine:
    """Generates as `rollout.Engine` does, with transformers' cache."""

    def __init__(self, model: ForeignDecoder) -> None:
        self.model = model
        self.device = model.head_weight.device

    def prefill(self, prompts: Sequence[Sequence[int]], owner: Tensor, room: int) -> ForeignCache:
        """Run the prompt of each row; `room` is not needed, since the cache grows."""
        del room
        rows = [prompts[index] for index in owner.tolist()]
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        longest = int(lengths.max())
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=self.device)
        mask = (torch.arange(longest, device=self.device) >= (longest - lengths).unsqueeze(1)).long()
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        done = self._run(ids, mask, positions, None)
        return ForeignCache(done.past_key_values, mask, lengths, done.last_hidden_state[:, -1])

    def decode(
        self, cache: ForeignCache, uniforms: Tensor, limits: Tensor, sampling: Sampling, eos_id: int
    ) -> tuple[Tensor, Tensor]:
        """Draw tokens [N, R] and log-probabilities [N, R]; see `rollout.Engine.decode`."""
        uniforms, limits = uniforms.to(self.device), limits.to(self.device)
        tokens = torch.full(uniforms.shape, eos_id, device=self.device)
        logprobs = torch.zeros(uniforms.shape, device=self.device)
        ended = torch.zeros(len(uniforms), dtype=torch.bool, device=self.device)
        hidden = cache.hidden
        for step in range(uniforms.shape[1]):
            token, logprob = draw((hidden @ self.model.head_weight.T).float(), uniforms[:, step], sampling)
            tokens[:, step], logprobs[:, step] = token, logprob
            ended |= (token == eos_id) | (step + 1 >= limits)
            if bool(ended.all()):
                break
            cache.mask = torch.cat((cache.mask, cache.mask.new_ones(len(token), 1)), 1)
            done = self._run(token.unsqueeze(1), cache.mask, cache.positions.unsqueeze(1), cache.past)
            cache.positions = cache.positions + 1
            hidden = done.last_hidden_state[:, -1]
        return tokens.cpu(), logprobs.cpu()

    def _run(self, ids: Tensor, mask: Tensor, positions: Tensor, past: Any) -> Any:
        return self.model.theirs.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )


def load_foreign(folder: Path, raw: dict[str, Any], dtype: str, device: str | torch.device) -> ForeignDecoder:
    """Load a folder by transformers: its own classes only, weights in safetensors only.

    Raises:
        ModelError: transformers can't load it, or its logits aren't its head's product with its last hidden states.
    """
    from transformers import AutoModelForCausalLM

    try:
        theirs, found = cast(Any, AutoModelForCausalLM).from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises of any kind
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{folder}: transformers can't load it ({type(error).__name__}: {reason})") from error
    lacking = sorted(found["missing_keys"])  # which transformers would draw at random
    if lacking:
        raise ModelError(f"{folder}: the weights don't fit config.json: got none for {', '.join(lacking[:5])}, …")
    model = ForeignDecoder(theirs.to(device), _shape(raw, theirs))
    model.requires_grad_(True)
    _check_head(model, folder)
    return model


@torch.no_grad()
def _check_head(model: ForeignDecoder, folder: Path) -> None:
    ids = torch.arange(1, PROBE + 1, device=model.head_weight.device)
    logits = model.theirs(input_ids=ids.unsqueeze(0)).logits[0].float()
    hidden = model.hidden_packed(ids, torch.tensor([0, PROBE]))
    if not torch.allclose((hidden @ model.head_weight.T).float(), logits, atol=1e-3, rtol=1e-3):
        got = "logits that are more than the head's product with the last hidden states (a bias, a cap or a scale)"
        raise ModelError(f"{folder}: got {got}; need a model without these; choose another model")


def _shape(raw: dict[str, Any], theirs: Any) -> ForeignConfig:
    head, embedding = theirs.get_output_embeddings().weight, theirs.get_input_embeddings().weight
    matrices = sum(w.numel() for w in theirs.base_model.parameters() if w.dim() > 1 and w is not embedding)
    inner = theirs.config.get_text_config()
    eos = raw.get("eos_token_id")
    return ForeignConfig(
        raw,
        vocab_size=len(head),
        weights_per_token=matrices + head.numel(),
        attention_width=inner.num_hidden_layers * inner.hidden_size,
        eos_token_id=eos[0] if isinstance(eos, list) else eos,
        pad_token_id=raw.get("pad_token_id"),
    )
