"""Generation in one turn: a static KV cache, one prefill per prompt, and a batch that shrinks as responses end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dapo.batch import Response
from dapo.errors import NonFinite
from dapo.model import Policy
from dapo.model_base import GenerationEngine
from dapo.model_decoder import Decoder, Layer, effective_weight, rope_table, rotate
from dapo.tokenizer import Tokenizer

COMPACT_BELOW = 0.8
"""Finished rows leave the batch once fewer than this share of its rows are alive: copying the cache costs too."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of one layer: queries, keys and values [..., heads, head_dim] to [..., heads, head_dim]."""
CANDIDATES = 64
"""Top-p looks at this many tokens first; the whole vocabulary is sorted only if they hold too little mass."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from."""

    temperature: float
    """0 is greedy."""
    top_p: float
    """Nucleus mass, applied after top_k."""
    top_k: int
    """Candidates kept; <= 0 keeps all."""


@torch.inference_mode()
def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    n: int,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    max_response_length: int,
    max_num_seqs: int,
    generator: torch.Generator,
) -> list[list[Response]]:
    """Sample `n` responses to each prompt.

    Deterministic for a generator's state and a thread count: each response has its own random numbers, drawn up
    front, so that one response's length never changes another.

    Args:
        policy: model and tokenizer; the model's weights are copied once per call, into fused projections.
        prompts: token ids, each at least one.
        n: responses per prompt.
        temperature: 0 is greedy.
        top_p: nucleus mass.
        top_k: candidates kept; <= 0 keeps all.
        max_response_length: tokens per response, the end token included.
        max_num_seqs: responses decoded at once; more than that are decoded in waves.
        generator: source of randomness, on the CPU.

    Returns:
        n responses per prompt, in the order of `prompts`.

    Raises:
        NonFinite: the model's numbers are NaN or infinite.
    """
    if not prompts:
        return []
    owners = torch.arange(len(prompts)).repeat_interleave(n)
    uniforms = torch.rand(len(owners), max_response_length, generator=generator)
    limits = torch.full((len(owners),), max_response_length)
    sampling, engine = Sampling(temperature, top_p, top_k), policy.model.engine()
    rows = Rows(prompts, owners, uniforms, limits)
    flat = sample_rows(engine, policy.tokenizer, rows, sampling, max_num_seqs)
    return [flat[start : start + n] for start in range(0, len(flat), n)]


class Rows(NamedTuple):
    """What N responses are sampled from: each has its own random numbers and its own limit."""

    prompts: Sequence[Sequence[int]]
    """Token ids, each at least one."""
    owners: Tensor
    """[N] ascending index of each response's prompt; every prompt has one."""
    uniforms: Tensor
    """[N, R] in [0, 1), one per token."""
    limits: Tensor
    """[N] tokens per response, from 1 to R."""

    def wave(self, first: int, size: int) -> Rows:
        """Return `size` rows from the one at `first` on, with the prompts that they own."""
        rows = slice(first, first + size)
        owners, limits = self.owners[rows], self.limits[rows]
        prompts = self.prompts[int(owners[0]) : int(owners[-1]) + 1]
        return Rows(prompts, owners - owners[0], self.uniforms[rows, : int(limits.max())], limits)


@torch.inference_mode()
def sample_rows(
    engine: GenerationEngine, tokenizer: Tokenizer, rows: Rows, sampling: Sampling, max_num_seqs: int
) -> list[Response]:
    """Sample N responses in one turn each, `max_num_seqs` at once.

    Raises:
        NonFinite: the model's numbers are NaN or infinite.
    """
    found: list[Response] = []
    for first in range(0, len(rows.owners), max_num_seqs):
        wave = rows.wave(first, max_num_seqs)
        cache = engine.prefill(wave.prompts, wave.owners, wave.uniforms.shape[1])
        _check_finite(cache.hidden)
        tokens, logprobs = engine.decode(cache, wave.uniforms, wave.limits, sampling, tokenizer.eos_id)
        _check_finite(logprobs)
        found += _responses(tokenizer, tokens, logprobs, wave.limits)
    return found


@dataclass(slots=True)
class Cache:
    """Keys and values of the rows that are still generating, left-padded so that all write the same column."""

    keys: list[Tensor]
    """Per layer [columns, N, kv_heads, head_dim]: a new token's keys are written in one piece."""
    values: list[Tensor]
    """Per layer [columns, N, kv_heads, head_dim]."""
    bias: Tensor
    """[N, columns]: -inf at left padding, else 0."""
    positions: Tensor
    """[N] position of the next token."""
    hidden: Tensor
    """[N, hidden] last hidden state of each prompt."""
    column: int
    """Next column to write."""

    def compact(self, keep: Tensor) -> None:
        """Keep only the rows `keep` (ascending)."""
        used = self.column
        for store in (self.keys, self.values):
            for layer, tensor in enumerate(store):
                tensor[:used, : len(keep)] = tensor[:used, keep]
                store[layer] = tensor[:, : len(keep)]
        self.bias, self.positions = self.bias[keep], self.positions[keep]


