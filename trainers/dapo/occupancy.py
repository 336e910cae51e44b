"""How many responses an engine decodes at a time: few are long, and at the end they are alone. Loads no torch."""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist, fmean

LOOKS = 160
"""Instants at which the engine is looked at."""
HALVINGS = 50
"""Of the interval in which the median length is sought."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Some decoding steps in a row, in which about the same is decoded."""

    steps: float
    rows: float
    """Responses that are decoded at once."""
    generated: float
    """Tokens that each of them has, in the mean."""


@lru_cache(maxsize=64)
def lengths(rows: int, mean: float, limit: int, spread: float, among: int) -> tuple[int, ...]:
    """Lengths of so many responses, ascending: quantiles of a log-normal distribution that is cut at a limit.

    Args:
        rows: how many.
        mean: their mean, the cut ones counted with the limit.
        limit: tokens at most.
        spread: standard deviation over the mean, of the distribution before it is cut.
        among: responses among which the last one is the longest: those of all engines, if each has `rows`.
    """
    sigma = math.sqrt(math.log1p(spread**2))
    places = [(index + 0.5) / rows for index in range(rows)]
    normal = [math.exp(sigma * NormalDist().inv_cdf(place)) for place in places]
    low, high = 0.0, float(limit)
    while fmean(min(high * value, limit) for value in normal) < min(mean, 0.98 * limit):
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if fmean(min(middle * value, limit) for value in normal) < mean:
            low = middle
        else:
            high = middle
    normal[-1] = math.exp(sigma * NormalDist().inv_cdf(1 - 0.5 / max(rows, among)))
    return tuple(max(1, round(min(high * value, limit))) for value in normal)


@lru_cache(maxsize=64)
def moments(found: tuple[int, ...], slots: int) -> tuple[Moment, ...]:
    """How an engine decodes responses of these lengths, so many at once; one that ends makes room for the next."""
    waiting = list(found)
    random.Random(0).shuffle(waiting)
    starts: list[float] = []
    ends: list[float] = []
    free = [0.0] * min(slots, len(waiting))
    for length in waiting:
        start = heapq.heappop(free)
        heapq.heappush(free, start + length)
        starts.append(start)
        ends.append(start + length)
    return tuple(_looked_at(starts, ends))


def _looked_at(starts: list[float], ends: list[float]) -> Iterator[Moment]:
    pairs = sorted(zip(ends, starts, strict=True))
    began, ended = sorted(starts), [end for end, _ in pairs]
    began_before = [0.0, *accumulate(began)]
    starts_of_ended = [0.0, *accumulate(start for _, start in pairs)]
    step = ended[-1] / LOOKS
    for look in range(LOOKS):
        now = (look + 0.5) * step
        here, gone = bisect_right(began, now), bisect_right(ended, now)
        if rows := here - gone:
            age = now * rows - (began_before[here] - starts_of_ended[gone])
            yield Moment(step, float(rows), age / rows)
