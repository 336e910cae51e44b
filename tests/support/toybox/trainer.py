"""A trainer without training: its accuracy is a formula of its knobs. Slow, failing or dying on request.

It keeps the contract of a real one: deterministic, a checkpoint, a resume that tells the last step again, a
checkpoint and a return when it is told to stop.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

TRAINED = "trained.log"
"""In a trial's folder: every step that was ever trained, the repeated ones too."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Actor(Section):
    lr: float = 0.1
    batch: int = 4
    shards: int = 1


class Run(Section):
    total_training_steps: int = 4
    save_freq: int = 2
    seconds: float = 0.0
    """Sleep before each step."""
    test_at: list[float] | None = None
    """Ignored: every step is evaluated."""
    together: int = 0
    """Wait at first for one's neighbours in the trials counted off by so many: 0 and 1, 2 and 3, …"""
    default_local_dir: str | None = None
    num_threads: int | None = None
    seed: int = 0
    fault: Literal[
        "",
        "nan",
        "text",
        "garbage",
        "raise",
        "memory",
        "exit",
        "leave",
        "silent",
        "short",
        "missing",
        "die",
        "die_once",
    ] = ""
    """What goes wrong, half-way."""


class Config(Section):
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    actor: Actor = Actor()
    trainer: Run = Run()


@dataclass(frozen=True)
class Cost:
    flops: float = 0.0
    tokens: int = 0
    device_seconds: float = 0.0
    evaluation_flops: float = 0.0
    evaluation_tokens: int = 0
    evaluation_device_seconds: float = 0.0


@dataclass(frozen=True)
class Sample:
    data_source: str
    problem_id: str
    sample_index: int
    prompt: str
    response: str
    answer: str
    ground_truth: str
    correct: bool
    response_length: int


@dataclass(frozen=True)
class Step:
    step: int
    total_steps: int
    metrics: Mapping[str, float]
    cost: Cost
    evaluation: tuple[Sample, ...] = ()
    final: bool = False


@dataclass(frozen=True)
class Fault:
    key: str
    got: str
    need: str
    do: str


@dataclass
class State:
    step: int = 0
    flops: float = 0.0


def preflight(config: Config, devices: int = 1) -> list[Fault]:
    if config.actor.shards > devices:
        return [Fault("actor.shards", str(config.actor.shards), f"at most {devices}", "lower it")]
    return []


def prepare(config: Config, progress: Callable[[str, int, int], None] | None = None) -> None:
    if config.trainer.seed == 13:
        raise RuntimeError("nothing to prepare from")
    print("noise on standard output must not reach whoever reads the progress")
    for done in range(3):
        if progress is not None:
            progress("toy", done, 2)


def train(config: Config, report: Callable[[Any], bool]) -> None:
    run = config.trainer
    state, folder = _load(run)
    logging.getLogger(__name__).info("plan: %d steps", run.total_training_steps)
    if folder is not None and run.together:
        _wait_for_neighbours(folder, run.together)
    if state.step and not report(_told(config, state)):
        return
    while state.step < run.total_training_steps:
        time.sleep(run.seconds)
        _go_wrong(config, state, folder)
        step = state.step + 1
        state = State(step, state.flops + 1e9 * config.actor.batch)
        if state.step % run.save_freq == 0 or state.step == run.total_training_steps:
            _save(state, folder)
        if folder is not None:
            with (folder / TRAINED).open("a") as log:
                log.write(f"{state.step}\n")
        if run.fault == "short" and state.step == run.total_training_steps:
            return
        if run.fault == "garbage":
            report(state.step)
        if run.fault != "silent" and not report(_told(config, state)):
            _save(state, folder)
            return


def _wait_for_neighbours(folder: Path, together: int) -> None:
    number = int(folder.name)
    first = number - number % together
    while not all((folder.parent / str(other)).exists() for other in range(first, first + together)):
        time.sleep(0.01)


def accuracy(config: Config, step: int) -> float:
    """Rises with the batch, is best at lr 0.3, and depends on the seed."""
    actor = config.actor
    peak = math.exp(-((math.log10(actor.lr) + 0.5) ** 2)) / (1 + config.trainer.seed / 100)
    return peak * (1 - 0.5 ** (step * actor.batch / 4))


def _told(config: Config, state: State) -> Step:
    run = config.trainer
    final = state.step == run.total_training_steps
    metrics: dict[str, Any] = {
        "val/accuracy": accuracy(config, state.step),
        "val/sampling/n": 1.0,
        "threads/omp": float(os.environ.get("OMP_NUM_THREADS", "0")),
        "threads/config": float(run.num_threads or 0),
        "pid": float(os.getpid()),
    }
    if state.step == 2 and run.fault in ("nan", "text"):
        metrics["actor/pg_loss"] = math.nan if run.fault == "nan" else "high"
    if run.fault == "missing":
        del metrics["val/accuracy"]
    right = (True, False, True, False) if final else ()
    samples = tuple(Sample("toy", str(i), 0, "1+1=", "é\u2028 2", "2", "2", r, 3) for i, r in enumerate(right))
    cost = Cost(flops=state.flops, tokens=state.step * 10, device_seconds=time.perf_counter())
    return Step(state.step, run.total_training_steps, metrics, cost, samples, final)


def _go_wrong(config: Config, state: State, folder: Path | None) -> None:
    fault = config.trainer.fault
    if state.step != config.trainer.total_training_steps // 2:
        return
    if fault == "raise":
        raise ValueError("the loss\nexploded")
    if fault == "memory":
        raise MemoryError
    if fault == "exit":
        sys.exit("out of ideas")
    if fault == "leave":
        raise KeyboardInterrupt("not the user's")
    if fault in ("die", "die_once"):
        mark = folder / "died" if folder else None
        if fault == "die" or (mark and not mark.exists()):
            if mark:
                mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _load(run: Run) -> tuple[State, Path | None]:
    if run.default_local_dir is None:
        return State(), None
    folder = Path(run.default_local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "state.json"
    return (State(**json.loads(file.read_text())) if file.exists() else State()), folder


def _save(state: State, folder: Path | None) -> None:
    if folder is not None:
        work = folder / "state.tmp"
        work.write_text(json.dumps(asdict(state)))
        work.rename(folder / "state.json")


def trained_model(folder: Path) -> Path | None:
    return folder if (folder / "state.json").exists() else None
