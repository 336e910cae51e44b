"""One verdict per update, in words: is this run worth its next step, and if not, why?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

Metrics = Mapping[str, float]


class Health(IntEnum):
    """What `health/code` means: the worst finding of a step; the higher, the worse."""

    HEALTHY = 0
    GRADERS_DISAGREE = 1
    TRUNCATION_HIGH = 2
    TOO_EASY = 3
    TOO_HARD = 4
    UPDATE_TOO_LARGE = 5
    ROLLOUT_MISMATCH = 6
    ENTROPY_COLLAPSE = 7
    FILTER_STARVES = 8
    GRADER_FAILS = 9
    NO_UPDATE = 10

    @property
    def words(self) -> str:
        """The name as a phrase."""
        return self.name.lower().replace("_", " ")


class Limits(NamedTuple):
    """Where a metric stops being healthy."""

    agreement: float = 0.9
    """Least share of responses on which another grader says the same."""
    truncated: float = 0.25
    """Share of responses cut at the length limit: rewards then punish length, not errors."""
    one_sided: float = 0.8
    """Share of groups all right, or all wrong: the data has little left to teach, or is out of reach."""
    ppo_kl: float = 0.1
    """Distance from the policy that sampled, in nats a token."""
    clipped: float = 0.3
    """Share of tokens whose ratio was clipped."""
    mismatch: float = 0.05
    """Mean difference of a token's log-probability between generation and trainer."""
    entropy: float = 0.01
    """Nats a token; below, all responses to a prompt are one."""
    kept: float = 0.1
    """Least share of groups that pass the filter: below, ten are generated for one that is trained on."""
    failed: float = 0.05
    """Share of responses whose grading failed."""


LIMITS = Limits()


class Verdict(NamedTuple):
    """The findings of one step, the worst first; none is healthy."""

    findings: tuple[tuple[Health, str], ...] = ()
    """Each with the figure that led to it."""

    @property
    def code(self) -> Health:
        """The worst finding."""
        return self.findings[0][0] if self.findings else Health.HEALTHY

    @property
    def words(self) -> str:
        """The verdict for a log line."""
        told = (f"{finding.words} ({figure})" for finding, figure in self.findings)
        return "; ".join(told) or Health.HEALTHY.words

    def metrics(self) -> dict[str, float]:
        """The verdict as scalars by metric name, for stores that keep nothing else."""
        return {"health/code": float(self.code), "health/findings": float(len(self.findings))}


def diagnose(metrics: Metrics, limits: Limits = LIMITS) -> Verdict:
    """Judge one update by its metrics. A metric that is missing, or is NaN, leads to no finding.

    Args:
        metrics: of one training step, by name.
        limits: where a metric stops being healthy.
    """
    found = {finding: figure for finding, look in _LOOKS.items() if (figure := look(metrics, limits))}
    return Verdict(tuple((finding, found[finding]) for finding in sorted(found, reverse=True)))


def _get(metrics: Metrics, name: str) -> float:
    return metrics.get(name, math.nan)  # NaN is neither above nor below anything


def _no_update(metrics: Metrics, limits: Limits) -> str:
    return "no optimiser step" if _get(metrics, "actor/optimizer_steps") == 0 else ""


def _grader_fails(metrics: Metrics, limits: Limits) -> str:
    share = _get(metrics, "reward/failed_share")
    return f"{share:.0%} of responses" if share > limits.failed else ""


def _filter_starves(metrics: Metrics, limits: Limits) -> str:
    kept = _get(metrics, "filter/yield")
    if _get(metrics, "filter/exhausted") > 0:
        return f"{_get(metrics, 'filter/groups'):.0f} groups after {_get(metrics, 'filter/rounds'):.0f} rounds"
    return f"{kept:.0%} of groups kept" if kept < limits.kept else ""


def _entropy_collapse(metrics: Metrics, limits: Limits) -> str:
    entropy = _get(metrics, "actor/entropy")
    return f"{entropy:.4f} nats a token" if entropy < limits.entropy else ""


def _rollout_mismatch(metrics: Metrics, limits: Limits) -> str:
    mismatch = _get(metrics, "rollout/logprob_diff_mean")
    return f"{mismatch:.3f} nats a token" if mismatch > limits.mismatch else ""


def _update_too_large(metrics: Metrics, limits: Limits) -> str:
    distance, clipped = _get(metrics, "actor/ppo_kl"), _get(metrics, "actor/pg_clipfrac")
    if distance > limits.ppo_kl:
        return f"KL {distance:.3f}"
    return f"{clipped:.0%} of tokens clipped" if clipped > limits.clipped else ""


def _too_hard(metrics: Metrics, limits: Limits) -> str:
    share = _get(metrics, "filter/all_wrong")
    return f"{share:.0%} of groups all wrong" if share > limits.one_sided else ""


def _too_easy(metrics: Metrics, limits: Limits) -> str:
    share = _get(metrics, "filter/all_right")
    return f"{share:.0%} of groups all right" if share > limits.one_sided else ""


def _truncation_high(metrics: Metrics, limits: Limits) -> str:
    share = _get(metrics, "response_length/clip_ratio")
    return f"{share:.0%} of responses" if share > limits.truncated else ""


def _graders_disagree(metrics: Metrics, limits: Limits) -> str:
    shares = {
        name.split("/")[2]: share
        for name, share in metrics.items()
        if name.startswith("reward/also/") and name.endswith("/agreement") and share < limits.agreement
    }
    return ", ".join(f"{grader} agrees on {share:.0%}" for grader, share in sorted(shares.items()))


_LOOKS: Mapping[Health, Callable[[Metrics, Limits], str]] = {
    Health.NO_UPDATE: _no_update,
    Health.GRADER_FAILS: _grader_fails,
    Health.FILTER_STARVES: _filter_starves,
    Health.ENTROPY_COLLAPSE: _entropy_collapse,
    Health.ROLLOUT_MISMATCH: _rollout_mismatch,
    Health.UPDATE_TOO_LARGE: _update_too_large,
    Health.TOO_HARD: _too_hard,
    Health.TOO_EASY: _too_easy,
    Health.TRUNCATION_HIGH: _truncation_high,
    Health.GRADERS_DISAGREE: _graders_disagree,
}
