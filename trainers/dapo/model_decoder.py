"""A Llama/Qwen-style decoder in plain torch, with Hugging Face's parameter names.

Training runs on packed tokens: no padding inside the linear layers beyond a few percent, and causal attention
per sequence. Sequences are laid out in length buckets, so that each bucket is a contiguous [n, L] view and
attention over it is one call without a mask: a padded position comes after every real one of its row, so a
causal query never sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dapo.compiling import compiled
from dapo.model_base import PolicyModel
from dapo.model_config import DecoderConfig, RopeScaling
from dapo.parallel import ITSELF, Group
from dapo.sharding import whole_tensor
from dapo.ulysses import padded_share, to_heads, to_tokens, whole
from dapo.weight_shapes import ALL_LINEAR

if TYPE_CHECKING:
    from dapo.config import RolloutConfig
    from dapo.engine import Engine

_BASE, _LORA = ".base_layer", ".lora_"
"""In the names that peft gives to a wrapped projection's own weights and to its adapter's."""
BUCKET_FILL = 0.85
"""A sequence shorter than this share of its bucket's length starts the next bucket."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where packed tokens lie once their sequences are sorted into length buckets."""

    source: Tensor
    """[T'] packed index of each laid-out token; 0 at padding."""
    positions: Tensor
    """[T'] position of each laid-out token in its sequence."""
    inverse: Tensor
    """[T] laid-out index of each packed token."""
    buckets: tuple[tuple[int, int], ...]
    """(n, L) per bucket, in order; sum of n * L is T'."""
    spread: Tensor | None = None
    """[T'] index in the hidden states of each laid-out token, where sequences share some; None: its own index."""
    gather: Tensor | None = None
    """[U] laid-out index at which the attention of each hidden state is read; None: its own index."""
    group: Group = ITSELF
    """The processes that share the sequences: each has an equal share of the hidden states."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, fill: float = BUCKET_FILL) -> Layout:
        """Sort sequences of these lengths, packed in this order, into buckets that are filled to `fill` at least."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
        sources, positions, buckets = [], [], []
        first = 0
        while first < len(order):
            longest = lengths[order[first]]
            last = first
            while last < len(order) and lengths[order[last]] >= fill * longest:
                last += 1
            rows = torch.tensor(order[first:last])
            column = torch.arange(longest).expand(len(rows), -1)
            real = column < torch.tensor([lengths[row] for row in order[first:last]]).unsqueeze(1)
            sources.append(torch.where(real, starts[rows].unsqueeze(1) + column, -1).flatten())
            positions.append(column.flatten())
            buckets.append((len(rows), longest))
            first = last
        source = torch.cat(sources)
        inverse = torch.empty(sum(lengths), dtype=torch.long)
        slots = (source >= 0).nonzero().squeeze(1)
        inverse[source[slots]] = slots
        return cls(source.clamp_min(0).to(device), torch.cat(positions).to(device), inverse.to(device), tuple(buckets))

    def shared(self, places: Tensor) -> Layout:
        """Return the layout of hidden states [U] of which sequences share some, read from `places` [T].

        Everything but attention is then computed once for each hidden state. Attention runs on all laid-out
        tokens, as if nothing were shared, and its output is read at one of the places that are the same.
        """
        device = self.source.device
        unset = torch.full((int(places.max()) + 1,), len(self.source))
        gather = unset.scatter_reduce(0, places, self.inverse.cpu(), "amin").to(device)
        spread = places.to(device)[self.source]
        stored = torch.arange(len(gather), device=device)
        positions = self.positions[gather]
        return replace(self, source=stored, positions=positions, inverse=stored, spread=spread, gather=gather)


