"""What is wrong with a run, by the metrics that it recorded, and what to change, in the order in which to try it.

`dapo.health` judges one update while a run goes on; here the whole run is looked at, so that trends count too. Each
finding has its evidence in figures, and advice that names the keys.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dapo.config import Config
from dapo.expected_rounds import mixed_share_between
from dapo.health import LIMITS

History = Sequence[Mapping[str, float]]
"""Metrics by name, of each update and evaluation, in order."""
ENOUGH = 3
"""Updates before a trend is spoken of."""
SCARCE = 0.3
"""Share of groups kept below which most of what is generated is thrown away."""
FALLEN = 0.2
"""Of the entropy at the start: with less than this left, exploration is over."""
LOW_ENTROPY = 0.1
"""Nats a token; above it a fall is no collapse."""
LENIENT = 0.1
"""Share of responses that the reward calls right and another grader wrong, net."""
IDLE = 0.3
"""Share of a step in which devices idle, or by which steps differ in it."""
WARMING = 0.5
"""Share of the planned updates in which the learning rate still rises."""
REPEATED = 1.1
"""Rows for each problem."""
BROKEN = 0.5
"""Of the share of right responses at the start: with less than this left at last, training does harm."""
GROUP_SIZES = (2, 4)
"""Multiples of `rollout.n` for which expected rounds are told."""


class Finding(NamedTuple):
    """Something that is wrong."""

    name: str
    """In a word or two; the same for all runs that have it."""
    evidence: str
    """The figures that show it."""
    advice: tuple[str, ...]
    """What to change, the first thing to try first."""


def examine(config: Config, history: History) -> list[Finding]:
    """Return what is wrong with a run, what to see to first at the front; nothing if it is healthy.

    Args:
        config: the run's.
        history: what it reported. Metrics that it lacks lead to no finding.
    """
    return [finding for look in _LOOKS for finding in look(config, history)]


def _all(history: History, name: str) -> list[float]:
    """A metric's finite values, in order."""
    return [step[name] for step in history if name in step and math.isfinite(step[name])]


