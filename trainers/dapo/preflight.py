"""Checks of a config that need files, a model or the devices at hand; all faults at once, and no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from dapo.arithmetic import WORDS
from dapo.batch import Fault
from dapo.config import Config
from dapo.config_multi_turn import MultiTurnConfig
from dapo.config_section import Section
from dapo.data import GENERATED, Dataset, load_dataset
from dapo.errors import DapoError, DataError, ModelError
from dapo.filter_rule import KNOWN_METRICS, filter_rule
from dapo.framing import Framing
from dapo.metric_names import unreported
from dapo.model_folder import find_model
from dapo.overlap import overlap_fault
from dapo.preflight_lora import lora_faults
from dapo.preflight_losses import loss_faults
from dapo.preflight_model import model_faults
from dapo.preflight_multi_turn import framing_faults, multi_turn_faults
from dapo.reward import import_reward_function
from dapo.tokenizer import Tokenizer, byte_tokenizer
from dapo.tool_calls import signatures_of

Stamp = tuple[int, int] | None
"""Of a file: when it changed, and its size; None where there is none."""
Stamped = tuple[str, Stamp]
"""A path and its stamp."""
LARGE_FILE = 64 * 2**20
"""Bytes; data files beyond this are read when the run starts, not twice."""


def preflight(config: Config, devices: int = 1) -> list[Fault]:
    """Return everything about `config` that would end the run, or waste it, before a token is generated.

    Args:
        config: valid by its types.
        devices: devices at hand.
    """
    found, heads = model_faults(config)
    return [
        *found,
        *_sets(config),
        *_data(config),
        *_batches(config),
        *_fills(config),
        *_lengths(config),
        *_filter(config),
        *_unread(config),
        *_reward(config),
        *loss_faults(config, _planned_updates(config)),
        *multi_turn_faults(config),
        *lora_faults(config),
        *_parallel(config, devices, heads),
        *_run(config),
    ]


def unreported_metrics(config: Config, metrics: Sequence[str]) -> list[Fault]:
    """Return a fault, under the metric's name, for each metric that no run of a valid `config` reports."""
    source = config.data.val
    try:
        val = None if _is_large(source) else _dataset(source, _stamp(source), config.reward.grader)
    except DataError:  # told as a fault of data.val
        val = None
    return list(unreported(config, metrics, val))


def _sets(config: Config) -> Iterator[Fault]:
    """The names of the two data sets, whatever is in them."""
    train, val = config.data.train, config.data.val
    if train in GENERATED and GENERATED[train][0] != "train":
        need = "a set to train on: this one is for evaluation, which would then measure what was learnt by heart"
        yield Fault("data.train", repr(train), need, "set it to arithmetic, or name a file")
    if train == val:
        need = "another set than data.train: accuracy on what was trained on says nothing"
        yield Fault("data.val", repr(val), need, "name one")


def _data(config: Config) -> Iterator[Fault]:
    """Read both data sets, hold them against each other, and measure their prompts with the model's tokenizer."""
    yield from framing_faults(config, _tokenizer(*_model_stamp(config)))
    found: dict[str, Dataset] = {}
    for key, source in (("data.train", config.data.train), ("data.val", config.data.val)):
        # Prompts of the generated sets are short, but for an offer of tools.
        short = source in GENERATED and not config.rollout.multi_turn.enable
        if short or _is_large(source):
            continue
        try:
            found[key] = _dataset(source, _stamp(source), config.reward.grader)
        except DataError as error:
            for fault in error.faults:
                got = f"{source!r}, {fault.got}" if fault.key == source else f"{fault.key}: {fault.got}"
                yield Fault(key, got, fault.need, fault.do)
        else:
            yield from _prompt_faults(config, found[key], source, key)
    if len(found) == 2 and config.data.train != config.data.val:
        shared = overlap_fault(found["data.train"], found["data.val"], config)
        yield from () if shared is None else (shared,)


