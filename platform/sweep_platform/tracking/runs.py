"""Writing one MLflow run: stepwise metrics in batches, params, tags and files, safe to repeat."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep_platform.spec.paths import flatten
from sweep_platform.tracking.names import MAX_KEY, MAX_TAG, metric_name, param_value, shorten

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

    from sweep_platform.trainers import Cost

STEP = "progress/step"
"""Metric that has a point for each step that was written whole; a resumed projection writes the others."""

_COSTS = (
    "flops",
    "tokens",
    "device_seconds",
    "evaluation_flops",
    "evaluation_tokens",
    "evaluation_device_seconds",
)
_METRICS_A_BATCH = 1000
_PARAMS_A_BATCH = 100


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one update reported, with the moment at which it was recorded.

    The moment comes from the record, never from the clock, so that writing a step twice writes the same rows.
    """

    step: int
    metrics: Mapping[str, float]
    at: datetime

    @property
    def key(self) -> tuple[int, int]:
        """Tells it from what else was told of the step."""
        return self.step, milliseconds(self.at)


def step_metrics(metrics: Mapping[str, float], cost: Cost) -> dict[str, float]:
    """A step's metrics with its cumulative cost under `cost/…`."""
    return {f"cost/{name}": float(getattr(cost, name)) for name in _COSTS} | dict(metrics)


@dataclass(slots=True)
class RunWriter:
    """One run, and how far it is written."""

    client: MlflowClient
    run_id: str
    status: str = "RUNNING"
    state: str = ""
    """The tag `state` as it stands in MLflow."""
    written: set[tuple[int, int]] | None = None
    """Steps that MLflow has, with their moments; None as long as it wasn't asked."""

    @classmethod
    def of(cls, client: MlflowClient, run: Run) -> RunWriter:
        """Take up a run that MLflow has, created now or in an earlier process."""
        return cls(
            client,
            run.info.run_id,
            status=run.info.status,
            state=run.data.tags.get("state", ""),
            written=None if STEP in run.data.metrics else set(),
        )

    def steps(self, records: Iterable[StepRecord]) -> int:
        """Write the steps that are not written yet; returns how many.

        A step that was told again, by an attempt that goes on from a checkpoint, gets a second point: MLflow can't
        replace one, and shows the later.
        """
        if self.written is None:
            told = self.client.get_metric_history(self.run_id, STEP)
            self.written = {(point.step, point.timestamp) for point in told}
        new = [record for record in records if record.key not in self.written]
        for batch in _batches([_entities(record) for record in sorted(new, key=lambda record: record.step)]):
            self.client.log_batch(self.run_id, metrics=batch)
        self.written |= {record.key for record in new}
        return len(new)

    def params(self, tree: Mapping[str, Any]) -> None:
        """Write a nested mapping as params with dotted names."""
        from mlflow.entities import Param

        entities = [Param(metric_name(path)[:MAX_KEY], param_value(value)) for path, value in flatten(tree).items()]
        for start in range(0, len(entities), _PARAMS_A_BATCH):
            self.client.log_batch(self.run_id, params=entities[start : start + _PARAMS_A_BATCH])

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, old ones of the same name are replaced."""
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(k, shorten(v, MAX_TAG)) for k, v in tags.items()])
        self.state = tags.get("state", self.state)

    def texts(self, files: Mapping[str, str]) -> None:
        """Write text files among the run's artifacts."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            self.client.log_artifacts(self.run_id, folder)

    def end(self, status: str, at: datetime | None) -> None:
        """Set FINISHED, FAILED or KILLED."""
        self.client.set_terminated(self.run_id, status, None if at is None else milliseconds(at))
        self.status = status

    def reopen(self) -> None:
        """Set RUNNING again: the run goes on."""
        if self.status != "RUNNING":
            self.client.update_run(self.run_id, status="RUNNING")
            self.status = "RUNNING"


def milliseconds(at: datetime) -> int:
    """MLflow's timestamp."""
    return round(at.timestamp() * 1000)


def _entities(record: StepRecord) -> list[Metric]:
    from mlflow.entities import Metric

    _, at = record.key
    named = [(metric_name(name), float(value)) for name, value in record.metrics.items()]
    # STEP last: once it is there, so is everything before it.
    return [Metric(name, value, at, record.step) for name, value in [*named, (STEP, float(record.step))]]


def _batches(steps: Sequence[list[Metric]]) -> Iterator[list[Metric]]:
    """As many whole steps a batch as MLflow takes; a step that is too large alone is split."""
    batch: list[Metric] = []
    for step in steps:
        if batch and len(batch) + len(step) > _METRICS_A_BATCH:
            yield batch
            batch = []
        batch.extend(step)
        while len(batch) > _METRICS_A_BATCH:
            yield batch[:_METRICS_A_BATCH]
            batch = batch[_METRICS_A_BATCH:]
    if batch:
        yield batch