def _mean(history: History, name: str) -> float:
    """Its mean; NaN, which is neither above nor below anything, where it was never told."""
    found = _all(history, name)
    return statistics.fmean(found) if found else math.nan


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and of the last third."""
    third = max(len(values) // 3, 1)
    return statistics.fmean(values[:third]), statistics.fmean(values[-third:])


def _graders_fail(config: Config, history: History) -> Iterator[Finding]:
    share = _mean(history, "reward/failed_share")
    if share > LIMITS.failed:
        yield Finding(
            "grading fails",
            f"{share:.0%} of the responses could not be graded, and count as wrong",
            ("read the failures in trainer.log", "raise reward.timeout_s, or mend the reward function"),
        )


def _no_updates(config: Config, history: History) -> Iterator[Finding]:
    steps = _all(history, "actor/optimizer_steps")
    skipped = sum(count == 0 for count in steps)
    if skipped and skipped >= len(steps) / 10:
        yield Finding(
            "updates are skipped",
            f"{skipped} of {len(steps)} updates had nothing to train on",
            (
                "raise algorithm.filter_groups.max_num_gen_batches",
                "turn reward.overlong_filtering off, or raise data.max_response_length",
            ),
        )


def _filter_blind(config: Config, history: History) -> Iterator[Finding]:
    """The filter keeps groups whose answers are all right or all wrong."""
    kept, mixed = _mean(history, "filter/yield"), _mixed(config, history)
    metric = config.algorithm.filter_groups.metric
    if config.algorithm.filter_groups.enable and kept - mixed > 0.2 and mixed < 0.8 * kept:
        yield Finding(
            "filter keeps groups without a signal",
            f"{kept:.0%} of the groups pass by {metric}, but in only {mixed:.0%} some answers are right and some wrong",
            ("set algorithm.filter_groups.metric: acc", "or lower the overlong penalty, by which such groups differ"),
        )


def _sampling_starves(config: Config, history: History) -> Iterator[Finding]:
    """Most of what is generated is thrown away; by what the groups are like, and what other group sizes would do."""
    rule = config.algorithm.filter_groups
    kept, mixed, ran_out = _mean(history, "filter/yield"), _mixed(config, history), _mean(history, "filter/exhausted")
    if not rule.enable or not (kept < SCARCE or ran_out > 0) or _broken(history):
        return
    evidence = f"{kept:.0%} of the groups kept"
    if ran_out > 0:
        evidence += f"; {ran_out:.0%} of the updates ran out of rounds"
    wrong, right = _mean(history, "filter/all_wrong"), _mean(history, "filter/all_right")
    if mixed > max(2 * kept, SCARCE):
        evidence += f", though {mixed:.0%} have right and wrong answers"
        advice = _widen(config)
        yield Finding("filter drops groups with a signal", evidence, advice)
        return
    evidence += f"; {wrong:.0%} all wrong, {right:.0%} all right{_other_sizes(config, history)}"
    cap = f"raise algorithm.filter_groups.max_num_gen_batches above {rule.max_num_gen_batches}, or on_exhausted"
    larger = _group_helps(config, history)
    if larger:
        advice = (f"raise rollout.n to {larger}", "lower data.train_batch_size in turn", cap)
        yield Finding("group too small", evidence, advice)
    elif wrong >= right:
        hard = ("use easier problems, or a warm start (platform warmstart)", "set data.selection.strategy: thompson")
        yield Finding("data too hard", evidence, (*hard, cap))
    else:
        yield Finding("data too easy", evidence, ("use harder problems", "end the run earlier", cap))


def _mixed(config: Config, history: History) -> float:
    """Share of groups that have right and wrong answers; NaN where it isn't told."""
    sizes = [m for m in range(2, config.rollout.n + 1) if _all(history, f"filter/mixed_at_{m}")]
    return _mean(history, f"filter/mixed_at_{max(sizes)}") if sizes else math.nan


def _mixed_of(history: History, responses: int) -> float:
    """The share that groups of so many responses would have, by the pass rates that were seen; NaN if none were."""
    rate, of_two = _mean(history, "reward/acc_mean"), _mean(history, "filter/mixed_at_2")
    return math.nan if math.isnan(rate + of_two) else mixed_share_between(rate, of_two, responses)


def _rounds(config: Config, history: History, responses: int) -> float:
    kept = config.gen_batch_size * _mixed_of(history, responses)
    return config.data.train_batch_size / kept if kept > 0 else math.nan


def _other_sizes(config: Config, history: History) -> str:
    """Expected rounds at this and at larger group sizes, in words; empty where the filter asks for something else."""
    n = config.rollout.n
    rounds = [(m, _rounds(config, history, m)) for m in (n, *(factor * n for factor in GROUP_SIZES))]
    told = ", ".join(f"{count:.1f} with n = {m}" for m, count in rounds if math.isfinite(count))
    return f"; rounds for a full batch by the pass rates: {told}" if told and _by_answers(config) else ""


def _by_answers(config: Config) -> bool:
    """Whether the filter keeps groups for having right and wrong answers."""
    rule = config.algorithm.filter_groups
    return rule.metric in ("acc", "score") and rule.statistic == "spread"


def _group_helps(config: Config, history: History) -> int | None:
    """The least larger group size with which a batch fills in half the rounds, and within the cap."""
    n, cap = config.rollout.n, config.algorithm.filter_groups.max_num_gen_batches
    now = _rounds(config, history, n)
    for size in (factor * n for factor in GROUP_SIZES):
        then = _rounds(config, history, size)
        if then <= 0.6 * now and (cap <= 0 or then <= cap):
            return size
    return None


