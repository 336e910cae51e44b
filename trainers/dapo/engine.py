"""The trainer's own rollout engine: continuous batching over a static KV cache, one prefill per prompt.

Rows enter by the lengths of their prompts, the longest first, so that those which are read together are alike, and none
needs more columns than the ones before it. Ended rows make room for waiting ones as soon as enough have ended; when
none wait any more, the batch shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dapo.device import rollout_dtype
from dapo.draws import Sampling, draw
from dapo.engine_base import Rows, Sampled, check_finite, cut
from dapo.engine_cache import Cache, Read
from dapo.engine_weights import ModelWeights
from dapo.model_decoder import Decoder, Layout, bucket_attention, rope_table, rotate
from dapo.parallel import ITSELF, Group

if TYPE_CHECKING:
    from dapo.config import RolloutConfig

ALIVE_SHARE = 0.8
"""Ended rows are replaced, or leave, once fewer than this share is alive: reading or copying costs too."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of one layer: queries, keys and values [..., heads, head_dim] to [..., heads, head_dim]."""


class Engine:
    """A decoder's weights in the form that generation wants: q, k, v in one product, gate and up in another."""

    def __init__(self, model: Decoder, rollout: RolloutConfig, tp: Group = ITSELF) -> None:
        """Read the weights.

        Args:
            model: the decoder; all processes must ask if it is spread over them.
            rollout: rows and prompt tokens at once.
            tp: the processes that generate the same rows, each with a part of the model.
        """
        self.config = model.config
        self.device = model.head_weight.device
        self.slots = rollout.max_num_seqs
        self.prefilled = rollout.max_num_batched_tokens
        self.tp = tp
        self.heads = model.config.num_attention_heads // tp.size
        self.kv_heads = max(1, model.config.num_key_value_heads // tp.size)
        self.weights = ModelWeights.of(model, tp, rollout_dtype(rollout, model.head_weight))

    @torch.inference_mode()
    def sample(self, rows: Rows, sampling: Sampling, eos_id: int) -> list[Sampled]:
        """Sample N responses; see `engine_base.RolloutEngine.sample`."""
        return _Batch(self, rows, sampling, eos_id).run()

    def cache(self, columns: int, rows: int) -> Cache:
        """Return an empty cache for so many rows of up to `columns` tokens."""
        heads = (self.kv_heads, self.config.head_dim)
        return Cache(len(self.weights.layers), columns, min(self.slots, rows), heads, self.weights.embedding)

    def rope(self, length: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the first `length` positions."""
        return rope_table(self.config, length, self.weights.embedding)

    def read(self, cache: Cache, prompts: Sequence[Sequence[int]], owner: Tensor, slots: Tensor) -> Tensor:
        """Run each prompt once and hand its keys and values to every row that it owns.

        Args:
            cache: where the rows have entered.
            prompts: token ids [P each].
            owner: [n] index of each row's prompt.
            slots: [n] each row's slot.

        Returns:
            [n, hidden] the last hidden state of each row's prompt.
        """
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest, ends = int(lengths.max()), lengths.cumsum(0)
        layout = Layout.of(lengths.tolist(), self.device)
        ids = torch.tensor([token for prompt in prompts for token in prompt], device=self.device)
        # The last `longest` columns of each row; those before its own first one are masked.
        places = (torch.arange(-longest, 0).unsqueeze(1) + ends[owner]).maximum((ends - lengths)[owner])
        places = layout.inverse[places.to(self.device)]
        hidden = self.weights.embedding[ids[layout.source]]
        cos, sin = (table[layout.positions].unsqueeze(1) for table in self.rope(longest))
        for layer in range(len(self.weights.layers)):

            def attend(q: Tensor, k: Tensor, v: Tensor, layer: int = layer) -> Tensor:
                cache.put(layer, slots, k[places], v[places])
                return bucket_attention(q, k, v, layout.buckets)

            hidden = self._layer(layer, hidden, cos, sin, attend)
        last = layout.inverse[ends.to(self.device) - 1]
        found = self.weights.norm(hidden[last])
        check_finite(found)
        return found[owner.to(self.device)]

    def advance(self, cache: Cache, token: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Feed one token per row [N] and return the last hidden states [N, hidden]."""
        cos, sin = (table[cache.positions].unsqueeze(1) for table in tables)
        column, window = cache.column, slice(cache.start, cache.column + 1)
        kv_heads, head_dim, size = self.kv_heads, self.config.head_dim, cache.column + 1 - cache.start
        # Queries that share a key head are the rows of one small product: on a CPU far faster than fused attention.
        shape = (len(token) * kv_heads, self.heads // kv_heads, head_dim)
        bias, scale = cache.bias[:, None, window], head_dim**-0.5
        hidden = self.weights.embedding[token]
        for layer in range(len(self.weights.layers)):
            keys, values = cache.keys[layer], cache.values[layer]

            def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values) -> Tensor:
                keys[column], values[column] = k, v
                keys, values = keys[window].flatten(1, 2), values[window].flatten(1, 2)
                scores = torch.bmm(q.reshape(shape), keys.permute(1, 2, 0)).view(len(bias), -1, size)
                shares = torch.add(bias, scores, alpha=scale).softmax(-1)
                return torch.bmm(shares.view(len(q) * kv_heads, -1, size), values.transpose(0, 1))

            hidden = self._layer(layer, hidden, cos, sin, attend)
        cache.advance()
        return self.weights.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [N, vocab] in float32."""
        logits = (hidden @ self.weights.head.T).float()
        return self.tp.joined(logits)[:, : self.config.vocab_size]

    def _layer(self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Run one layer on `hidden` [..., hidden], with `attend` in the place of attention."""
        weights, heads, kv_heads = self.weights.layers[index], self.heads, self.kv_heads
        qkv = F.linear(weights.input_norm(hidden), weights.qkv, weights.qkv_bias)
        qkv = qkv.view(*hidden.shape[:-1], -1, self.config.head_dim)
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], -2)
        turned = rotate(weights.normalise(q, k), cos, sin)
        mixed = attend(turned[..., :heads, :], turned[..., heads:, :], v)
        hidden = hidden + self.tp.sum(F.linear(mixed.reshape(*hidden.shape[:-1], -1), weights.output))
        gate, up = F.linear(weights.mlp_norm(hidden), weights.gate_up).chunk(2, -1)
        return hidden + self.tp.sum(F.linear(F.silu(gate).mul_(up), weights.down))


