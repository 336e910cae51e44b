"""Checks of a config that need files, a model or the devices at hand; all faults at once, and no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from dapo.arithmetic import WORDS
from dapo.batch import Fault
from dapo.config import Config
from dapo.config_multi_turn import MultiTurnConfig
from dapo.data import GENERATED, Dataset, load_dataset
from dapo.errors import DapoError, DataError, ModelError
from dapo.framing import Framing
from dapo.metric_names import unreported
from dapo.model_folder import find_model
from dapo.overlap import UNSEEN, overlap_fault, seen_fault
from dapo.preflight_filter import filter_faults
from dapo.preflight_lora import lora_faults
from dapo.preflight_losses import loss_faults
from dapo.preflight_model import model_faults
from dapo.preflight_multi_turn import framing_faults, multi_turn_faults
from dapo.preflight_rollout import rollout_faults
from dapo.resuming import trains_otherwise
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
        *_lengths(config),
        *filter_faults(config),
        *_reward(config),
        *loss_faults(config, _planned_updates(config)),
        *multi_turn_faults(config),
        *lora_faults(config),
        *rollout_faults(config),
        *parallel_faults(config, devices, heads),
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


def confirming_faults(config: Config, confirming: Config) -> list[Fault]:
    """Return what keeps runs of `confirming` from confirming those of `config` on problems that they haven't seen."""
    return [*_trained_otherwise(config, confirming), *_seen(config, confirming)]


def _trained_otherwise(config: Config, confirming: Config) -> Iterator[Fault]:
    """What differs in more than how a run is measured."""
    searched = config.flat()
    for path, value in confirming.flat().items():
        if trains_otherwise(path) and value != searched[path]:
            need = f"{searched[path]!r}, as in the search: a run that is trained otherwise confirms nothing"
            yield Fault(path, repr(value), need, "leave it out")


def _seen(config: Config, confirming: Config) -> list[Fault]:
    """Problems that the search evaluates on itself."""
    searched, source = config.data.val, confirming.data.val
    if Path(source).absolute() == Path(searched).absolute():
        return [Fault("data.val", f"{source!r}, the search's own", UNSEEN, "name another set, or leave it out")]
    if {source, searched} <= set(GENERATED) or _is_large(source) or _is_large(searched):
        return []
    try:
        one, other = (_dataset(c.data.val, _stamp(c.data.val), c.reward.grader) for c in (config, confirming))
    except DataError:  # told by `preflight`
        return []
    one = replace(one, problems=one.problems[: config.data.val_size])
    other = replace(other, problems=other.problems[: confirming.data.val_size])
    fault = seen_fault(one, other, source)
    return [] if fault is None else [fault]


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


def parallel_faults(config: Config, devices: int, heads: tuple[int, int] | None) -> Iterator[Fault]:
    """Tensor and sequence parallelism: sizes against devices and heads."""
    trainer, fsdp_size = config.trainer, config.actor.fsdp_config.fsdp_size
    if trainer.n_gpus_per_node is not None:
        devices = trainer.n_gpus_per_node * trainer.nnodes
    elif devices % trainer.nnodes:
        need = f"a divisor of the {devices} devices at hand" if devices > 1 else "1, as there is 1 device at hand"
        yield Fault("trainer.nnodes", str(trainer.nnodes), need, "lower it, or say n_gpus_per_node or hardware.devices")
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
        elif heads is not None and (heads[0] % size or (heads[1] % size and size % heads[1])):
            need = f"a divisor of the model's {heads[0]} attention heads that divides its {heads[1]} key-value heads "
            yield Fault(key, str(size), f"{need}or is a multiple of them", "lower it")
    if fsdp_size > 0 and devices > 1 and devices % min(fsdp_size, devices):
        need = f"a divisor of the {devices} devices, or -1 for all"
        yield Fault("actor.fsdp_config.fsdp_size", str(fsdp_size), need, "lower it")


def _run(config: Config) -> Iterator[Fault]:
    folder = config.trainer.default_local_dir
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        yield Fault("trainer.default_local_dir", repr(folder), "a folder", "name another place")
    device = config.trainer.device
    if device not in ("auto", "cpu", "cuda", "npu") and not device.startswith(("cuda:", "npu:")):
        yield Fault("trainer.device", repr(device), "auto, cpu, cuda or npu", "set it to auto")
    if not math.isfinite(config.actor.entropy_coeff):
        yield Fault(
            "actor.entropy_coeff", str(config.actor.entropy_coeff), "a finite number", "set it to 0 for no bonus"
        )
