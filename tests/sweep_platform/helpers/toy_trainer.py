"""A trainer that has everything but a model: it counts to its last step, and can go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrainerSection(Section):
    total_training_steps: int = Field(default=5, ge=1)
    default_local_dir: str | None = None
    num_threads: int | None = None
    seed: int = 0


class Config(Section):
    trainer: TrainerSection = TrainerSection()
    skill: float = Field(default=0.5, ge=0, le=1)
    nan_at: int | None = None
    crash_at: int | None = None
    interrupt_at: int | None = None
    missing_file: str | None = None
    test_freq: int = 0


class ToyFault(NamedTuple):
    key: str
    got: str
    need: str
    do: str


@dataclass(frozen=True)
class Sample:
    problem_id: str
    correct: bool
    data_source: str = "toy"
    sample_index: int = 0
    prompt: str = "2+2="
    response: str = "4\ud800"
    answer: str = "4"
    ground_truth: str = "4"
    response_length: int = 1


@dataclass(frozen=True)
class Cost:
    flops: float
    tokens: int
    device_seconds: float
    evaluation_flops: float = 1.0
    evaluation_tokens: int = 1
    evaluation_device_seconds: float = 0.1


@dataclass(frozen=True)
class Step:
    step: int
    total_steps: int
    metrics: dict[str, float]
    cost: Cost
    evaluation: tuple[Sample, ...] = field(default=())
    final: bool = False


trained: list[int] = []
"""Steps that were really done, by all calls in this process."""


def preflight(config, devices=1):
    if config.missing_file:
        return [ToyFault("missing_file", config.missing_file, "a file", "make it")]
    return []


def free_to_change(path):
    return path.startswith("trainer.") and path != "trainer.seed"


def prepare(config, progress=None):
    if progress:
        progress("warm start", 1, 1)


def train(config, report):
    total = config.trainer.total_training_steps
    checkpoint = Path(config.trainer.default_local_dir) / "step.txt"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(done + 1, total + 1):
        if step == config.crash_at:
            raise ValueError("the toy broke")
        if step == config.interrupt_at and not checkpoint.with_name("interrupted").exists():
            checkpoint.with_name("interrupted").touch()
            raise KeyboardInterrupt
        trained.append(step)
        loss = float("nan") if step == config.nan_at else 1.0 / step
        metrics = {"actor/pg_loss": loss, "val/acc/mean@4": config.skill * step / total}
        if step == total:
            metrics |= {"val/accuracy": config.skill, "val/accuracy_se": 0.02}
        tested = step == total or (config.test_freq and step % config.test_freq == 0)
        evaluation = tuple(Sample(f"p{i}", i % 2 == 0, response=f"\ud800\n{step}") for i in range(4)) if tested else ()
        report(Step(step, total, metrics, Cost(1e9 * step, 10 * step, 0.5 * step), evaluation, step == total))
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text(str(step))
