"""Any causal language model that transformers computes, behind what the trainer uses of its own decoder.

The slow way: padded forward passes, and generation with transformers' cache. Logits are the head's product with the
last hidden states, as our decoder's are; where a family makes more of them (a bias, a cap or a scale), whole logits
take the hidden states' place. This, and that generation agrees with scoring, is tried on a few tokens at loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapo.draws import Sampling, draw
from dapo.engine_base import Rows, Sampled, check_finite, cut
from dapo.errors import ModelError
from dapo.model_base import PolicyModel
from dapo.model_config import ForeignConfig, first_id
from dapo.model_decoder import merged_state
from dapo.parallel import ITSELF, Group

if TYPE_CHECKING:
    from dapo.config import RolloutConfig

PROBE = 6
"""Tokens on which a model's logits are compared with its head on its last hidden states."""


class ForeignDecoder(PolicyModel):
    """A model of transformers'; its dropout is off, as old and new log-probs would differ by it."""

    def __init__(self, theirs: Any, config: ForeignConfig) -> None:
        super().__init__()
        self.theirs = theirs.eval()
        self.config = config
        self.plain_head = True
        """Logits are the head's product with the last hidden states; else they take the place of these."""

    def run(self, **inputs: Any) -> tuple[Tensor, Any]:
        """Return the last hidden states of a batch (or the logits, see `plain_head`), and transformers' cache."""
        part = self.theirs.base_model if self.plain_head else self.theirs
        out = part(**inputs)
        return out.last_hidden_state if self.plain_head else out.logits, out.get("past_key_values")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of what `hidden_packed` returns."""
        return F.linear(hidden, self.head_weight) if self.plain_head else hidden

    @property
    def projections(self) -> tuple[str, ...]:
        """Names of the layers that an adapter can be added to; the head is none of them."""
        from transformers.pytorch_utils import Conv1D

        head = self.theirs.get_output_embeddings()
        layers = [(n, m) for n, m in self.theirs.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
        return tuple(sorted({name.rsplit(".", 1)[-1] for name, _ in layers}))

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
        hidden = self.run(input_ids=padded, attention_mask=mask.long(), use_cache=False)[0][mask]
        if places is None:
            return torch.as_tensor(hidden)
        order = torch.arange(len(places), device=tokens.device)
        first = order.new_empty(len(input_ids)).scatter_reduce(0, places, order, "amin", include_self=False)
        return torch.as_tensor(hidden[first])

    def engine(self, rollout: RolloutConfig, tp: Group = ITSELF) -> ForeignEngine:
        """Return what generates from the weights as they are; `tp` is one process, as `sharding.shard` sees to."""
        del tp
        return ForeignEngine(self, rollout.max_num_seqs)

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

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (ascending)."""
        self.past.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]


class ForeignEngine:
    """Generates with transformers' cache, which no row can enter later: `size` rows after the other."""

    def __init__(self, model: ForeignDecoder, size: int) -> None:
        self.model = model
        self.size = size
        self.device = model.head_weight.device

    @torch.inference_mode()
    def sample(self, rows: Rows, sampling: Sampling, eos_id: int) -> list[Sampled]:
        """Sample N responses; see `engine_base.RolloutEngine.sample`."""
        waves = (rows.wave(first, self.size) for first in range(0, len(rows.owners), self.size))
        return [response for wave in waves for response in self._sample_wave(wave, sampling, eos_id)]

    def prefill(self, prompts: Sequence[Sequence[int]], owner: Tensor) -> ForeignCache:
        """Run each prompt once and hand its keys and values to every row; `owner` [N] is the index of its prompt."""
        rows, owner = prompts, owner.to(self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        longest = int(lengths.max())
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=self.device)
        mask = (torch.arange(longest, device=self.device) >= (longest - lengths).unsqueeze(1)).long()
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        hidden, past = self._run(ids, mask, positions, None)
        past.batch_select_indices(owner)
        return ForeignCache(past, mask[owner], lengths[owner], hidden[owner])

    def advance(self, cache: ForeignCache, token: Tensor) -> Tensor:
        """Feed one token per row [N] and return the last hidden states [N, hidden]."""
        cache.mask = torch.cat((cache.mask, cache.mask.new_ones(len(token), 1)), 1)
        hidden, cache.past = self._run(token.unsqueeze(1), cache.mask, cache.positions.unsqueeze(1), cache.past)
        cache.positions = cache.positions + 1
        return hidden

    def _sample_wave(self, rows: Rows, sampling: Sampling, eos_id: int) -> list[Sampled]:
        cache = self.prefill(rows.prompts, rows.owners)
        hidden = cache.hidden
        check_finite(hidden)
        uniforms, limits = rows.uniforms.to(self.device), rows.limits.to(self.device)
        tokens = torch.full(uniforms.shape, eos_id, device=self.device)
        logprobs = torch.zeros(uniforms.shape, device=self.device)
        live = torch.arange(len(uniforms), device=self.device)
        for step in range(uniforms.shape[1]):
            token, logprob = draw(self.model.logits(hidden).float(), uniforms[live, step], sampling)
            tokens[live, step], logprobs[live, step] = token, logprob
            alive = ((token != eos_id) & (step + 1 < limits[live])).nonzero().squeeze(1)
            if len(alive) == 0:
                break
            if len(alive) < len(live):
                cache.keep(alive)
                live, token = live[alive], token[alive]
            hidden = self.advance(cache, token)
        return cut(tokens.cpu(), logprobs.cpu(), rows.limits, eos_id)

    def _run(self, ids: Tensor, mask: Tensor, positions: Tensor, past: Any) -> tuple[Tensor, Any]:
        """Return what follows the last column [N, hidden], and the cache."""
        hidden, past = self.model.run(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )
        return hidden[:, -1], past


