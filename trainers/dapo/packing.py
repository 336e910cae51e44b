"""How a batch is split: into mini-batches of prompts, parts for the processes, and micro-batches by token budget."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from dapo.accounting import Segment
from dapo.batch import TrainBatch
from dapo.config import Config
from dapo.config_actor import ActorConfig
from dapo.loss import token_weights


@dataclass(slots=True)
class MiniBatch:
    """What one optimiser step trains on: positions in the batch, and what each token weighs."""

    indices: list[int]
    weights: list[Tensor]
    """One [R] float32 each."""
    tokens: int
    """Unmasked tokens."""


def mini_batches(batch: TrainBatch, config: Config) -> Iterator[MiniBatch]:
    """Split a batch into runs of whole groups, `ppo_mini_batch_size` prompts each; the last may be smaller."""
    start, prompts = 0, config.mini_batch_size
    for first in range(0, len(batch.group_sizes), prompts):
        stop = start + sum(batch.group_sizes[first : first + prompts])
        masks = batch.masks[start:stop]
        yield MiniBatch(
            indices=list(range(start, stop)),
            weights=token_weights(masks, config.actor.loss_agg_mode, config.loss_scale_factor),
            tokens=sum(map(sum, masks)),
        )
        start = stop


Sequences = Sequence[tuple[list[int], list[int]]]
"""(prompt tokens, response tokens) each."""


def balanced_parts(sequences: Sequences, parts: int, *, shared: bool = False) -> list[list[int]]:
    """Share sequences out so that every part has about as many tokens: the longest first, each to the emptiest.

    Args:
        sequences: what to share out.
        parts: how many.
        shared: keep neighbours with the same prompt together, for `use_prefix_grouper`.

    Returns:
        Positions in `sequences`, ascending in each part.
    """
    if parts == 1:
        return [list(range(len(sequences)))]
    units: list[list[int]] = []
    for place, (prompt, _) in enumerate(sequences):
        if shared and units and sequences[units[-1][-1]][0] == prompt:
            units[-1].append(place)
        else:
            units.append([place])
    lengths = lengths_of(sequences)
    loads = [(sum(lengths[place] for place in unit), unit) for unit in units]
    heap: list[tuple[int, int]] = [(0, part) for part in range(parts)]
    found: list[list[int]] = [[] for _ in range(parts)]
    for load, unit in sorted(loads, key=lambda item: -item[0]):
        tokens, part = heapq.heappop(heap)
        found[part] += unit
        heapq.heappush(heap, (tokens + load, part))
    return [sorted(part) for part in found]


def micro_batches(lengths: Sequence[int], budget: int, *, in_order: bool = False) -> list[list[int]]:
    """Pack sequences into micro-batches of at most `budget` tokens, longest first.

    A sequence that is longer than the budget gets a micro-batch of its own.

    Args:
        lengths: tokens of each sequence.
        budget: `ppo_max_token_len_per_gpu`.
        in_order: pack them in the order given, so that those of a group stay together and share their prompt.

    Returns:
        Positions in `lengths`, each once.
    """
    packed: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: 0 if in_order else -lengths[index]):
        if not packed or lengths[index] > room:
            packed.append([])
            room = budget
        packed[-1].append(index)
        room -= lengths[index]
    return packed


def training_micro_batches(lengths: Sequence[int], config: ActorConfig) -> list[list[int]]:
    """Split a mini-batch's sequences, of so many tokens each, as `use_dynamic_bsz` says.

    Returns:
        Positions in `lengths`, each once.

    Raises:
        ValueError: `use_dynamic_bsz` is off and there is no `ppo_micro_batch_size_per_gpu`.
    """
    if config.use_dynamic_bsz:
        return micro_batches(lengths, config.ppo_max_token_len_per_gpu, in_order=config.use_prefix_grouper)
    size = config.ppo_micro_batch_size_per_gpu
    if size is None:
        raise ValueError("actor.use_dynamic_bsz: false needs actor.ppo_micro_batch_size_per_gpu")
    places = list(range(len(lengths)))
    return [places[start : start + size] for start in range(0, len(places), size)]


def training_plan(sequences: Sequences, config: ActorConfig, parts: int) -> list[list[list[int]]]:
    """What each of `parts` processes trains on: equally many micro-batches, as each of them ends in an exchange.

    Returns:
        For each part its micro-batches, of positions in `sequences`; an empty one only where a part has too few.
    """
    shares = balanced_parts(sequences, parts, shared=config.use_prefix_grouper)
    return _equally_many(sequences, shares, lambda lengths: training_micro_batches(lengths, config))


def scoring_plan(sequences: Sequences, config: Config, parts: int) -> list[list[list[int]]]:
    """The same for a pass without gradient."""
    actor = config.actor
    shares = balanced_parts(sequences, parts, shared=actor.use_prefix_grouper)
    budget, in_order = actor.ppo_max_token_len_per_gpu, actor.use_prefix_grouper
    return _equally_many(sequences, shares, lambda lengths: micro_batches(lengths, budget, in_order=in_order))


def _equally_many(
    sequences: Sequences, shares: list[list[int]], split: Callable[[list[int]], list[list[int]]]
) -> list[list[list[int]]]:
    lengths = lengths_of(sequences)
    plans = [
        [[share[place] for place in micro] for micro in split([lengths[place] for place in share])] for share in shares
    ]
    count = max(map(len, plans))
    for plan in plans:
        while len(plan) < count:
            largest = max(plan, key=len, default=[])
            half = len(largest) // 2
            plan.append(largest[half:] if half else [])
            del largest[half or len(largest) :]
    return plans


def lengths_of(sequences: Sequences) -> list[int]:
    """Tokens of each sequence, prompt and response."""
    return [len(prompt) + len(response) for prompt, response in sequences]


def computed_segments(sequences: Sequences, micros: Iterable[Sequence[int]], *, shared: bool) -> list[Segment]:
    """What one pass over sequences computes: each as a whole or, shared, each micro-batch's prompts once.

    Args:
        sequences: (prompt tokens, response tokens) each.
        micros: positions in `sequences` of each micro-batch.
        shared: `use_prefix_grouper`.
    """
    if not shared:
        return [(0, length) for length in lengths_of(sequences)]
    segments: list[Segment] = []
    for micro in micros:
        chosen = [sequences[index] for index in micro]
        segments += [(0, len(prompt)) for prompt in {tuple(prompt) for prompt, _ in chosen}]
        segments += [(len(prompt), len(response)) for prompt, response in chosen]
    return segments


def scored_segments(sequences: Sequences, config: Config, parts: int = 1) -> list[Segment]:
    """What a pass without gradient computes, on so many processes."""
    micros = chain.from_iterable(scoring_plan(sequences, config, parts))
    return computed_segments(sequences, micros, shared=config.actor.use_prefix_grouper)


def trained_segments(batch: TrainBatch, config: Config, parts: int = 1) -> list[Segment]:
    """What one epoch of an update computes; a mini-batch in which every token is masked is left out."""
    segments: list[Segment] = []
    for mini in mini_batches(batch, config):
        if not mini.tokens:
            continue
        chosen = [batch.sequences[index] for index in mini.indices]
        micros = chain.from_iterable(training_plan(chosen, config.actor, parts))
        segments += computed_segments(chosen, micros, shared=config.actor.use_prefix_grouper)
    return segments
