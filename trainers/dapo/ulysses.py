"""Ulysses sequence parallelism (arXiv 2309.14509): each process has a share of the tokens, in attention of the heads.

Between the two, all-to-all exchanges. What comes out of the model is gathered, each process scores a share of the
targets, and the scores are gathered in turn, so that every process of the group sees the whole loss. A gradient that
every process computes alike is passed on in parts; one to which each adds its own is summed.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from dapo.parallel import Group


def padded_share(tokens: Tensor, group: Group, dim: int = 0) -> Tensor:
    """This process's equal share of what all have, the end padded with zeros."""
    if group.size == 1:
        return tokens
    share = -(-tokens.shape[dim] // group.size)
    lacking = share * group.size - tokens.shape[dim]
    if lacking:
        shape = list(tokens.shape)
        shape[dim] = lacking
        tokens = torch.cat((tokens, tokens.new_zeros(shape)), dim)
    return tokens.narrow(dim, group.rank * share, share)


def to_heads(x: Tensor, group: Group, total: int) -> Tensor:
    """Exchange a share of the tokens for a share of the heads.

    Args:
        x: [t, H, d], t tokens of every process; where H doesn't divide among the group, its size is a multiple of H,
            and each head goes to several.
        group: the processes that share the sequences.
        total: tokens in all, without padding.

    Returns:
        [total, H / size (or 1), d].
    """
    if group.size == 1:
        return x
    if x.shape[1] % group.size:
        x = x.repeat_interleave(group.size // x.shape[1], 1)
    return torch.as_tensor(cast(Any, _ToHeads).apply(x, group)[:total])


def to_tokens(x: Tensor, group: Group, share: int) -> Tensor:
    """Exchange a share of the heads for a share of the tokens.

    Args:
        x: [total, H / size, d].
        group: the processes that share the sequences.
        share: tokens of each process, t.

    Returns:
        [t, H, d].
    """
    if group.size == 1:
        return x
    lacking = share * group.size - len(x)
    if lacking:
        x = torch.cat((x, x.new_zeros(lacking, *x.shape[1:])))
    return torch.as_tensor(cast(Any, _ToTokens).apply(x, group))


def whole(x: Tensor, group: Group, total: int) -> Tensor:
    """All tokens [total, …] from each process's share; their gradients are summed."""
    return x if group.size == 1 else torch.as_tensor(cast(Any, _Whole).apply(x, group, True)[:total])


def alike(x: Tensor, group: Group, total: int) -> Tensor:
    """The same where all processes go on to compute the same of it: the gradient of one is the gradient."""
    return x if group.size == 1 else torch.as_tensor(cast(Any, _Whole).apply(x, group, False)[:total])


def _tokens_to_heads(x: Tensor, group: Group) -> Tensor:
    share, heads, size = x.shape[0], x.shape[1] // group.size, x.shape[2]
    sent = x.view(share, group.size, heads, size).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.handle)
    return received.view(group.size * share, heads, size)


def _heads_to_tokens(x: Tensor, group: Group) -> Tensor:
    share, heads, size = x.shape[0] // group.size, x.shape[1], x.shape[2]
    sent = x.contiguous().view(group.size, share, heads, size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.handle)
    return received.transpose(0, 1).reshape(share, group.size * heads, size)


class _ToHeads(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _tokens_to_heads(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _heads_to_tokens(grads[0], ctx.group), None


class _ToTokens(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _heads_to_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _tokens_to_heads(grads[0], ctx.group), None


class _Whole(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, summed: bool) -> Tensor:
        ctx.group, ctx.share, ctx.summed = group, len(x), summed
        return group.joined(x, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        whole_grad = grads[0].contiguous()
        if ctx.summed:
            whole_grad = ctx.group.sum(whole_grad.clone())
        return whole_grad[ctx.group.rank * ctx.share :][: ctx.share], None, None