def check_loads(folder: Path) -> None:
    """See that transformers has a model for a folder's config.json; builds it without memory, reads no weights.

    Raises:
        ModelError: it knows no such family, needs code from the folder, or can't build it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            cast(Any, AutoModelForCausalLM).from_config(shape, trust_remote_code=False, attn_implementation="eager")
    except Exception as error:  # transformers raises of any kind
        raise _cant_load(folder, error) from error


def _cant_load(folder: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:300]
    return ModelError(f"{folder}: transformers can't load it ({type(error).__name__}: {reason})")


def load_foreign(folder: Path, raw: dict[str, Any], dtype: str, device: str | torch.device) -> ForeignDecoder:
    """Load a folder by transformers: its own classes only, weights in safetensors only.

    Raises:
        ModelError: transformers can't load it, or generates otherwise with a cache than without.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as their_logging

    cast(Any, their_logging).disable_progress_bar()

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
        shape = _shape(raw, theirs)
    except Exception as error:  # transformers raises of any kind
        raise _cant_load(folder, error) from error
    lacking = sorted(found["missing_keys"])  # which transformers would draw at random
    if lacking:
        raise ModelError(f"{folder}: the weights don't fit config.json: got none for {', '.join(lacking[:5])}, …")
    model = ForeignDecoder(theirs.to(device), shape)
    model.requires_grad_(True)
    with torch.no_grad():
        model.plain_head = _has_plain_head(model)
        _check_generation(model, folder)
    return model


def _has_plain_head(model: ForeignDecoder) -> bool:
    """Whether logits are the head's product with the last hidden states, on a few tokens."""
    ids = torch.arange(1, PROBE + 1, device=model.head_weight.device)
    logits = model.theirs(input_ids=ids.unsqueeze(0)).logits[0].float()
    hidden = model.hidden_packed(ids, torch.tensor([0, PROBE]))
    return torch.allclose(model.logits(hidden).float(), logits, atol=1e-3, rtol=1e-3)


def _check_generation(model: ForeignDecoder, folder: Path) -> None:
    """Hold padded generation with a cache against scoring, on two short texts."""
    device, prompts, more = model.head_weight.device, [[1, 2, 3, 4], [5]], [[6, 2], [3, 4]]
    texts = [prompt + added for prompt, added in zip(prompts, more, strict=True)]
    starts = torch.tensor([0, *map(len, texts)]).cumsum(0)
    scored = model.hidden_packed(torch.tensor(sum(texts, []), device=device), starts)[starts[1:] - 1]
    try:
        engine = ForeignEngine(model, len(prompts))
        cache = engine.prefill(prompts, torch.arange(2))
        for column in zip(*more, strict=True):
            hidden = engine.advance(cache, torch.tensor(column, device=device))
    except Exception as error:  # a family without such a cache fails in its own way
        got = f"{type(error).__name__}: {error}"
        raise ModelError(f"{folder}: generation fails ({got}); need a family with keys and values cached") from error
    generated, expected = (model.logits(states).float().log_softmax(-1) for states in (hidden, scored))
    if not torch.allclose(generated, expected, atol=1e-3 if scored.dtype == torch.float32 else 0.1, rtol=0.0):
        worst = (generated - expected).abs().max().item()
        raise ModelError(
            f"{folder}: got log-probs in generation that are {worst:.2g} off scoring; choose another model"
        )


def _shape(raw: dict[str, Any], theirs: Any) -> ForeignConfig:
    modules = [module for module in theirs.modules() if not isinstance(module, nn.Embedding)]
    matrices = [weight for module in modules for weight in module.parameters(recurse=False) if weight.dim() > 1]
    inner = theirs.config.get_text_config()
    size = getattr(inner, "head_dim", None) or inner.hidden_size // inner.num_attention_heads
    return ForeignConfig(
        raw,
        vocab_size=len(theirs.get_output_embeddings().weight),
        weights_per_token=sum(weight.numel() for weight in matrices),
        attention_width=inner.num_hidden_layers * inner.num_attention_heads * size,
        eos_token_id=first_id(raw.get("eos_token_id")),
        pad_token_id=raw.get("pad_token_id"),
    )
