"""Training a production file: prepare, train, resume, and its own run in MLflow."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sweep_platform.errors import BadInput, Fault, PlatformError
from sweep_platform.files import to_yaml
from sweep_platform.home import Home
from sweep_platform.logs import logged
from sweep_platform.production.document import Production, ProductionFile, checked, read_production
from sweep_platform.production.journal import Journal, Step
from sweep_platform.signals import interruptible
from sweep_platform.spec.faults import from_trainer
from sweep_platform.spec.model import NAME
from sweep_platform.spec.paths import flatten
from sweep_platform.tracking.runs import StepRecord, step_metrics
from sweep_platform.tracking.samples import FILE, TAG, TAG_VALUE, samples_lines, samples_table
from sweep_platform.tracking.single import RunDescription, RunProjection
from sweep_platform.tracking.store import Store
from sweep_platform.trainers import EvaluatedSample, StepMetrics, free_to_change, machine_faults

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
OnStep = Callable[[StepMetrics], None]


@dataclass(frozen=True, slots=True)
class ProductionResult:
    """How a production run stands once it is complete."""

    name: str
    folder: Path
    """Its record, the samples of its evaluations, and checkpoints."""
    metric: str
    """The accuracy's metric."""
    accuracy: float | None
    """None if the trainer reported no such metric."""
    accuracy_se: float | None
    metrics: Mapping[str, float]
    """All metrics of the last step."""
    steps: int
    resumed_from: int | None
    """Last step recorded by an earlier process; None for a run without one."""
    finished_before: bool
    """The run was complete already, and nothing was trained."""


def run_production(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    home: Home,
    file: ProductionFile | None = None,
    store: Store | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    on_step: OnStep | None = None,
    warn: Callable[[str], None] = _log.warning,
) -> ProductionResult:
    """Train a production file to its end, or continue where an earlier call was stopped.

    Until it is finished, the next call may change what the trainer is free to change on a resume; the record and MLflow
    say what and when.

    Args:
        path: The file, as `export` writes it.
        overrides: `dotted.key=value` settings for its config.
        home: Where the run's folder goes.
        file: What the file would say, where there is none: `path` is its name in messages.
        store: MLflow's store; None takes the home's.
        name: Name of the run and its folder; None takes the file's name.
        progress: Called during long preparation.
        on_step: Called after each step that is recorded.
        warn: Takes the line that says that MLflow can't be written.

    Raises:
        BadInput: the file is wrong, or differs from what this run was started with.
        PlatformError: the trainer failed, or reported a number that is not finite.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; the same call resumes.
    """
    production = checked(path, file or read_production(path), overrides, own_folder=True)
    journal = Journal(home.run_dir(_run_name(path, name)))
    config = _placed(production, journal.checkpoints)
    if journal.final is None:
        _preflight(production, config)  # before anything is written
    with journal.held() as journal:
        plain = production.config.model_dump(mode="json")
        _check_unchanged(production, journal, plain)
        metric = _metric(production)
        if journal.final is not None:
            return _result(journal, metric, resumed_from=journal.final.step, finished_before=True)
        run = _Run(production, journal, on_step)
        store = store or Store(home.mlflow_uri, home.artifacts)
        resumed_from = journal.steps[-1].step if journal.steps else None
        with interruptible():
            run.train(config, plain, store, progress, warn)
        return _result(journal, metric, resumed_from=resumed_from, finished_before=False)


