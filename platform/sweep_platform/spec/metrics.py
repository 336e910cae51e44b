"""The metrics that a trial reports, by name: what an objective or a metric bound may refer to."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

from sweep_platform.spec.paths import did_you_mean

_PHASES = ("gen", "old_log_prob", "ref", "update_actor", "testing")
"""Of a step, in which a model computes."""
NAMES = (
    "val/accuracy",
    "val/<data set>/accuracy",
    "cost/flops",
    "cost/tokens",
    "cost/device_seconds",
    *("val/grader_failures", "val/problems", "val/response_length"),
    *(f"reward/{name}" for name in ("acc_mean", "score_mean", "seq_reward_mean", "overlong_penalised")),
    *("reward/grader_failures", "reward/failed_share"),
    *(f"filter/{name}" for name in ("yield", "yield_min", "yield_max", "rounds", "expected_rounds")),
    *(f"filter/{name}" for name in ("all_right", "all_wrong", "exhausted")),
    *(f"filter/groups{name}" for name in ("", "_generated", "_filtered", "_relaxed", "_surplus", "_stale")),
    *("filter/groups_carried", "filter/groups_held", "filter/lowered"),
    *(f"actor/{name}" for name in ("pg_loss", "kl_loss", "entropy", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")),
    *(f"actor/{name}" for name in ("grad_norm", "lr", "optimizer_steps", "updates", "updates_planned")),
    "actor/skipped_updates",
    *("data/epoch", "data/epochs_planned", "data/rows_per_problem"),
    *(f"rollout/{name}" for name in ("logprob_diff_mean", "logprob_diff_max", "is_weight_mean", "is_truncated")),
    *(f"response_length/{name}" for name in ("mean", "max", "p50", "p90", "p99", "clip_ratio")),
    *(f"tokens/{name}" for name in ("kept", "filtered", "surplus", "stale", "pilot", "held", "truncated")),
    *(f"tokens_total/{name}" for name in ("trained", "masked", "filtered", "surplus", "stale", "pilot", "held")),
    "tokens_total/evaluation",
    *(f"multi_turn/{name}" for name in ("offered", "turns_mean", "calls_mean", "call_share", "failure_share")),
    "multi_turn/tool_token_share",
    *("health/code", "health/findings"),
    *(f"perf/{name}" for name in ("throughput", "peak_memory_gb", "max_memory_allocated_gb", "max_memory_reserved_gb")),
    *(f"perf/{rate}/{phase}" for rate in ("tokens_per_s", "tokens_per_s_per_device") for phase in _PHASES),
    *(f"perf/mfu/{name}" for name in ("gen", "actor_infer", "ref", "actor", "testing")),
    *("perf/idle_share", "perf/idle_share_min", "perf/idle_share_max"),
    *(f"perf/idle/{phase}" for phase in ("gen", "reward", "ref", "update_actor", "testing")),
    *(f"timing_s/{name}" for name in (*_PHASES, "step", "tools", "reward", "other")),
    *(f"timing_per_token_ms/{phase}" for phase in _PHASES),
)
NEED = f"a metric that trials report, such as {', '.join(NAMES[:5])}"
_FAMILY = re.compile(
    r"val/([\w.-]+/)?((accuracy|(pass|maj)_at_\d+)(_se)?|problems|response_length)|val/sampling/(n|temperature|top_[pk])"
    r"|val-core/[\w.-]+/acc/(mean_at_\d+|maj_at_\d+/mean)|filter/mixed_at_\d+"
    r"|(reward|val)/also/\w+/(agreement|acc_mean|failures)"
)
"""Names with a data set, a number of samples or a grader in them."""
_BOUND = re.compile(r"\s*([A-Za-z_]\w*(?:/[\w.-]+)+)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def exists(metric: str) -> bool:
    """Whether a trial can report a metric of this name."""
    return (metric in NAMES and "<" not in metric) or _FAMILY.fullmatch(metric) is not None


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

    def excess(self, value: float) -> float:
        """How far `value` is beyond the limit; above 0 exactly where the bound doesn't hold."""
        beyond = value - self.limit if self.sign.startswith("<") else self.limit - value
        return beyond if (beyond > 0) is not self.holds(value) else sys.float_info.min

    def holds(self, value: float) -> bool:
        """Whether `value` is within the bound; NaN never is."""
        return _HOLDS[self.sign](value, self.limit)
