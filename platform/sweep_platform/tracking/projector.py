"""A sweep's ledger records as MLflow runs: one parent for the sweep, one nested run a trial.

Everything here can be repeated: runs are found again by their tags, steps already written are left out,
and params, tags and files come out the same. So the live projection, a resumed sweep and `sync` are one path.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sweep_platform.errors import NoFeasibleTrial
from sweep_platform.evidence import judged_frontier
from sweep_platform.files import to_yaml
from sweep_platform.frontier import Frontier
from sweep_platform.insight import Absent, Material, pictures
from sweep_platform.plots import evaluation_size, save_frontier, save_picture
from sweep_platform.tracking.names import sweep_uid
from sweep_platform.tracking.notes import NOTE, frontier_note, searched_note
from sweep_platform.tracking.runs import RunWriter, StepRecord, milliseconds, step_metrics
from sweep_platform.tracking.samples import FILE, TAG, TAG_VALUE, samples_table
from sweep_platform.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import Run
    from run_ledger import Ledger, SweepRecord, TrialRecord

PARENT = -1
"""Key of the parent among a sweep's runs, whose other keys are trial numbers."""

_STATUS = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED", "infeasible": "KILLED", "lost": "FAILED"}


class Projector:
    """Writes one sweep into one tracking store. Not for use by two threads at once."""

    def __init__(self, store: Store, ledger: Ledger, sweep: SweepRecord) -> None:
        self._store = store
        self._ledger = ledger
        self._sweep = sweep
        self._experiment = store.experiment(sweep.name)
        self._uid = sweep_uid(sweep)
        self._runs: dict[int, RunWriter] = {}
        for key, run in self._existing():
            if key in self._runs:  # a driver that was frozen made it after another one had: it shows the same
                store.client.delete_run(run.info.run_id)
            else:
                self._runs[key] = RunWriter.of(store.client, run)
        self._linked: set[int] = set()

    def _existing(self) -> Iterator[tuple[int, Run]]:
        token: str | None = None
        while True:
            page = self._store.client.search_runs(
                [self._experiment],
                f"tags.sweep_uid = '{self._uid}'",
                max_results=1000,
                order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
                page_token=token,
            )
            for run in page:
                yield int(run.data.tags.get("trial", PARENT)), run
            token = page.token
            if not token:
                return

    def start(self) -> None:
        """Open the sweep's own run, again if it was ended."""
        self._parent().reopen()

    def trial(self, trial: TrialRecord) -> None:
        """Write what MLflow lacks of a trial: its run, its new steps and, once it is final, how it ended."""
        if trial.state == "waiting" and trial.started_at is None:
            return
        writer = self._trial(trial)
        if writer.state == trial.state and writer.status == _STATUS.get(trial.state):
            return
        observations = self._ledger.observations(trial.id)
        writer.steps(StepRecord(o.step, step_metrics(o.metrics, o.cost), o.at) for o in observations)
        if trial.state.final:
            self._end_trial(writer, trial)
        elif writer.state != trial.state:
            writer.tags(_trial_tags(trial))
            writer.reopen()

    def finish(self, trials: Sequence[TrialRecord]) -> None:
        """Write the sweep's result: the frontier's pictures and points, and the end of the parent run."""
        writer = self._parent()
        counts = Counter(f"trials.{trial.state}" for trial in trials)
        writer.tags({name: str(count) for name, count in counts.items()})
        try:
            frontier = judged_frontier(self._ledger, self._sweep, trials)
        except NoFeasibleTrial as error:
            writer.tags({NOTE: str(error)})
        else:
            self._frontier(writer, frontier, trials)
        writer.end("FINISHED", max((trial.ended_at for trial in trials if trial.ended_at), default=None))

    def interrupt(self, trials: Sequence[TrialRecord]) -> None:
        """Mark what still runs as stopped; running the sweep again opens it again."""
        for trial in trials:
            writer = self._runs.get(trial.number)
            if writer is not None and not trial.state.final:
                writer.tags({"state": "interrupted"})
                writer.end("KILLED", None)
        self._parent().end("KILLED", None)

    def _frontier(self, writer: RunWriter, frontier: Frontier, trials: Sequence[TrialRecord]) -> None:
        knee = next(trial for trial in trials if trial.number == frontier.knee.number)
        evaluated = evaluation_size(self._ledger.evaluations(knee.id))
        with tempfile.TemporaryDirectory() as folder:
            for name in ("frontier.html", "frontier.png"):
                save_frontier(frontier, Path(folder) / name, evaluated)
            (Path(folder) / "frontier.json").write_text(json.dumps(frontier.to_json(), indent=2), encoding="utf-8")
            self._store.client.log_artifacts(writer.run_id, folder)
        self._insight(writer, trials)
        writer.tags({NOTE: frontier_note(frontier), "knee": str(knee.number)})

    def _insight(self, writer: RunWriter, trials: Sequence[TrialRecord]) -> None:
        """Write the pictures of what the sweep teaches, as far as there are trials enough."""
        with tempfile.TemporaryDirectory() as folder:
            for name, picture in pictures(Material.of(self._sweep, trials)).items():
                if not isinstance(picture, Absent):
                    save_picture(picture, Path(folder) / f"{name}.html")
                    save_picture(picture, Path(folder) / f"{name}.png")
            self._store.client.log_artifacts(writer.run_id, folder)

    def _parent(self) -> RunWriter:
        sweep = self._sweep
        writer = self._runs.get(PARENT) or self._create(PARENT, sweep.address, sweep.created_at, {})
        if not writer.state:
            writer.params(sweep.spec)
            writer.texts({"spec.yaml": to_yaml(sweep.spec)})
            writer.tags({"state": "sweep"})
        if PARENT not in self._linked and sweep.mlflow_run_id != writer.run_id:
            self._ledger.set_mlflow_run(sweep_id=sweep.id, run_id=writer.run_id)
        self._linked.add(PARENT)
        return writer

    def _trial(self, trial: TrialRecord) -> RunWriter:
        writer = self._runs.get(trial.number)
        if writer is None:
            name = f"{self._sweep.name}/{trial.number:02d}"
            started = trial.started_at or trial.ended_at or self._sweep.created_at
            tags = {"mlflow.parentRunId": self._parent().run_id, "trial": str(trial.number)}
            writer = self._create(trial.number, name, started, tags)
        # The state is tagged last: a run without it was left half made by a process that died.
        if not writer.state:
            writer.params(trial.config)
            writer.texts({"config.yaml": to_yaml(trial.config)})
            fixed = {NOTE: searched_note(trial), "origin": trial.origin, "replicate": str(trial.replicate)}
            writer.tags({**fixed, "state": "created"})
        if trial.number not in self._linked and trial.mlflow_run_id != writer.run_id:
            self._ledger.set_mlflow_run(trial_id=trial.id, run_id=writer.run_id)
        self._linked.add(trial.number)
        return writer

    def _end_trial(self, writer: RunWriter, trial: TrialRecord) -> None:
        evaluations = self._ledger.evaluations(trial.id)
        tags = _trial_tags(trial)
        if evaluations:
            writer.texts({FILE: samples_table(evaluations)})
            tags[TAG] = TAG_VALUE
        writer.tags(tags)
        # Last, so that a run that has ended is a run that is whole.
        writer.end(_STATUS[trial.state], trial.ended_at)

    def _create(self, key: int, name: str, started: datetime, tags: Mapping[str, str]) -> RunWriter:
        sweep = self._sweep
        commit = {"mlflow.source.git.commit": sweep.commit} if sweep.commit else {}
        run = self._store.client.create_run(
            self._experiment,
            start_time=milliseconds(started),
            run_name=name,
            tags={
                "sweep": sweep.name,
                "sweep_version": str(sweep.version),
                "sweep_uid": self._uid,
                "trainer": str(sweep.spec.get("trainer", "")),
                "mlflow.source.name": "platform sweep",
                "mlflow.source.type": "LOCAL",
                **commit,
                **tags,
            },
        )
        self._runs[key] = RunWriter.of(self._store.client, run)
        return self._runs[key]


def _trial_tags(trial: TrialRecord) -> dict[str, str]:
    tags = {"state": str(trial.state), "attempts": str(trial.attempts)}
    return tags | ({"reason": trial.reason} if trial.reason else {})
