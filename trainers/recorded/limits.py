"""What the table can tell: the knobs that its runs vary, and their ranges; all else must be as it was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dapo.config import Config
from dapo.trainer import Fault

STEPS = 40
"""Updates of each recorded run."""
BASE = Config.model_validate(
    {
        "algorithm": {"filter_groups": {"on_exhausted": "train_partial"}},
        "actor": {"ppo_mini_batch_size": 4},
        "reward": {"overlong_buffer": {"enable": True, "len": 24, "penalty_factor": 0.2}},
    }
)
"""The config of the recorded runs, but for what they vary: that of `sweeps/aime.yaml`."""
_FILTER = "algorithm.filter_groups"
METRIC, STATISTIC, THRESHOLD = f"{_FILTER}.metric", f"{_FILTER}.statistic", f"{_FILTER}.threshold"
ROUNDS, TRAIN_BATCH, GEN_BATCH = f"{_FILTER}.max_num_gen_batches", "data.train_batch_size", "data.gen_batch_size"
CLIP_LOW, CLIP_HIGH = "actor.clip_ratio_low", "actor.clip_ratio_high"
NAMED: Mapping[str, tuple[str, ...]] = {
    METRIC: ("acc", "score", "seq_reward", "seq_final_reward"),
    STATISTIC: ("spread", "mean"),
}
"""Knobs that have names, and the names that were recorded."""
RANGES: Mapping[str, tuple[float, float]] = {
    THRESHOLD: (0.0, 0.5),
    ROUNDS: (1, 20),
    TRAIN_BATCH: (8, 32),
    GEN_BATCH: (8, 32),
    CLIP_LOW: (0.1, 0.3),
    CLIP_HIGH: (0.2, 0.4),
}
"""Knobs that are numbers, and the range that was recorded."""
VALIDATION = ("arithmetic-aime", "arithmetic-heldout")
"""Problems that a run may be evaluated on: those of the recorded runs, and others of the same making, which confirm."""
METRICS = (
    *(f"cost/{name}" for name in ("flops", "tokens", "device_seconds")),
    *("val/accuracy", "val/accuracy_se", "val/response_length", "filter/yield", "perf/peak_memory_gb"),
)
"""What was recorded of each run."""
_FREE = ("trainer.",)
"""Sections that don't change what a run learns, or are checked one by one."""


class NotRecorded(Exception):
    """A config that the table can't tell of.

    Args:
        faults: why, one by one.
    """

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def knobs(config: Config) -> dict[str, Any]:
    """The varied knobs of a config, by path; the threshold only where it is read."""
    values = config.flat()
    values[GEN_BATCH] = config.gen_batch_size
    read = [path for path in (*NAMED, *RANGES) if path != THRESHOLD or values[STATISTIC] == "mean"]
    return {path: values[path] for path in read}


def unrecorded(config: Config) -> Iterator[Fault]:
    """Yield whatever of a config lies outside the table."""
    varied = knobs(config)
    for path, value in varied.items():
        if path in NAMED and value not in NAMED[path]:
            yield _fault(path, repr(value), f"one of {', '.join(NAMED[path])}")
        elif path in RANGES and not RANGES[path][0] <= value <= RANGES[path][1]:
            yield _fault(path, str(value), f"from {RANGES[path][0]:g} to {RANGES[path][1]:g}")
    recorded = BASE.flat()
    for path, value in config.flat().items():
        free = path.startswith(_FREE) or path in NAMED or path in RANGES
        if path == "data.val":
            if value not in VALIDATION:
                yield _fault(path, repr(value), f"one of {', '.join(VALIDATION)}")
        elif not free and value != recorded[path]:
            yield _fault(path, repr(value), repr(recorded[path]))
    yield from _relations(varied)
    yield from _length(config)


def _fault(path: str, got: str, need: str) -> Fault:
    return Fault(path, got, f"{need}, which is what was recorded", "set it so, or train with trainer: dapo")


def _relations(varied: Mapping[str, Any]) -> Iterator[Fault]:
    """What the recorded configs have in common: rounds that can fill a batch, and clip ranges in order."""
    if 0 < varied[ROUNDS] * varied[GEN_BATCH] < varied[TRAIN_BATCH]:
        got = f"{varied[ROUNDS]} rounds of {varied[GEN_BATCH]} prompts"
        yield _fault(ROUNDS, got, f"rounds that can fill {TRAIN_BATCH} ({varied[TRAIN_BATCH]})")
    if varied[CLIP_LOW] > varied[CLIP_HIGH]:
        yield _fault(CLIP_LOW, str(varied[CLIP_LOW]), f"at most {CLIP_HIGH} ({varied[CLIP_HIGH]})")


def _length(config: Config) -> Iterator[Fault]:
    trainer = config.trainer
    if trainer.total_epochs is not None:
        yield _fault("trainer.total_epochs", str(trainer.total_epochs), "null, and trainer.total_training_steps")
    elif (trainer.total_training_steps or 0) > STEPS:
        yield _fault("trainer.total_training_steps", str(trainer.total_training_steps), f"at most {STEPS} updates")
