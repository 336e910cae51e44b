"""A trainer of one step whose accuracy and cost are public test functions of its knobs: problems for the search.

`zdt1`, `zdt2`, `zdt3` (Zitzler, Deb, Thiele 2000), `dtlz2` and `dtlz7` (Deb et al. 2005) with two objectives: the first
is the logarithm of the cost, so that trials differ in what they cost as real ones do, and the second is what accuracy
falls short of.
`mixed` is a learner with a categorical, a conditional, integers and a logarithmic rate, and a little noise.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from typing import Any, Literal

from dapo.batch import Cost, StepMetrics
from pydantic import BaseModel, ConfigDict

DECADES = {"zdt1": 1.5, "zdt2": 1.5, "zdt3": 1.5, "dtlz2": 1.0, "dtlz7": 1.5, "mixed": 1.0}
"""Powers of ten in the cost for each unit of the first objective."""
NOISE = {"mixed": 0.01}
"""Standard deviation of accuracy between seeds."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Knobs(Section):
    x1: float = 0.5
    x2: float = 0.5
    x3: float = 0.5
    x4: float = 0.5
    x5: float = 0.5
    kind: Literal["plain", "wide", "deep"] = "plain"
    width: int = 32
    depth: int = 2
    rate: float = 0.01
    skip: float = 0.0


class Run(Section):
    seed: int = 0
    num_threads: int | None = None
    default_local_dir: str | None = None


class Config(Section):
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    problem: Literal["zdt1", "zdt2", "zdt3", "dtlz2", "dtlz7", "mixed"] = "zdt1"
    knobs: Knobs = Knobs()
    trainer: Run = Run()


def objectives(problem: str, knobs: Knobs) -> tuple[float, float]:
    """Return both objectives, less is better: the logarithm of the cost (up to its unit) and the shortfall."""
    if problem == "mixed":
        return _mixed(knobs)
    first, rest = knobs.x1, (knobs.x2, knobs.x3, knobs.x4, knobs.x5)
    if problem == "dtlz2":
        g = sum((x - 0.5) ** 2 for x in rest)
        return (1 + g) * math.cos(first * math.pi / 2), (1 + g) * math.sin(first * math.pi / 2)
    g = 1 + 9 * sum(rest) / len(rest)
    if problem == "dtlz7":
        return first, (1 + g) * (2 - first / (1 + g) * (1 + math.sin(3 * math.pi * first)))
    if problem == "zdt2":
        return first, g * (1 - (first / g) ** 2)
    wave = first / g * math.sin(10 * math.pi * first) if problem == "zdt3" else 0.0
    return first, g * (1 - math.sqrt(first / g) - wave)


def _mixed(knobs: Knobs) -> tuple[float, float]:
    """Capacity helps with falling returns; each kind has its own best rate, and only `deep` can skip."""
    capacity = math.log2(knobs.width / 8) / 5 + knobs.depth / 8
    best, gain = {"plain": (-2.0, 0.5), "wide": (-1.5, 0.55), "deep": (-2.5, 0.6)}[knobs.kind]
    off = math.log10(knobs.rate) - best + 0.3 * capacity
    gain += 0.1 * math.exp(-(((knobs.skip - 0.6) / 0.2) ** 2)) if knobs.kind == "deep" else 0.0
    reached = 0.3 + gain * (1 - math.exp(-1.5 * capacity)) * math.exp(-(off**2))
    return capacity * {"plain": 1.0, "wide": 1.1, "deep": 1.3}[knobs.kind], 1 - reached


def preflight(config: Config, devices: int = 1) -> list[Any]:
    return []


def prepare(config: Config, progress: Callable[[str, int, int], None] | None = None) -> None:
    pass


def train(config: Config, report: Callable[[Any], bool]) -> None:
    first, second = objectives(config.problem, config.knobs)
    text = f"{config.problem}:{config.knobs!r}:{config.trainer.seed}"
    noise = random.Random(hashlib.sha256(text.encode()).digest()).gauss(0.0, NOISE.get(config.problem, 0.0))
    metrics = {"val/accuracy": 1 - second + noise, "val/accuracy_se": NOISE.get(config.problem, 0.0)}
    cost = Cost(flops=10 ** (9 + DECADES[config.problem] * first))
    report(StepMetrics(step=1, total_steps=1, metrics=metrics, cost=cost, final=True))
