"""The metrics that a trial reports, by name: what an objective or a metric bound may refer to."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from sweep_platform.spec.paths import did_you_mean

NAMES = (
    "val/accuracy",
    "val/<data set>/accuracy",
    "cost/flops",
    "cost/tokens",
    "cost/device_seconds",
    "reward/acc_mean",
    "reward/score_mean",
    "filter/yield",
    "filter/rounds",
    "filter/all_right",
    "filter/all_wrong",
    "actor/pg_loss",
    "actor/entropy",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/grad_norm",
    "actor/lr",
    "response_length/mean",
    "response_length/max",
    "response_length/clip_ratio",
    "tokens/kept",
    "tokens/filtered",
    "tokens/surplus",
    "perf/throughput",
    "perf/peak_memory_gb",
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/update_actor",
    "timing_s/testing",
)
NEED = f"a metric that trials report, such as {', '.join(NAMES[:5])}"
_PER_SET = re.compile(r"val/[\w.-]+/(accuracy|pass_at_\d+|maj_at_\d+|best_at_\d+)|val/(pass_at|maj_at|best_at)_\d+")
_BOUND = re.compile(r"\s*([A-Za-z_]\w*(?:/[\w.-]+)+)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def exists(metric: str) -> bool:
    """Whether a trial can report a metric of this name."""
    return (metric in NAMES and "<" not in metric) or _PER_SET.fullmatch(metric) is not None


def advice(metric: str) -> str:
    """What to do about a metric that doesn't exist."""
    return did_you_mean(metric, [name for name in NAMES if "<" not in name], "name one of them")


@dataclass(frozen=True, slots=True)
class MetricBound:
    """A limit on a metric, such as `perf/peak_memory_gb <= 16`."""

    metric: str
    sign: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> MetricBound | None:
        """Read a bound; None if `text` isn't one (it is a config expression, then)."""
        match = _BOUND.fullmatch(text)
        return cls(match[1], match[2], float(match[3])) if match else None

    def holds(self, value: float) -> bool:
        """Whether `value` is within the bound; NaN never is."""
        return _HOLDS[self.sign](value, self.limit)
