"""One sweep that is disturbed: its spec, its places, and what both databases say of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from mlflow.entities import Run
from run_ledger import Ledger, SweepRecord, TrialRecord, TrialState
from sweep_platform.home import Home
from sweep_platform.spec.paths import flatten
from sweep_platform.tracking import Store
from sweep_platform.tracking.names import metric_name, param_value
from sweep_platform.tracking.runs import step_metrics

from kills.command import Command

NAME = "shaken"
SAVE_FREQ = 2
OWN = ("cost/device_seconds", "pid", "threads/", "timing_s/", "perf/")
"""Metrics of the process and not of the trial."""
STATUS = {
    "complete": "FINISHED",
    "failed": "FAILED",
    "lost": "FAILED",
    "pruned": "KILLED",
    "infeasible": "KILLED",
}


def toy_spec(trials: int, steps: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """A sweep of simulated trials."""
    return {
        "name": NAME,
        "trainer": "toybox.trainer",
        "config": {"trainer": {"seconds": seconds, "save_freq": SAVE_FREQ, "total_training_steps": steps}},
        "objectives": [
            {"metric": "val/accuracy", "direction": "maximize"},
            {"metric": "cost/flops", "direction": "minimize"},
        ],
        "search": {"actor.lr": {"float": [0.01, 1.0], "log": True}, "actor.batch": {"int": [1, 8]}},
        "sampler": {"name": "tpe", "n_startup": 4},
        "budget": {"trials": trials, "concurrency": 2},
        "hardware": {"cores": 2},
        **changes,
    }


@dataclass
class Shaken:
    """A sweep in a folder of its own.

    Args:
        folder: where everything of it lies.
        spec: what it is.
        executor: where trials run.
        mlflow: an empty database of MLflow's to begin with, as making one takes seconds.
        ledger_url: None for an SQLite file.
    """

    folder: Path
    spec: Mapping[str, Any]
    executor: str
    mlflow: Path
    ledger_url: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.mlflow, self.folder / "mlflow.db")
        self.file = self.folder / "spec.yaml"
        self.file.write_text(yaml.safe_dump(dict(self.spec)))
        self.home = Home(self.folder)
        self.url = self.ledger_url or f"sqlite:///{self.folder / 'ledger.db'}"
        self.environment |= {
            "PLATFORM_HOME": str(self.folder),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder / 'mlflow.db'}",
            "PLATFORM_LEDGER": self.url,
            "HOME": str(self.folder),
        }

    def start(self, **options: Any) -> Command:
        """Run the command."""
        return Command(("sweep", self.file, "--executor", self.executor, "--plain"), self.environment, **options)

    @property
    def store(self) -> Store:
        """MLflow's."""
        return Store(self.environment["MLFLOW_TRACKING_URI"], self.folder / "mlartifacts")

    def ledger(self) -> Ledger:
        """The ledger, opened."""
        return Ledger.open(self.url)

    def read(self) -> Seen:
        """What the ledger has now; nothing before the sweep is there."""
        if self.ledger_url is None and not (self.folder / "ledger.db").exists():
            return Seen(None, [], {}, {})
        with self.ledger() as ledger:
            sweep = ledger.find_sweep(NAME)
            trials = [] if sweep is None else ledger.trials(sweep.id)
            reasons = {t.number: [a.exit_reason for a in ledger.attempts(t.id)] for t in trials}
            steps = {
                t.number: {o.step: step_metrics(o.metrics, o.cost) for o in ledger.observations(t.id)} for t in trials
            }
        return Seen(sweep, trials, reasons, steps)

    def logs(self) -> dict[int, list[int]]:
        """Every step that was ever trained, by trial, in the order in which it was."""
        files = (self.folder / "trials" / f"{NAME}@1").glob("*/trained.log")
        return {int(file.parent.name): [int(line) for line in file.read_text().split()] for file in files}

    def runs(self) -> list[Run]:
        """MLflow's runs of the sweep."""
        client = self.store.client
        experiment = client.get_experiment_by_name(NAME)
        return [] if experiment is None else list(client.search_runs([experiment.experiment_id], max_results=5000))


@dataclass(frozen=True)
class Seen:
    """The ledger at one moment."""

    sweep: SweepRecord | None
    trials: list[TrialRecord]
    reasons: Mapping[int, list[str | None]]
    """How a trial's attempts ended."""
    steps: Mapping[int, Mapping[int, Mapping[str, float]]]
    """A trial's metrics by step."""

    def finished(self) -> dict[int, tuple[Any, ...]]:
        """What must never change again."""
        return {t.number: (*essence(t), t.ended_at) for t in self.trials if t.state is TrialState.COMPLETE}

    def result(self) -> list[tuple[Any, ...]]:
        """What an undisturbed sweep has too."""
        return [essence(trial) for trial in self.trials]


