"""A decoder's weights as generation wants them: q, k, v in one product, gate and up in another; whole, or in parts.

With tensor parallelism (arXiv 1909.08053) every process has some heads, and some columns of the MLP; what they add up
to is summed after each of the two. Key-value heads that don't go round are copied. The head is split by vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dapo.model_decoder import Decoder, Layer, RMSNorm, effective_weight, rms_norm
from dapo.sharding import unsharded

if TYPE_CHECKING:
    from dapo.parallel import Group

Own = Callable[[Tensor], Tensor]
"""Makes a tensor one that stays, in the type that is generated in."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A root-mean-square norm as it was when it was read."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, norm: RMSNorm, own: Own) -> Norm:
        """Read a norm."""
        return cls(own(norm.weight.detach()), norm.eps)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension of `hidden` [..., size]."""
        return rms_norm(hidden, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's."""

    input_norm: Norm
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Norm | None
    k_norm: Norm | None
    output: Tensor
    mlp_norm: Norm
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Layer, tp: Group, dtype: torch.dtype) -> LayerWeights:
        """Read a layer in this type, or this process's part of it; all processes must ask."""
        attention, mlp = layer.self_attn, layer.mlp
        with unsharded(layer) as fleeting:
            heads, shared = _Part(attention.heads, tp), _Part(attention.kv_heads, tp)
            sizes = [attention.heads, attention.kv_heads, attention.kv_heads]

            own = partial(_own, kept=not fleeting, dtype=dtype)

            def own_heads(stacked: Tensor) -> Tensor:
                q, k, v = torch.split(stacked.reshape(-1, attention.head_dim, *stacked.shape[1:]), sizes)
                return torch.cat([heads.of(q), shared.of(k), shared.of(v)]).flatten(0, 1).to(dtype)

            qkv, bias = attention.fused_qkv()
            output = effective_weight(attention.o_proj)
            output = output.reshape(len(output), -1, attention.head_dim)
            columns = _Part(mlp.gate_proj.out_features, tp)
            gates = [columns.of(effective_weight(part)) for part in (mlp.gate_proj, mlp.up_proj)]
            down = columns.of(effective_weight(mlp.down_proj), 1)
            return cls(
                Norm.of(layer.input_layernorm, own),
                own_heads(qkv),
                None if bias is None else own_heads(bias),
                Norm.of(attention.q_norm, own) if attention.qk_norm else None,
                Norm.of(attention.k_norm, own) if attention.qk_norm else None,
                own(heads.of(output, 1).flatten(1)),
                Norm.of(layer.post_attention_layernorm, own),
                torch.cat(gates).to(dtype),
                own(down),
            )

    def normalise(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Queries and keys side by side [..., heads + kv_heads, head_dim], normalised where the family does."""
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return torch.cat((queries, keys), -2)


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A decoder's."""

    layers: list[LayerWeights]
    norm: Norm
    embedding: Tensor
    head: Tensor
    """[vocab / tp, hidden]; the last process's may end with rows of zeros."""

    @classmethod
    def of(cls, model: Decoder, tp: Group, dtype: torch.dtype) -> ModelWeights:
        """Read a model in this type, or this process's part of it; all processes must ask."""
        layers = [LayerWeights.of(layer, tp, dtype) for layer in model.blocks]
        with unsharded(model) as fleeting:
            own = partial(_own, kept=not fleeting, dtype=dtype)
            head = model.head_weight.detach()
            if tp.size > 1:
                share = -(-len(head) // tp.size)
                head = head[tp.rank * share :][:share]
                head = torch.cat((head, head.new_zeros(share - len(head), head.shape[1])))
            embedding = own(model.model.embed_tokens.weight.detach())
            # Tied and whole, the head is the embedding: one copy of both.
            tied = tp.size == 1 and model.config.tie_word_embeddings
            return cls(layers, Norm.of(model.model.norm, own), embedding, embedding if tied else own(head))


@dataclass(frozen=True, slots=True)
class _Part:
    """Which of `count` rows or columns a process has."""

    count: int
    tp: Group

    def of(self, weight: Tensor, dim: int = 0) -> Tensor:
        """This process's part along a dimension; where they are fewer than the processes, one that others have too."""
        if self.tp.size == 1:
            return weight
        share = max(1, self.count // self.tp.size)
        return weight.narrow(dim, self.tp.rank * self.count // self.tp.size, share)


def _own(tensor: Tensor, *, kept: bool, dtype: torch.dtype) -> Tensor:
    """A tensor of this type that stays: a copy, if what it lies in won't."""
    if kept or tensor.dtype != dtype:
        return tensor.to(dtype).contiguous()
    return tensor.clone(memory_format=torch.contiguous_format)