class _Batch:
    """The rows of one call: those in slots, those that wait, and what was drawn so far."""

    def __init__(self, engine: Engine, rows: Rows, sampling: Sampling, eos_id: int) -> None:
        device = engine.device
        total, self.places = rows.uniforms.shape
        self.engine, self.rows, self.sampling, self.eos_id = engine, rows, sampling, eos_id
        self.lengths = torch.tensor([len(prompt) for prompt in rows.prompts])
        # Stable, so that a prompt's rows stay together.
        self.order = torch.argsort(self.lengths[rows.owners], descending=True, stable=True)
        self.waiting = total
        columns = int(self.lengths.max()) + int(rows.limits.max())
        self.cache = engine.cache(columns, total)
        self.tables = engine.rope(columns)
        self.uniforms, self.limits = rows.uniforms.to(device), rows.limits.to(device)
        # What rows that have ended go on to draw lands in one place more than there are.
        self.tokens = torch.full((total, self.places + 1), eos_id, dtype=torch.int32, device=device)
        self.logprobs = torch.zeros(total, self.places + 1, device=device)
        slots = len(self.cache.positions)
        self.row = torch.zeros(slots, dtype=torch.long, device=device)
        """[slots] which row is in each slot."""
        self.count = torch.zeros_like(self.row)
        """[slots] tokens that it has drawn."""
        self.ended = torch.ones(slots, dtype=torch.bool, device=device)
        self.hidden = engine.weights.embedding.new_zeros(slots, engine.weights.embedding.shape[1])
        self.kept: Read | None = None
        """The prompt of the last row that entered, if others of its rows wait."""

    def run(self) -> list[Sampled]:
        """Draw until all rows have ended."""
        self.enter()
        while True:
            token = self.draw()
            alive = len(self.row) - int(self.ended.sum())
            due = alive == 0 or alive < ALIVE_SHARE * len(self.row)
            if due and not self.waiting:
                if alive == 0:
                    break
                token = self.shrink(token)
            if alive > 0:
                self.cache.make_room(self.alive)
                self.hidden = self.engine.advance(self.cache, token, self.tables)
            if due and self.waiting:
                self.enter()
        tokens, logprobs = (drawn[:, : self.places].cpu() for drawn in (self.tokens, self.logprobs))
        return cut(tokens, logprobs, self.rows.limits, self.eos_id)

    @property
    def alive(self) -> Tensor:
        """Slots whose rows go on."""
        return (~self.ended).nonzero().squeeze(1)

    def draw(self) -> Tensor:
        """Draw a token [slots] of each row, and note those that end."""
        place = self.count.clamp_max(self.places - 1)
        token, logprob = draw(self.engine.logits(self.hidden), self.uniforms[self.row, place], self.sampling)
        self.tokens[self.row, self.count], self.logprobs[self.row, self.count] = token.int(), logprob
        self.count += 1
        self.ended |= (token == self.eos_id) | (self.count >= self.limits[self.row])
        self.count.masked_fill_(self.ended, self.places)
        return token

    def shrink(self, token: Tensor) -> Tensor:
        """Leave out the slots of rows that have ended; return the others' tokens."""
        keep = self.alive
        self.cache.keep(keep)
        self.row, self.count, self.ended = self.row[keep], self.count[keep], self.ended[keep]
        self.cache.forget(torch.arange(len(keep)))
        return token[keep]

    def enter(self) -> None:
        """Put waiting rows into the slots of those that have ended."""
        free, first = self.ended.nonzero().squeeze(1), len(self.order) - self.waiting
        rows = self.order[first : first + len(free)]
        slots, owners = free[: len(rows)], self.rows.owners[rows]
        if len(free) == len(self.row):
            self.cache.start, self.cache.column = 0, int(self.lengths[owners].max())
        self.waiting -= len(rows)
        self.row[slots] = rows.to(self.row.device)
        self.count[slots], self.ended[slots] = 0, False
        self.cache.enter(slots, self.lengths[owners].to(slots.device))
        for part, prompts in self.reads(owners):
            self.hidden[slots[part]] = self.read(prompts, owners[part], slots[part])
        last = int(owners[-1])
        wanted = self.waiting and int(self.rows.owners[self.order[first + len(rows)]]) == last
        slot = int(slots[-1])
        self.kept = self.cache.read(last, slot, self.hidden[slot]) if wanted else None
        self.cache.forget(self.alive)

    def reads(self, owners: Tensor) -> Iterator[tuple[slice, list[int]]]:
        """Yield which of the rows [n] that enter, and which prompts, are read together: as many tokens as may be."""
        prompts, sizes = _runs(owners)
        first, last, tokens, chosen = 0, 0, 0, list[int]()
        for prompt, size in zip(prompts.tolist(), sizes.tolist(), strict=True):
            length, alone = int(self.lengths[prompt]), self.kept is not None and chosen == [self.kept.prompt]
            if chosen and (alone or tokens + length > self.engine.prefilled):
                yield slice(first, last), chosen
                first, tokens, chosen = last, 0, []
            chosen.append(prompt)
            last, tokens = last + size, tokens + length
        yield slice(first, last), chosen

    def read(self, prompts: list[int], owners: Tensor, slots: Tensor) -> Tensor:
        """Read prompts for the rows in `slots` [n], or take what was read before; return hidden states [n, hidden]."""
        kept = self.kept
        if kept is not None and prompts == [kept.prompt]:
            for layer, (keys, values) in enumerate(zip(kept.keys, kept.values, strict=True)):
                self.cache.put(layer, slots, keys.unsqueeze(1), values.unsqueeze(1))
            return kept.hidden.expand(len(slots), -1)
        texts = [self.rows.prompts[prompt] for prompt in prompts]
        owner = torch.arange(len(prompts)).repeat_interleave(_runs(owners)[1])
        return self.engine.read(self.cache, texts, owner, slots)


def _runs(owners: Tensor) -> tuple[Tensor, Tensor]:
    """Return which prompts the rows [n] have, one after the other, and how many rows each."""
    starts = torch.cat((owners.new_zeros(1), (owners.diff() != 0).nonzero().squeeze(1) + 1))
    return owners[starts], starts.diff(append=starts.new_tensor([len(owners)]))