def _planned_updates(config: Config) -> int | None:
    """Updates of the run; None where its training set is large, or can't be read."""
    source = config.data.train
    if config.trainer.total_epochs is None or source in GENERATED:
        return config.planned_updates(GENERATED.get(source, ("train", 0))[1])
    if _is_large(source):
        return None
    try:
        prompts = len(_dataset(source, _stamp(source), config.reward.grader).problems)
    except DataError:
        return None
    return config.planned_updates(prompts)


def _is_large(source: str) -> bool:
    return Path(source).is_file() and Path(source).stat().st_size > LARGE_FILE


def _stamp(path: str) -> Stamp:
    """What changes when a file does; None where there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=8)
def _dataset(source: str, stamp: Stamp, grader: str) -> Dataset:
    """Read a data set once: a search checks hundreds of configs on the same files."""
    return load_dataset(source, grader)


@lru_cache(maxsize=8)
def _tokenizer(path: str, stamp: Stamp) -> Tokenizer | None:
    """Return the model's tokenizer; None where its folder has none that can be read."""
    if path == "tiny":
        return byte_tokenizer(WORDS)
    try:
        return Tokenizer.load(Path(path))
    except DapoError:
        return None


@lru_cache(maxsize=8)
def _prompt_lengths(
    data: Stamped, grader: str, model: Stamped, template: str | None, multi_turn: MultiTurnConfig
) -> list[int]:
    """Tokens of each prompt of a data set, at its longest; empty where the model has no tokenizer.

    Raises:
        DataError: a prompt can't be rendered.
    """
    tokenizer = _tokenizer(*model)
    if tokenizer is None:
        return []
    framing = Framing(tokenizer, template, signatures_of(multi_turn))
    problems = _dataset(*data, grader).problems
    prompts = [framing.prompt(problem, tools=multi_turn.enable) for problem in problems]
    return [len(ids) for ids in framing.encode(prompts)]


def _model_stamp(config: Config) -> Stamped:
    folder = find_model(config.model.path, config.model.revision)
    path = config.model.path if folder is None else str(folder)
    return path, _stamp(str(Path(path) / "tokenizer.json"))


def _prompt_faults(config: Config, dataset: Dataset, source: str, key: str) -> Iterator[Fault]:
    """Prompts that can't be rendered, or are too long."""
    limit, data = config.data.max_prompt_length, (source, _stamp(source))
    try:
        lengths = _prompt_lengths(
            data, config.reward.grader, _model_stamp(config), config.data.prompt_template, config.rollout.multi_turn
        )
    except DataError as error:
        yield from error.faults
        return
    except ModelError as error:
        yield Fault("model.path", f"{config.model.path!r} ({error})", f"a chat template for {key}", "choose another")
        return
    longer = sum(length > limit for length in lengths)
    if longer and not config.data.filter_overlong_prompts:
        identity = dataset.problems[lengths.index(max(lengths))].problem_id
        yield Fault(
            "data.max_prompt_length",
            str(limit),
            f"{max(lengths)} tokens for problem {identity} of {key} ({longer} of {len(lengths)} are longer)",
            "raise it, or set data.filter_overlong_prompts",
        )


def _batches(config: Config) -> Iterator[Fault]:
    mini, batch = config.mini_batch_size, config.data.train_batch_size
    if mini > batch or batch % mini:
        yield Fault(
            "actor.ppo_mini_batch_size",
            f"{mini} prompts",
            f"a divisor of data.train_batch_size, which is {batch} prompts",
            "set it in prompts (not responses), or leave it out for one step per update",
        )


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


def _lengths(config: Config) -> Iterator[Fault]:
    longest = config.data.max_prompt_length + config.data.max_response_length
    if config.actor.ppo_max_token_len_per_gpu < longest:
        yield Fault(
            "actor.ppo_max_token_len_per_gpu",
            str(config.actor.ppo_max_token_len_per_gpu),
            f"at least {longest} tokens, the longest sequence (data.max_prompt_length + max_response_length)",
            "raise it, or lower the length limits",
        )
    buffer = config.reward.overlong_buffer
    if buffer.enable and buffer.len >= config.data.max_response_length:
        yield Fault(
            "reward.overlong_buffer.len",
            str(buffer.len),
            f"less than data.max_response_length, which is {config.data.max_response_length}",
            "shorten the buffer: every response would be punished",
        )