def essence(trial: TrialRecord) -> tuple[Any, ...]:
    """A trial without what belongs to the processes that ran it."""
    metrics = {name: value for name, value in trial.metrics.items() if not name.startswith(OWN)}
    return trial.number, trial.state, dict(trial.params), trial.values, metrics, trial.cost.flops, trial.cost.tokens


def check_ledger(shaken: Shaken, seen: Seen, before: Mapping[int, tuple[Any, ...]]) -> None:
    """What holds at any moment at which no driver runs.

    Raises:
        AssertionError: it doesn't.
    """
    now = seen.finished()
    assert {number: now.get(number) for number in before} == before, "a finished trial was lost or changed"
    numbers = [trial.number for trial in seen.trials]
    assert numbers == list(range(len(numbers))), "a gap or a repetition among the trials"
    for trial in seen.trials:
        reasons = seen.reasons[trial.number]
        assert reasons.count("complete") == (trial.state is TrialState.COMPLETE), f"finished twice: {reasons}"
        assert len(reasons) == trial.attempts
        assert None not in reasons[:-1], f"two attempts at once: {reasons}"
        open_attempt = bool(reasons) and reasons[-1] is None
        assert open_attempt == (trial.state is TrialState.RUNNING), f"a ghost: {trial.number} {trial.state} {reasons}"
        steps = list(seen.steps[trial.number])
        first = min([*steps, 1])  # 0 if the model is evaluated before the first update
        assert steps == list(range(first, trial.step + 1)), f"steps up to {trial.step} are missing: {steps}"
    for number, log in shaken.logs().items():
        for last, following in zip(log, log[1:], strict=False):
            kept = last // SAVE_FREQ * SAVE_FREQ
            assert kept < following <= last + 2, f"trial {number} repeats steps before its checkpoint: {log}"


def check_mlflow(shaken: Shaken, seen: Seen, *, equal: bool) -> None:
    """That MLflow says what the ledger says: of all trials, or, where it may lag behind, nothing else.

    Raises:
        AssertionError: it doesn't.
    """
    by_key: dict[str, list[Run]] = {}
    for run in shaken.runs():
        by_key.setdefault(run.data.tags.get("trial", "sweep"), []).append(run)
    trials = {str(trial.number): trial for trial in seen.trials if trial.started_at is not None}
    assert set(by_key) <= {"sweep", *trials}, "a run of a trial that the ledger doesn't have"
    for key, found in by_key.items():
        assert len(found) == 1, f"MLflow has {len(found)} runs of {key}"
    if equal:
        assert set(by_key) == {"sweep", *trials}, "a trial without a run"
    for key, trial in trials.items():
        if key in by_key:
            _check_run(shaken, by_key[key][0], trial, seen.steps[trial.number], equal=equal)


def _check_run(
    shaken: Shaken, run: Run, trial: TrialRecord, steps: Mapping[int, Mapping[str, float]], *, equal: bool
) -> None:
    if equal or run.info.status == "FINISHED":
        _check_steps(shaken, run, trial, steps)
        params = {metric_name(path): param_value(value) for path, value in flatten(dict(trial.config)).items()}
        assert run.data.params == params, f"trial {trial.number}: other params"
    if equal and trial.state.final:
        assert run.info.status == STATUS[trial.state.value], f"trial {trial.number}: {run.info.status}"
        assert run.data.tags["state"] == trial.state.value
        assert trial.mlflow_run_id == run.info.run_id
    if run.info.status == "FINISHED":
        assert trial.state is TrialState.COMPLETE


def _check_steps(shaken: Shaken, run: Run, trial: TrialRecord, steps: Mapping[int, Mapping[str, float]]) -> None:
    """That the newest point of each step is the ledger's word."""
    for name in ("cost/flops", "cost/device_seconds"):  # the latter differs each time that a step is told
        told = shaken.store.client.get_metric_history(run.info.run_id, name)
        newest = {point.step: point.value for point in sorted(told, key=lambda point: point.timestamp)}
        # Of an attempt that was killed, later steps can stand there until its successor gets as far.
        complete = trial.state is TrialState.COMPLETE
        given_up = {step: newest.pop(step) for step in sorted(newest) if step > trial.step and not complete}
        wanted = {step: metrics[name] for step, metrics in steps.items()}
        assert newest == wanted, f"trial {trial.number}: MLflow has {newest}, the ledger {wanted} of {name}"
    if steps and not given_up:
        last = {metric_name(name): value for step in sorted(steps) for name, value in steps[step].items()}
        shown = {name: value for name, value in run.data.metrics.items() if name != "progress/step"}
        assert shown == last, f"trial {trial.number}: MLflow has {shown}, the ledger {last}"
