"""How the processor time of something grows with its input: a ratio within one process, on whatever busy machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from timeit import Timer

RUNS = 5
"""The fastest counts."""


def growth_exponent(work: Callable[[int], object], small: int, large: int) -> float:
    """Exponent of the power of the size that the time grows with: 1 if linear, 2 if quadratic.

    Args:
        work: Does it for a size.
        small: A size.
        large: Several times that size.
    """
    least, most = (
        min(Timer(lambda size=size: work(size), timer=time.process_time).repeat(RUNS, 1)) for size in (small, large)
    )
    return math.log(most / least) / math.log(large / small)
