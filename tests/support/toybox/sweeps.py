"""Sweeps of the toy trainer, and observers that take notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from run_ledger import Ledger, SweepRecord, TrialRecord
from sweep_platform.driver import open_sweep
from sweep_platform.executors import Executor
from sweep_platform.home import Home
from sweep_platform.spec import SweepSpec

from toybox.trainer import Config

TRAINER = "toybox.trainer"
SEARCH = {"actor.lr": {"float": [0.01, 1.0], "log": True}, "actor.batch": {"int": [1, 8]}}


def toy_spec(
    *,
    search: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
    **keys: Any,
) -> SweepSpec:
    """A sweep over the toy trainer's knobs; `run` sets fields of its `trainer` section."""
    config = Config().model_dump(exclude={"model", "data"})
    config["trainer"] |= run or {}
    base = {
        "name": "toy",
        "trainer": TRAINER,
        "config": config,
        "objectives": [
            {"metric": "val/accuracy", "direction": "maximize"},
            {"metric": "cost/flops", "direction": "minimize"},
        ],
        "search": search or SEARCH,
        "sampler": {"name": "random"},
        "budget": {"trials": 4, **(budget or {})},
    }
    return SweepSpec.model_validate({**base, **keys})


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def sweep_started(self, sweep: SweepRecord, spec: Any, trials: Sequence[TrialRecord]) -> None:
        self.events.append(("sweep_started", sweep.address, len(trials)))

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        self.events.append(("prepare_progress", what, done, total))

    def trial_started(self, trial: TrialRecord) -> None:
        self.events.append(("trial_started", trial.number, trial.state.value))

    def trial_reported(self, trial: TrialRecord, step_metrics: Any) -> None:
        self.events.append(("trial_reported", trial.number, step_metrics.step, trial.step))

    def trial_paused(self, trial: TrialRecord) -> None:
        self.events.append(("trial_paused", trial.number, trial.step))

    def trial_finished(self, trial: TrialRecord) -> None:
        self.events.append(("trial_finished", trial.number, trial.state.value))

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        self.events.append(("sweep_finished", sweep.address, len(trials)))


def run_sweep(ledger: Ledger, home: Home, spec: SweepSpec, executor: Executor, **options: Any) -> list[TrialRecord]:
    """Run a sweep to its end; its trials by number."""
    with open_sweep(ledger, spec, home, **options) as driver:
        executor.run(driver)
    return ledger.trials(driver.sweep.id)
