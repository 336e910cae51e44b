"""Checks of what is drawn and what the filter keeps of it: bounds out of reach, and knobs that nothing reads."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dapo.batch import Fault
from dapo.config import Config
from dapo.config_section import Section
from dapo.filter_rule import KNOWN_METRICS, filter_rule


def filter_faults(config: Config) -> Iterator[Fault]:
    """Return everything about dynamic sampling that would end the run, or keep it from ever filling a batch."""
    yield from _fills(config)
    yield from _sampling(config)
    yield from _filter(config)
    yield from _unread(config)


def _fills(config: Config) -> Iterator[Fault]:
    """All rounds together hold a batch, where a run that doesn't fill it ends."""
    filtering = config.algorithm.filter_groups
    rounds, batch = filtering.max_num_gen_batches, config.data.train_batch_size
    if filtering.enable and filtering.on_exhausted == "error" and 0 < rounds * config.gen_batch_size < batch:
        yield Fault(
            "algorithm.filter_groups.max_num_gen_batches",
            f"{rounds} rounds of {config.gen_batch_size} prompts",
            f"at least data.train_batch_size ({batch}) prompts, of which some will be filtered",
            "raise it or data.gen_batch_size, or set on_exhausted: train_partial",
        )


def _sampling(config: Config) -> Iterator[Fault]:
    """Responses of a group can differ at all."""
    n, top_k = config.rollout.n, config.rollout.top_k
    if n < 2:
        need = "at least 2: one response has nothing to be compared with, and no advantage"
        yield Fault("rollout.n", str(n), need, "raise it")
    if top_k == 1:
        need = "-1 for all tokens, or at least 2: with one, all responses of a group are the same"
        yield Fault("rollout.top_k", "1", need, "raise it, or leave it out")


def _filter(config: Config) -> Iterator[Fault]:
    filtering = config.algorithm.filter_groups
    yield from _pilot(config)
    if not filtering.enable:
        return
    key = "algorithm.filter_groups"
    if config.reward.grader != "custom" and filtering.metric not in KNOWN_METRICS:
        need = f"one of {', '.join(KNOWN_METRICS)}, which is what the grader {config.reward.grader!r} returns"
        yield Fault(f"{key}.metric", repr(filtering.metric), need, "name one of them, or use a custom grader")
    bounds = {"threshold": filtering.threshold, "upper": filtering.upper}
    for name, value in bounds.items():
        if not math.isfinite(value):
            yield Fault(f"{key}.{name}", str(value), "a finite number", "set it to one, or leave it out")
    if filtering.statistic == "mean" and not filtering.threshold < filtering.upper:
        need = f"less than {key}.upper, which is {filtering.upper}"
        yield Fault(f"{key}.threshold", str(filtering.threshold), need, "lower it, or raise upper")
    yield from _reach(config)
    yield from _adaptive(config)
    if filtering.surplus == "carry" and (config.rollout.top_p < 1.0 or config.rollout.top_k > 0):
        got = f"carry, with top_p {config.rollout.top_p} and top_k {config.rollout.top_k}"
        need = "rollout.top_p: 1 and top_k: -1, so that the log-probs of generation can be the update's old ones"
        yield Fault(f"{key}.surplus", got, need, "set these, or surplus: drop")


def _reach(config: Config) -> Iterator[Fault]:
    """Some group can pass, by the values that the built-in graders give."""
    filtering, reward = config.algorithm.filter_groups, config.reward
    bounds = {"acc": (0.0, 1.0), "score": (reward.wrong_reward, reward.correct_reward)}
    if reward.grader == "custom" or filtering.metric not in bounds:
        return
    low, high = bounds[filtering.metric]
    key = "algorithm.filter_groups"
    if filtering.statistic == "spread" and filtering.tolerance >= high - low:
        need = f"less than {high - low:g}, the most by which {filtering.metric} can differ in a group"
        yield Fault(f"{key}.tolerance", str(filtering.tolerance), need, "lower it: no group would be kept")
    if filtering.statistic == "mean" and filtering.threshold >= high:
        need = f"less than {high:g}, the most that {filtering.metric} can be"
        yield Fault(f"{key}.threshold", str(filtering.threshold), need, "lower it: no group would be kept")
    if filtering.statistic == "mean" and filtering.upper <= low:
        need = f"more than {low:g}, the least that {filtering.metric} can be"
        yield Fault(f"{key}.upper", str(filtering.upper), need, "raise it: no group would be kept")