def _widen(config: Config) -> tuple[str, ...]:
    """What lets groups pass that have something to teach."""
    rule = config.algorithm.filter_groups
    if rule.statistic == "mean":
        bounds = f"above {rule.threshold:g} and below {rule.upper:g}"
        return (
            f"widen algorithm.filter_groups.threshold and upper: only means {bounds} pass",
            "or set algorithm.filter_groups.statistic: spread",
        )
    lower = f"lower algorithm.filter_groups.tolerance from {rule.tolerance:g}"
    return (lower, f"see what the metric {rule.metric} says of such groups; acc keeps each of them")


def _entropy_collapses(config: Config, history: History) -> Iterator[Finding]:
    found = _all(history, "actor/entropy")
    if len(found) < ENOUGH:
        return
    first, last = _ends(found)
    if last < LIMITS.entropy or (last < FALLEN * first and last < LOW_ENTROPY):
        yield Finding(
            "entropy collapses",
            f"{first:.3f} nats a token at first, {last:.3f} at last",
            (
                f"raise actor.clip_ratio_high from {config.actor.clip_ratio_high:g} (DAPO: 0.28)",
                f"lower actor.optim.lr from {config.actor.optim.lr:g}",
                "set actor.entropy_coeff above 0",
            ),
        )


def _policy_runs_away(config: Config, history: History) -> Iterator[Finding]:
    distance, clipped = _mean(history, "actor/ppo_kl"), _mean(history, "actor/pg_clipfrac")
    if distance > LIMITS.ppo_kl or clipped > LIMITS.clipped:
        yield Finding(
            "updates too large",
            f"{distance:.3f} nats a token from the policy that sampled, {clipped:.0%} of the tokens clipped",
            (f"lower actor.optim.lr from {config.actor.optim.lr:g}", "raise actor.ppo_mini_batch_size"),
        )


def _broken(history: History) -> tuple[float, float] | None:
    """Shares of right responses at first and at last, if training did harm: then the data isn't what is too hard."""
    right = _all(history, "reward/acc_mean")
    if len(right) < ENOUGH:
        return None
    first, last = _ends(right)
    return (first, last) if last < BROKEN * first and first - last > LENIENT else None


def _accuracy_falls(config: Config, history: History) -> Iterator[Finding]:
    if (found := _broken(history)) is not None:
        yield Finding(
            "accuracy falls",
            f"{found[0]:.0%} of the responses are right at first, {found[1]:.0%} at last",
            (
                f"lower actor.optim.lr from {config.actor.optim.lr:g}",
                "raise data.train_batch_size or rollout.n",
                "look at what the reward pays for: platform ui shows the answers",
            ),
        )


def _engine_differs(config: Config, history: History) -> Iterator[Finding]:
    mismatch = _mean(history, "rollout/logprob_diff_mean")
    if mismatch > LIMITS.mismatch:
        yield Finding(
            "generation and trainer disagree",
            f"{mismatch:.3f} nats a token between their log-probabilities",
            ("set algorithm.rollout_correction.rollout_is: token", "set model.dtype: float32"),
        )


def _grader_lenient(config: Config, history: History) -> Iterator[Finding]:
    """The reward rises on answers that a stricter grader calls wrong."""
    right = _all(history, "reward/acc_mean")
    for other in config.reward.also:
        strict = _all(history, f"reward/also/{other}/acc_mean")
        if not strict or len(right) != len(strict):
            continue
        gap_first, gap = _ends([ours - theirs for ours, theirs in zip(right, strict, strict=True)])
        if gap > LENIENT:
            yield Finding(
                "reward is hacked",
                f"{config.reward.grader} calls {gap:.0%} more of the responses right than {other}, at last"
                f" ({gap_first:.0%} at first)",
                (f"set reward.grader: {other}", "read such answers: platform ui shows them, right and wrong"),
            )


def _truncated(config: Config, history: History) -> Iterator[Finding]:
    share, longest = _mean(history, "response_length/clip_ratio"), config.data.max_response_length
    if share > LIMITS.truncated:
        soft = () if config.reward.overlong_buffer.enable else ("set reward.overlong_buffer.enable: true",)
        yield Finding(
            "responses are cut",
            f"{share:.0%} of the responses reach data.max_response_length: {longest}",
            (f"raise data.max_response_length above {longest}", *soft, "set reward.overlong_filtering: true"),
        )