class RMSNorm(nn.Module):
    """Root-mean-square norm (arXiv 1910.07467), computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension of `hidden` [..., size]."""
        return rms_norm(hidden, self.weight, self.eps)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of `hidden` [..., size] by its root mean square, and scale it by `weight` [size]."""
    wide = hidden.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(hidden.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.qk_norm = config.qk_norm
        if self.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def normalise(self, heads: Tensor) -> Tensor:
        """Normalise queries and keys [..., heads + kv_heads, head_dim], where the family does."""
        if not self.qk_norm:
            return heads
        return torch.cat((self.q_norm(heads[..., : self.heads, :]), self.k_norm(heads[..., self.heads :, :])), -2)

    def fused_qkv(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of q, k and v as one projection."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        bias = torch.cat([part.bias for part in parts]) if self.q_proj.bias is not None else None
        return torch.cat([effective_weight(part) for part in parts]), bias

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        """Attend causally within each sequence of `hidden` [T', hidden] or, shared, [U, hidden], or a share of them."""
        qkv = F.linear(hidden, *self.fused_qkv()).view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        turned = rotate(self.normalise(qkv[:, : self.heads + self.kv_heads]), cos, sin)
        total, group = len(layout.source), layout.group
        queries, keys = (to_heads(part, group, total) for part in (turned[:, : self.heads], turned[:, self.heads :]))
        values = to_heads(qkv[:, self.heads + self.kv_heads :], group, total)
        if layout.spread is not None:
            queries, keys, values = (x.index_select(0, layout.spread) for x in (queries, keys, values))
        attended = bucket_attention(queries, keys, values, layout.buckets)
        if layout.gather is not None:
            attended = attended.index_select(0, layout.gather)
        mixed = to_tokens(attended, group, len(hidden)).flatten(1)
        return torch.as_tensor(self.o_proj(mixed))


def bucket_attention(queries: Tensor, keys: Tensor, values: Tensor, buckets: Sequence[tuple[int, int]]) -> Tensor:
    """Attend causally within each sequence of laid-out heads [T', heads, head_dim]; see `Layout.buckets`."""
    outputs, start = [], 0
    for rows, length in buckets:
        part = slice(start, start + rows * length)
        q, k, v = (x[part].view(rows, length, -1, x.shape[-1]).transpose(1, 2) for x in (queries, keys, values))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        outputs.append(out.transpose(1, 2).reshape(rows * length, -1, queries.shape[-1]))
        start = part.stop
    return torch.cat(outputs)


def effective_weight(projection: nn.Module) -> Tensor:
    """Weight of a projection, with what an adapter of peft's adds to it; both carry gradients."""
    wrapped: Any = projection
    weight: Tensor = wrapped.weight
    for adapter in getattr(wrapped, "active_adapters", ()):
        weight = weight + wrapped.get_delta_weight(adapter)
    return weight


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """The adapter's tensors by name; empty where there is none."""
    return {name: whole_tensor(tensor) for name, tensor in model.state_dict().items() if _LORA in name}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """All weights by their names in a Hugging Face folder, with what an adapter adds to them."""
    state = {
        name.replace(_BASE, ""): whole_tensor(tensor)
        for name, tensor in model.state_dict().items()
        if _LORA not in name
    }
    with torch.no_grad():
        for name, module in model.named_modules():
            if hasattr(module, "get_delta_weight"):
                state[f"{name}.weight"] = whole_tensor(effective_weight(module))
    return state


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `hidden` [..., hidden] to the same shape."""
        return torch.as_tensor(self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden)))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and a residual."""

    compiled: bool = False
    """Compile the part after attention."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        """Map `hidden` [T', hidden] to the same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin, layout)
        return (compiled(feed_forward) if self.compiled else feed_forward)(self, hidden)


def feed_forward(layer: Layer, hidden: Tensor) -> Tensor:
    """What a layer does after attention; maps `hidden` [T', hidden] to the same shape."""
    return torch.as_tensor(hidden + layer.mlp(layer.post_attention_layernorm(hidden)))


class Trunk(nn.Module):
    """Embedding, layers and the last norm: what Hugging Face keeps under `model.`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(PolicyModel):
    """A causal language model; `state_dict()` has Hugging Face's names.

    With `gradient_checkpointing` each layer's input alone is kept for the backward pass; without `remove_padding` every
    sequence is padded to the longest, in one bucket.
    """

    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """[vocab, hidden] weight of the output projection."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    @property
    def projections(self) -> tuple[str, ...]:
        """Names of the layers that an adapter can be added to."""
        return ALL_LINEAR

    @property
    def blocks(self) -> Sequence[Layer]:
        """The layers, first to last."""
        return cast(Sequence[Layer], self.model.layers)

    def engine(self, rollout: RolloutConfig, tp: Group = ITSELF) -> Engine:
        """Return what generates from the weights as they are."""
        from dapo.engine import Engine

        return Engine(self, rollout, tp)

    def saved_state(self) -> dict[str, Tensor]:
        """All weights by their names in a Hugging Face folder, an adapter merged."""
        return merged_state(self)

    def hidden_packed(self, input_ids: Tensor, cu_seqlens: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the last hidden states of sequences packed one after the other.

        Args:
            input_ids: [T] tokens of all sequences; [U] with `places`.
            cu_seqlens: [S + 1] start of each sequence, and T.
            places: [T] index in `input_ids` of each sequence's tokens, where sequences that begin alike share
                what they have in common.

        Returns:
            [T or U, hidden], in the order of `input_ids`.
        """
        fill = BUCKET_FILL if self.remove_padding else 0.0
        layout = Layout.of(cu_seqlens.diff().tolist(), input_ids.device, fill)
        longest = max(length for _, length in layout.buckets)
        if places is not None:
            layout = layout.shared(places)
        layout = replace(layout, group=self.sequence_group)
        hidden = self.model.embed_tokens(input_ids[padded_share(layout.source, layout.group)])
        cos, sin = rope_table(self.config, longest, hidden)
        positions = padded_share(layout.positions, layout.group)
        cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
        for layer in self.blocks:
            layer.compiled = self.compiled
            if self.gradient_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, cos, sin, layout, use_reentrant=False)
            else:
                hidden = layer(hidden, cos, sin, layout)
        hidden = whole(torch.as_tensor(self.model.norm(hidden)), layout.group, len(layout.source))
        return hidden[layout.inverse]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of hidden states [..., hidden]."""
        return F.linear(hidden, self.head_weight)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits [B, T, vocab] of `input_ids` [B, T] without padding, or [T, vocab] of one sequence [T]."""
        rows, length = input_ids.shape if input_ids.dim() == 2 else (1, input_ids.numel())
        starts = torch.arange(rows + 1) * length
        logits = self.logits(self.hidden_packed(input_ids.flatten(), starts))
        return logits.view(*input_ids.shape, -1)


def rope_table(config: DecoderConfig, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin [length, head_dim / 2] of rotary positions (arXiv 2104.09864), as `like`'s type."""
    half = torch.arange(0, config.head_dim, 2, device=like.device, dtype=torch.float32)
    frequency = 1.0 / config.rope_theta ** (half / config.head_dim)
    if config.rope_scaling is not None:
        frequency = stretched(frequency, config.rope_scaling)
    angle = torch.arange(length, device=like.device, dtype=torch.float32).unsqueeze(1) * frequency
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def stretched(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Return rotary frequencies for longer contexts (arXiv 2306.15595; Llama 3.1's own way, arXiv 2407.21783)."""
    if scaling.rope_type == "linear":
        return frequency / scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * frequency / (2.0 * torch.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequency / scaling.factor + kept * frequency


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `heads` [..., H, head_dim] by cos and sin [..., 1, head_dim / 2]; halves are paired as in Llama."""
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