class Engine:
    """A decoder's weights in the form that generation wants: q, k, v in one product, gate and up in another."""

    def __init__(self, model: Decoder) -> None:
        self.config = model.config
        self.device = model.head_weight.device
        self.embedding, self.head = model.model.embed_tokens.weight, model.head_weight
        self.norm = model.model.norm
        layers = cast(Iterable[Layer], model.model.layers)
        self.layers = [
            (
                layer.input_layernorm,
                *layer.self_attn.fused_qkv(),
                layer.self_attn.normalise,
                effective_weight(layer.self_attn.o_proj),
                layer.post_attention_layernorm,
                torch.cat((effective_weight(layer.mlp.gate_proj), effective_weight(layer.mlp.up_proj))),
                effective_weight(layer.mlp.down_proj),
            )
            for layer in layers
        ]

    def prefill(self, prompts: Sequence[Sequence[int]], owner: Tensor, room: int) -> Cache:
        """Run each prompt once and hand its keys and values to every row it owns.

        Args:
            prompts: token ids [P each].
            owner: [N] index of each row's prompt.
            room: columns to leave for the response.
        """
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        # Right padding needs no mask under causal attention; the shift then brings the padding to the left.
        shift = (torch.arange(longest) - (longest - lengths).unsqueeze(1)).to(self.device)
        owner = owner.to(self.device)
        columns = shift.clamp_min(0)[owner].T
        hidden = self.embedding[ids.to(self.device)]
        cos, sin = (table[None, :, None] for table in rope_table(self.config, longest, hidden))
        keys: list[Tensor] = []
        values: list[Tensor] = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for new, store in ((k, keys), (v, values)):
                full = new.new_empty(longest + room, len(owner), *new.shape[2:])
                full[:longest] = new[owner, columns]
                store.append(full)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

        for layer in range(len(self.layers)):
            hidden = self._layer(layer, hidden, cos, sin, attend)
        last = self.norm(hidden[torch.arange(len(prompts)), lengths.to(self.device) - 1])
        bias = torch.zeros(len(prompts), longest + room, device=self.device, dtype=hidden.dtype)
        bias[:, :longest].masked_fill_(shift < 0, -torch.inf)
        return Cache(keys, values, bias[owner], lengths.to(self.device)[owner], last[owner], longest)

    def decode(
        self, cache: Cache, uniforms: Tensor, limits: Tensor, sampling: Sampling, eos_id: int
    ) -> tuple[Tensor, Tensor]:
        """Draw tokens [N, R] and their log-probabilities [N, R]; what follows a row's end means nothing.

        Args:
            cache: of the N rows, as `prefill` made it.
            uniforms: [N, R] in [0, 1), one per token.
            limits: [N] tokens per row, from 1 to R.
            sampling: what to draw from.
            eos_id: token that ends a row.
        """
        total, steps = uniforms.shape
        uniforms, limits = uniforms.to(self.device), limits.to(self.device)
        tokens = torch.full((total, steps), eos_id, device=self.device)
        logprobs = torch.zeros(total, steps, device=self.device)
        rows = torch.arange(total, device=self.device)
        ended = torch.zeros(total, dtype=torch.bool, device=self.device)
        hidden = cache.hidden
        tables = rope_table(self.config, int(cache.positions.max()) + steps, hidden)
        for step in range(steps):
            token, logprob = draw((hidden @ self.head.T).float(), uniforms[rows, step], sampling)
            tokens[rows, step], logprobs[rows, step] = token, logprob
            ended |= (token == eos_id) | (step + 1 >= limits)
            alive = len(rows) - int(ended.sum())
            if alive == 0:
                break
            if alive < COMPACT_BELOW * len(rows):
                keep = (~ended).nonzero().squeeze(1)
                cache.compact(keep)
                rows, token, ended, limits = rows[keep], token[keep], ended[keep], limits[keep]
            hidden = self._advance(cache, token, tables)
        return tokens.cpu(), logprobs.cpu()

    def _advance(self, cache: Cache, token: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Feed one token per row and return the last hidden states [N, hidden]."""
        cos, sin = (table[cache.positions].unsqueeze(1) for table in tables)
        column = cache.column
        kv_heads, head_dim = self.config.num_key_value_heads, self.config.head_dim
        # Queries that share a key head are the rows of one small product: on a CPU far faster than fused attention.
        shape = (len(token) * kv_heads, self.config.num_attention_heads // kv_heads, head_dim)
        bias, scale = cache.bias[:, None, : column + 1], head_dim**-0.5
        hidden = self.embedding[token]
        for layer in range(len(self.layers)):
            keys, values = cache.keys[layer], cache.values[layer]

            def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values) -> Tensor:
                keys[column], values[column] = k, v
                keys, values = keys[: column + 1].flatten(1, 2), values[: column + 1].flatten(1, 2)
                scores = torch.bmm(q.reshape(shape), keys.permute(1, 2, 0)).view(len(bias), -1, column + 1)
                shares = torch.add(bias, scores, alpha=scale).softmax(-1)
                return torch.bmm(shares.view(len(q) * kv_heads, -1, column + 1), values.transpose(0, 1))

            hidden = self._layer(layer, hidden, cos, sin, attend)
        cache.column += 1
        cache.positions = cache.positions + 1
        return torch.as_tensor(self.norm(hidden))

    def _layer(self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Run one layer on `hidden` [..., hidden], with `attend` in the place of attention."""
        norm, qkv_weight, qkv_bias, normalise, o_weight, mlp_norm, gate_up, down = self.layers[index]
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        qkv = F.linear(norm(hidden), qkv_weight, qkv_bias).view(*hidden.shape[:-1], -1, self.config.head_dim)
        turned = rotate(normalise(qkv[..., : heads + kv_heads, :]), cos, sin)
        mixed = attend(turned[..., :heads, :], turned[..., heads:, :], qkv[..., heads + kv_heads :, :])
        hidden = hidden + F.linear(mixed.reshape(*hidden.shape[:-1], -1), o_weight)
        gate, up = F.linear(mlp_norm(hidden), gate_up).chunk(2, -1)
        return hidden + F.linear(F.silu(gate).mul_(up), down)


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the distribution function.

    Args:
        logits: [N, vocab] float32.
        uniforms: [N] in [0, 1).
        sampling: temperature, then top_k, then top_p over what is left.

    Returns:
        (tokens [N], log-probabilities [N] under the truncated, renormalised distribution; 0 when greedy).
    """
    if sampling.temperature == 0.0:
        return logits.argmax(-1), torch.zeros_like(uniforms)
    logits = logits / sampling.temperature
    if sampling.top_k <= 0 and sampling.top_p >= 1.0:
        chosen, logprobs = _invert(logits.softmax(-1), uniforms)
        return chosen, logprobs
    probabilities, tokens = _truncate(logits, sampling)
    chosen, logprobs = _invert(probabilities, uniforms)
    return tokens.gather(1, chosen.unsqueeze(1)).squeeze(1), logprobs


def _truncate(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the candidates' probabilities [N, K], descending and 0 outside the nucleus, and their tokens [N, K]."""
    vocabulary = logits.shape[-1]
    size = min(sampling.top_k if sampling.top_k > 0 else CANDIDATES, vocabulary)
    values, tokens = logits.topk(size, -1)
    mass = values if sampling.top_k > 0 else logits
    probabilities = (values - mass.logsumexp(-1, keepdim=True)).exp()
    if sampling.top_k <= 0 and size < vocabulary and bool((probabilities.sum(-1) < sampling.top_p).any()):
        probabilities, tokens = logits.softmax(-1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    return probabilities.masked_fill(before >= sampling.top_p, 0.0), tokens


def _invert(probabilities: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index [N] at which the running sum passes `uniforms` of the total, and its log-probability [N]."""
    running = probabilities.cumsum(-1)
    total = running[:, -1:]
    # Just below the total, so that rounding never lands behind the last token that has any mass.
    aim = uniforms.unsqueeze(1) * (total * (1 - 1e-6))
    # Without NaN the bound is never met; with it, the log-probability is NaN, which `generate` reports.
    chosen = torch.searchsorted(running, aim, right=True).clamp_max(running.shape[-1] - 1)
    return chosen.squeeze(1), (probabilities.gather(1, chosen) / total).log().squeeze(1)


def _check_finite(numbers: Tensor) -> None:
    if not bool(numbers.isfinite().all()):
        raise NonFinite(
            "generation: got NaN or infinite numbers from the model; need finite weights; "
            "start from another model or checkpoint"
        )


def _responses(tokenizer: Tokenizer, tokens: Tensor, logprobs: Tensor, limits: Tensor) -> list[Response]:
    """Cut each row after its end token, or at its limit, and decode it."""
    within = torch.arange(tokens.shape[1]) < limits.unsqueeze(1)
    ends = (tokens == tokenizer.eos_id) & within
    finished = ends.any(-1)
    lengths = torch.where(finished, ends.int().argmax(-1) + 1, limits).tolist()
    ids = [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
    rows = zip(ids, logprobs.tolist(), lengths, finished.tolist(), tokenizer.decode_batch(ids), strict=True)
    return [Response(row, scores[:length], done, text) for row, scores, length, done, text in rows]