class _Run:
    """One process's part of a production run."""

    def __init__(self, production: Production, journal: Journal, on_step: OnStep | None) -> None:
        self._production = production
        self._journal = journal
        self._on_step = on_step
        self._evaluation: Sequence[EvaluatedSample] = ()

    def train(
        self,
        config: BaseModel,
        plain: Mapping[str, Any],
        store: Store,
        progress: Progress | None,
        warn: Callable[[str], None],
    ) -> None:
        """Prepare and train, and record how it ended, whatever happens."""
        trainer, journal = self._production.trainer, self._journal
        journal.begin(plain, self._production.file.trainer)
        projection = RunProjection(store, self._description(plain), self._records, warn=warn)
        try:
            trainer.prepare(config, progress)
            with logged(trainer, journal.folder):
                trainer.train(config, self._report)
            if journal.final is None:
                raise PlatformError("the trainer ended before its last step")
        except BaseException as error:
            self._failed(projection, error)
            if isinstance(error, Exception) and not isinstance(error, PlatformError):
                raise PlatformError(f"{journal.folder.name} failed: {_told(error)}") from error
            raise
        journal.end("complete")
        projection.end("FINISHED", datetime.now(UTC), {"state": "complete", TAG: TAG_VALUE}, self._samples())

    def _report(self, step: StepMetrics) -> bool:
        metrics = step_metrics(step.metrics, step.cost)
        bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if bad:
            told = ", ".join(f"{name} is {value}" for name, value in bad.items())
            raise PlatformError(f"{self._journal.folder.name} failed at step {step.step}: {told}")
        if step.evaluation:
            self._evaluation = tuple(step.evaluation)
        record = Step(step.step, step.total_steps, metrics, step.final, datetime.now(UTC))
        self._journal.append(record, samples_lines(step.evaluation))
        if self._on_step is not None:
            self._on_step(step)
        return True

    def _failed(self, projection: RunProjection, error: BaseException) -> None:
        interrupted = not isinstance(error, Exception)
        state, status = ("interrupted", "KILLED") if interrupted else ("failed", "FAILED")
        reason = None if interrupted else _told(error)
        self._journal.end(state, reason)
        # A second Ctrl-C while MLflow is brought up to date must not hide the first.
        with suppress(KeyboardInterrupt):
            tags = {"state": state} | ({"reason": reason} if reason else {})
            projection.end(status, datetime.now(UTC), tags)

    def _records(self) -> list[StepRecord]:
        return [StepRecord(step.step, step.metrics, step.at) for step in self._journal.steps]

    def _samples(self) -> dict[str, str]:
        return {FILE: samples_table(self._evaluation)}

    def _description(self, plain: Mapping[str, Any]) -> RunDescription:
        journal, origin = self._journal, self._production.file.provenance
        tags = {"file": str(self._production.path), "trainer": self._production.file.trainer}
        if changes := journal.head.get("changes"):
            tags["changes"] = json.dumps(changes)
        if origin is not None:
            tags |= {f"provenance.{key}": str(value) for key, value in flatten(origin.model_dump(mode="json")).items()}
        return RunDescription(
            name=journal.folder.name,
            uid=f"{journal.folder.name} {journal.created_at.isoformat()}",
            started=journal.created_at,
            params=plain,
            tags=tags,
            texts={"config.yaml": to_yaml(plain)},
        )


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, PlatformError) else f"{type(error).__name__}: {error}"


def _metric(production: Production) -> str:
    origin = production.file.provenance
    return (origin.accuracy_metric if origin else None) or "val/accuracy"


def _placed(production: Production, folder: Path) -> BaseModel:
    """The config with its checkpoints in the run's folder."""
    tree = production.config.model_dump(mode="json")
    tree["trainer"] = {**tree.get("trainer", {}), "default_local_dir": str(folder)}
    return production.trainer.Config.model_validate(tree)


def _run_name(path: Path, name: str | None) -> str:
    """The run's name; a folder of its own is called like it.

    Raises:
        BadInput: it can't be one folder's name.
    """
    chosen = path.stem if name is None else name
    if re.fullmatch(NAME, chosen) is None:
        where = f"{path}" if name is None else "--name"
        need = "letters, digits, '_', '-' and '.', starting with a letter or digit, at most 64"
        raise BadInput([Fault(where, repr(chosen), need, "give the run such a --name")])
    return chosen


def _check_unchanged(production: Production, journal: Journal, config: Mapping[str, Any]) -> None:
    """Refuse to continue a run under another config: its result would belong to neither.

    What the trainer lets a resumed run change may be, until it is finished. Without a step there is nothing to keep.
    """
    if not journal.steps:
        return
    run = f"{'' if journal.final is None else 'the finished run '}{journal.folder}"
    faults = [
        Fault(
            production.where(path),
            "nothing" if now is None else str(now),
            f"{'nothing' if before is None else before}, as {run} was started with",
            "set it back, or start another run with --name",
        )
        for path, (before, now) in journal.changes(config).items()
        if journal.final is not None or not free_to_change(production.trainer, path)
    ]
    if faults:
        raise BadInput(faults)


def _preflight(production: Production, config: BaseModel) -> None:
    found = [*production.trainer.preflight(config), *machine_faults(production.trainer, config)]
    if found:
        raise BadInput(from_trainer(found, production.where))


def _result(journal: Journal, metric: str, *, resumed_from: int | None, finished_before: bool) -> ProductionResult:
    last = journal.steps[-1]
    return ProductionResult(
        name=journal.folder.name,
        folder=journal.folder,
        metric=metric,
        accuracy=last.metrics.get(metric),
        accuracy_se=last.metrics.get(f"{metric}_se"),
        metrics=last.metrics,
        steps=last.step,
        resumed_from=resumed_from,
        finished_before=finished_before,
    )
