"""Log-probabilities of responses, with gradients, and the exact FLOPs of a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dapo.compiling import compiled
from dapo.model_base import ModelShape, PolicyModel
from dapo.ulysses import alike, padded_share

CHUNK_ELEMENTS = 2**22
"""Logits held at once (16 MiB in float32); more tokens than that are recomputed in the backward pass."""


def response_logprobs(
    model: PolicyModel,
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    *,
    share_prompts: bool = False,
) -> tuple[Tensor, Tensor]:
    """Score each response token given its prompt and the tokens before it.

    Args:
        model: the policy's model.
        sequences: (prompt_ids [P >= 1], response_ids [R]) each.
        temperature: logits are divided by it, as in the rollout.
        share_prompts: compute a prompt that several sequences have once. Equal up to rounding.

    Returns:
        (logprobs, entropy), both float32 [sum of R], sequence after sequence; both carry gradients.
    """
    device = model.head_weight.device
    prompts = torch.tensor([len(prompt) for prompt, _ in sequences])
    responses = torch.tensor([len(response) for _, response in sequences])
    starts = torch.cat((torch.zeros(1, dtype=torch.long), (prompts + responses).cumsum(0)))
    within = torch.arange(int(responses.sum())) - (responses.cumsum(0) - responses).repeat_interleave(responses)
    targets = (starts[:-1] + prompts).repeat_interleave(responses) + within
    if share_prompts:
        stored, places = _shared(sequences)
        tokens = torch.tensor(stored, device=device)
        hidden = model.hidden_packed(tokens, starts, places)[places[targets - 1].to(device)]
        labels = tokens[places[targets].to(device)]
    else:
        tokens = torch.tensor([token for pair in sequences for part in pair for token in part], device=device)
        hidden = model.hidden_packed(tokens, starts)[(targets - 1).to(device)]
        labels = tokens[targets.to(device)]
    group, total = model.sequence_group, len(labels)
    hidden, labels = padded_share(hidden, group), padded_share(labels, group)
    logprobs, entropy = _score_in_chunks(model, hidden, labels, temperature)
    return alike(logprobs, group, total), alike(entropy, group, total)


def _score_in_chunks(model: PolicyModel, hidden: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Score without ever holding more logits than `CHUNK_ELEMENTS`."""
    size = max(1, CHUNK_ELEMENTS // model.config.vocab_size)
    if len(labels) <= size:
        return _score(model.logits, hidden, labels, temperature, model.compiled)
    parts = [slice(start, start + size) for start in range(0, len(labels), size)]
    chunks = [
        checkpoint(_score, model.logits, hidden[part], labels[part], temperature, model.compiled, use_reentrant=False)
        for part in parts
    ]
    return torch.cat([chunk[0] for chunk in chunks]), torch.cat([chunk[1] for chunk in chunks])


def _shared(sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[list[int], Tensor]:
    """Return the tokens [U] with each distinct prompt once, and the place among them of each sequence's tokens [T]."""
    stored: list[int] = []
    places: list[int] = []
    begins: dict[tuple[int, ...], int] = {}
    for prompt, response in sequences:
        begin = begins.setdefault(tuple(prompt), len(stored))
        if begin == len(stored):
            stored += prompt
        places += range(begin, begin + len(prompt))
        places += range(len(stored), len(stored) + len(response))
        stored += response
    return stored, torch.tensor(places)


def _score(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor, temperature: float, compile_it: bool
) -> tuple[Tensor, Tensor]:
    """Return log-probability of `labels` [N] and entropy [N] at `hidden` [N, hidden]."""
    return (compiled(measured) if compile_it else measured)(logits_of(hidden), labels, temperature)


def measured(logits: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probability of `labels` [N] and entropy [N] under `logits` [N, vocab]."""
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, labels.unsqueeze(1)).squeeze(1), entropy


def flops_per_token(config: ModelShape, context_length: float) -> float:
    """Return the FLOPs of one forward pass over one token that attends to `context_length` tokens.

    Two per weight of every matrix product (embedding lookups, norms and activations left out), plus scores and
    weighted values: 2 * 2 * heads * head_dim * context in each layer. A backward pass costs twice as much.
    """
    return 2.0 * config.weights_per_token + 4.0 * config.attention_width * context_length