def _filter(config: Config) -> Iterator[Fault]:
    filtering, n = config.algorithm.filter_groups, config.rollout.n
    if n < 2:
        need = "at least 2: one response has nothing to be compared with, and no advantage"
        yield Fault("rollout.n", str(n), need, "raise it")
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
    yield from _adaptive(config)
    if filtering.surplus == "carry" and (config.rollout.top_p < 1.0 or config.rollout.top_k > 0):
        got = f"carry, with top_p {config.rollout.top_p} and top_k {config.rollout.top_k}"
        need = "rollout.top_p: 1 and top_k: -1, so that the log-probs of generation can be the update's old ones"
        yield Fault(f"{key}.surplus", got, need, "set these, or surplus: drop")


def _pilot(config: Config) -> Iterator[Fault]:
    pilot, n = config.rollout.pilot_n, config.rollout.n
    if pilot is not None and not 2 <= pilot < n:
        need = f"from 2, so that responses can differ, to less than rollout.n, which is {n}"
        do = f"set it to {max(n // 2, 2)}, say, or leave it out" if n > 2 else "raise rollout.n, or leave pilot_n out"
        yield Fault("rollout.pilot_n", str(pilot), need, do)
    if pilot is not None and not config.algorithm.filter_groups.enable:
        need = "algorithm.filter_groups.enable: true, whose rule the pilots must pass"
        yield Fault("rollout.pilot_n", str(pilot), need, "enable it, or leave pilot_n out")


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


def _reward(config: Config) -> Iterator[Fault]:
    path = config.reward.custom_reward_function
    if path is not None:
        try:
            import_reward_function(path)
        except DapoError as error:
            need = "package.module:function, importable here"
            yield Fault(
                "reward.custom_reward_function", f"{path!r}: {error}", need, "name one so, its folder on PYTHONPATH"
            )
    rewards = (config.reward.correct_reward, config.reward.wrong_reward)
    if not all(map(math.isfinite, rewards)) or rewards[0] <= rewards[1]:
        need = f"more than reward.wrong_reward, which is {rewards[1]}, and both finite"
        yield Fault("reward.correct_reward", str(rewards[0]), need, "raise it")


def _parallel(config: Config, devices: int, heads: tuple[int, int] | None) -> Iterator[Fault]:
    """Tensor and sequence parallelism: sizes against devices and heads. This version runs on one device."""
    sizes = {
        "rollout.tensor_model_parallel_size": config.rollout.tensor_model_parallel_size,
        "actor.ulysses_sequence_parallel_size": config.actor.ulysses_sequence_parallel_size,
    }
    for key, size in sizes.items():
        if size == 1:
            continue
        if size > devices:
            at_hand = "the 1 device" if devices == 1 else f"the {devices} devices"
            yield Fault(key, str(size), f"at most {at_hand} at hand", "lower it, or add devices")
        elif devices % size:
            yield Fault(key, str(size), f"a divisor of the {devices} devices at hand", "lower it")
        elif heads is not None and any(count % size for count in heads):
            need = f"a divisor of the model's {heads[0]} attention heads and {heads[1]} key-value heads"
            yield Fault(key, str(size), need, "lower it")
        else:
            yield Fault(key, str(size), "1: this trainer runs on one device", "set it to 1")


def _run(config: Config) -> Iterator[Fault]:
    folder = config.trainer.default_local_dir
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        yield Fault("trainer.default_local_dir", repr(folder), "a folder", "name another place")
    device = config.trainer.device
    if device not in ("auto", "cpu", "cuda") and not device.startswith("cuda:"):
        yield Fault("trainer.device", repr(device), "auto, cpu or cuda", "set it to auto")
    if not math.isfinite(config.actor.entropy_coeff):
        yield Fault(
            "actor.entropy_coeff", str(config.actor.entropy_coeff), "a finite number", "set it to 0 for no bonus"
        )