def _pilot(config: Config) -> Iterator[Fault]:
    pilot, n = config.rollout.pilot_n, config.rollout.n
    if pilot is not None and not 2 <= pilot < n:
        need = f"from 2, so that responses can differ, to less than rollout.n, which is {n}"
        do = f"set it to {max(n // 2, 2)}, say, or leave it out" if n > 2 else "raise rollout.n, or leave pilot_n out"
        yield Fault("rollout.pilot_n", str(pilot), need, do)
    if pilot is not None and not config.algorithm.filter_groups.enable:
        need = "algorithm.filter_groups.enable: true, whose rule the pilots must pass"
        yield Fault("rollout.pilot_n", str(pilot), need, "enable it, or leave pilot_n out")
    elif pilot is not None and config.algorithm.filter_groups.on_exhausted == "relax":
        need = "algorithm.filter_groups.on_exhausted: error or train_partial: groups that end with their pilot are too"
        need += " small to fill up a batch with, as relax would"
        yield Fault("rollout.pilot_n", str(pilot), need, "set one of these, or leave pilot_n out")


def _adaptive(config: Config) -> Iterator[Fault]:
    filtering = config.algorithm.filter_groups
    rule = filter_rule(filtering)
    if rule is None or not filtering.adaptive.enable:
        return
    key = "algorithm.filter_groups.adaptive"
    if filtering.max_num_gen_batches <= 0:
        need = "algorithm.filter_groups.max_num_gen_batches > 0, a fraction of which says when to give way"
        got = f"true, with max_num_gen_batches {filtering.max_num_gen_batches}"
        yield Fault(f"{key}.enable", got, need, "set max_num_gen_batches to 10, say, or adaptive.enable: false")
    if rule.bound <= filtering.adaptive.floor:
        name = "tolerance" if filtering.statistic == "spread" else "threshold"
        need = f"less than algorithm.filter_groups.{name}, which is {rule.bound}: there is nothing to lower"
        yield Fault(f"{key}.floor", str(filtering.adaptive.floor), need, "lower it, or adaptive.enable: false")


def _unread(config: Config) -> Iterator[Fault]:
    """A knob that was set and that nothing reads, as the others stand, is a mistake, not a preference."""
    filtering, selection = config.algorithm.filter_groups, config.data.selection
    key, adaptive = "algorithm.filter_groups", filtering.adaptive
    unread: list[tuple[Section, str, tuple[str, ...], str, str]] = []
    if not filtering.enable:
        off, do = "filter_groups.enable: false", "set that to true"
        knobs = tuple(name for name in type(filtering).model_fields if name not in ("enable", "adaptive"))
        unread.append((filtering, key, knobs, off, do))
        unread.append((adaptive, f"{key}.adaptive", tuple(type(adaptive).model_fields), off, do))
    else:
        bounds = ("threshold", "upper") if filtering.statistic == "spread" else ("tolerance",)
        unread.append((filtering, key, bounds, f"statistic: {filtering.statistic}", "set the other statistic"))
        if filtering.surplus == "drop":
            names: tuple[str, ...] = ("surplus_max_staleness",)
            unread.append((filtering, key, names, "surplus: drop", "set surplus: carry"))
        if not adaptive.enable:
            names = ("start", "factor", "floor")
            unread.append((adaptive, f"{key}.adaptive", names, "enable: false", "enable it"))
    if selection.strategy == "shuffle":
        names = ("target", "exploration", "forgetting")
        unread.append((selection, "data.selection", names, "strategy: shuffle", "set strategy: thompson"))
    for section, prefix, names, state, do in unread:
        for name in names:
            value = getattr(section, name)
            if value != type(section).model_fields[name].default:
                need = f"its default with {state}, which doesn't read it"
                yield Fault(f"{prefix}.{name}", str(value), need, f"leave it out, or {do}")
