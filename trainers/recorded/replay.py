"""Playing a curve as a run: step by step, with the checkpoints and reports of a real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dapo.batch import Cost
from dapo.config import Config
from dapo.trainer import Report, StepMetrics

from recorded.limits import BASE, NotRecorded, knobs, unrecorded

if TYPE_CHECKING:
    from recorded.table import Array

CHECKPOINT = "recorded_step"
"""File in the run's folder: the step that it stands at."""
_AT_EVALUATION = {
    "val/accuracy": "accuracy",
    "val/accuracy_se": "accuracy_se",
    "val/response_length": "val/response_length",
}
"""Metrics of steps that evaluate, and their columns."""


def replay(config: Config, report: Report) -> None:
    """Report each step of the run that `config` describes, from its checkpoint on.

    A resumed run first reports the checkpoint's step again, as `dapo` does.

    Raises:
        NotRecorded: the table can't tell.
    """
    faults = list(unrecorded(config))
    if faults:
        raise NotRecorded(faults)
    trainer, curve = config.trainer, curve_of(config)
    total = config.planned_updates(0)
    checkpoint = None if trainer.default_local_dir is None else Path(trainer.default_local_dir) / CHECKPOINT
    resumes = checkpoint is not None and checkpoint.exists() and trainer.resume_mode == "auto"
    first = 0 if trainer.val_before_train else 1
    for step in range(int(checkpoint.read_text()) if checkpoint and resumes else first, total + 1):
        due = step == total or (step > 0 and trainer.save_freq > 0 and step % trainer.save_freq == 0)
        if due:
            _save(checkpoint, step)
        if not report(_told(config, curve, step, total)):
            _save(checkpoint, step)
            return


def curve_of(config: Config) -> Mapping[str, Array]:
    """The recorded run of that config and seed, or what the surrogate draws; so for problems that weren't recorded."""
    from recorded.surrogate import drawn
    from recorded.table import key_of, recorded_runs

    params, seed, problems = knobs(config), config.trainer.seed, config.data.val
    if problems != BASE.data.val:
        return drawn(params, seed, problems)
    key = key_of(params)
    found = (run.curve for run in recorded_runs() if run.seed == seed and run.key == key)
    return next(found, None) or drawn(params, seed)


def _told(config: Config, curve: Mapping[str, Array], step: int, total: int) -> StepMetrics:
    metrics = {"perf/peak_memory_gb": float(curve["perf/peak_memory_gb"][step])}
    if step:
        metrics["filter/yield"] = float(curve["filter/yield"][step])
    if config.trainer.tests_at(step, total):
        metrics |= {name: float(curve[column][step]) for name, column in _AT_EVALUATION.items()}
    cost = Cost(
        flops=float(curve["flops"][step]),
        tokens=round(float(curve["tokens"][step])),
        device_seconds=float(curve["device_seconds"][step]),
    )
    return StepMetrics(step, total, metrics, cost, final=step == total)


def _save(checkpoint: Path | None, step: int) -> None:
    if checkpoint is not None:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        unfinished = checkpoint.with_suffix(".tmp")
        unfinished.write_text(str(step))
        unfinished.replace(checkpoint)
