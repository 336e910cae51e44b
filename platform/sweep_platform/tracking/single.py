"""A production run in MLflow: its own run in the experiment `production`, live, with the same guarantees."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sweep_platform.tracking.background import FLUSH_SECONDS, Background
from sweep_platform.tracking.runs import RunWriter, StepRecord, milliseconds
from sweep_platform.tracking.store import Store

EXPERIMENT = "production"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What a run is, before its first step."""

    name: str
    uid: str
    """Tells this run from others of its name; the same after a resume."""
    started: datetime
    params: Mapping[str, Any]
    """Nested; becomes dotted params."""
    tags: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files by name."""


class RunProjection:
    """Brings one run's record into MLflow from a background thread until `end`.

    Args:
        store: Where it goes.
        run: The run.
        steps: Gives all steps recorded so far.
        warn: Takes the one line that says that MLflow can't be written; by default it is logged.
        flush_s: Seconds between two rounds.
    """

    def __init__(
        self,
        store: Store,
        run: RunDescription,
        steps: Callable[[], Sequence[StepRecord]],
        *,
        warn: Callable[[str], None] = _log.warning,
        flush_s: float = FLUSH_SECONDS,
    ) -> None:
        self._store = store
        self._run = run
        self._steps = steps
        self._warn = warn
        self._writer: RunWriter | None = None
        self._end: tuple[str, datetime, Mapping[str, str], Mapping[str, str]] | None = None
        self._background = Background(self._round, self._tell, flush_s)

    def end(self, status: str, at: datetime, tags: Mapping[str, str], texts: Mapping[str, str] | None = None) -> None:
        """Write the rest and set the run FINISHED, FAILED or KILLED."""
        self._end = (status, at, tags, texts or {})
        self._background.close()

    def _round(self, last: bool) -> None:
        if self._writer is None:
            self._writer = self._open()
        self._writer.steps(self._steps())
        if last and self._end is not None:
            status, at, tags, texts = self._end
            if texts:
                self._writer.texts(texts)
            self._writer.tags(tags)
            self._writer.end(status, at)

    def _open(self) -> RunWriter:
        """Find the run, or create it, and make it whole."""
        client, run = self._store.client, self._run
        experiment = self._store.experiment(EXPERIMENT)
        found = client.search_runs([experiment], f"tags.run_uid = '{run.uid}'", max_results=1)
        tags = {"run_uid": run.uid, "mlflow.source.name": "platform train", "mlflow.source.type": "LOCAL"}
        entity = (
            found[0]
            if found
            else client.create_run(experiment, milliseconds(run.started), tags=tags, run_name=run.name)
        )
        writer = RunWriter.of(client, entity)
        if not writer.state:
            writer.params(run.params)
            writer.texts(run.texts)
        writer.tags({**run.tags, "state": "running"})
        writer.reopen()
        return writer

    def _tell(self, reason: str) -> None:
        self._warn(f"MLflow at {self._store.shown} can't be written ({reason}); the run goes on with its own record")