def _devices_idle(config: Config, history: History) -> Iterator[Finding]:
    shares = _all(history, "perf/idle_share")[1:]  # the first step loads and compiles
    if len(shares) < ENOUGH:
        return
    mean, low, high = statistics.fmean(shares), min(shares), max(shares)
    if mean > IDLE or high - low > IDLE:
        yield Finding(
            "devices idle",
            f"{mean:.0%} of the time, {low:.0%} to {high:.0%} of a step",
            tuple(_fill_devices(config, history)),
        )


def _fill_devices(config: Config, history: History) -> Iterator[str]:
    actor, rollout = config.actor, config.rollout
    step, graded = _mean(history, "timing_s/step"), _mean(history, "timing_s/reward")
    if graded > IDLE * step:
        yield f"grading takes {graded / step:.0%} of a step: raise reward.num_workers, or take a faster grader"
    if not config.model.use_remove_padding:
        yield "set model.use_remove_padding: true"
    if not actor.use_dynamic_bsz:
        yield "set actor.use_dynamic_bsz: true"
    if rollout.tensor_model_parallel_size > 1 or actor.ulysses_sequence_parallel_size > 1:
        yield "lower rollout.tensor_model_parallel_size and actor.ulysses_sequence_parallel_size, if memory allows"
    yield f"raise actor.ppo_max_token_len_per_gpu from {actor.ppo_max_token_len_per_gpu}, and data.train_batch_size"
    yield "shorten the longest responses: the last ones of a batch leave devices waiting"


def _data_repeats(config: Config, history: History) -> Iterator[Finding]:
    copies = _mean(history, "data/rows_per_problem")
    if copies > REPEATED:
        yield Finding(
            "data repeats itself",
            f"data.train has {copies:.1f} rows for each problem, and is read as if it had one",
            ("write each problem once: other trainers, verl too, train on every row", "plan by problems, not by rows"),
        )


def _rate_off(config: Config, history: History) -> Iterator[Finding]:
    """The learning rate's horizon isn't the run's."""
    planned, done = _all(history, "actor/updates_planned"), _all(history, "actor/updates")
    warm = config.actor.optim.lr_warmup_steps
    if planned and warm >= WARMING * planned[-1] > 0:
        yield Finding(
            "learning rate's horizon",
            f"it rises over {warm} updates, of {planned[-1]:.0f} that are planned ({done[-1] if done else 0:.0f} done)",
            (f"lower actor.optim.lr_warmup_steps from {warm}", "or plan more updates"),
        )


def _accuracy_lost_in_noise(config: Config, history: History) -> Iterator[Finding]:
    """The run's evaluations differ by less than their errors."""
    found = [(step["val/accuracy"], step["val/accuracy_se"]) for step in history if "val/accuracy_se" in step]
    if len(found) < 2:
        return
    (first, before), (last, after) = found[0], found[-1]
    error = math.hypot(before, after)
    if abs(last - first) < 2 * error and error > 0.02:
        yield Finding(
            "evaluation is noise",
            f"accuracy went from {first:.1%} to {last:.1%}, with a standard error of the difference of {error:.1%}",
            ("raise rollout.val_kwargs.n, or data.val_size", "compare by platform confirm, over several seeds"),
        )


_LOOKS: Sequence[Callable[[Config, History], Iterator[Finding]]] = (
    _graders_fail,
    _grader_lenient,
    _filter_blind,
    _sampling_starves,
    _truncated,
    _no_updates,
    _data_repeats,
    _rate_off,
    _policy_runs_away,
    _accuracy_falls,
    _entropy_collapses,
    _engine_differs,
    _devices_idle,
    _accuracy_lost_in_noise,
)
"""In the order in which what they find is worth mending: what spoils the reward spoils all that follows."""
