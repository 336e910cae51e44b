"""A production run's own record on disk: what it was started with, each step, and how it ended.

<folder>/run.json      trainer, config, creation time, state, reason, and what the config was before a resume changed it
<folder>/steps.jsonl   one line a step
<folder>/evaluations/  step-N.jsonl: every sample of the evaluation after step N, one line each
<folder>/checkpoints/  the trainer's
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweep_platform.errors import BadInput, Fault, PlatformError
from sweep_platform.files import write_atomically
from sweep_platform.spec.paths import flatten


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step."""

    step: int
    total_steps: int
    metrics: Mapping[str, float]
    final: bool
    at: datetime


class Journal:
    """The record of the run in `folder`; one process at a time, see `held`.

    Raises:
        BadInput: what lies in the folder is no record.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._head = folder / "run.json"
        self._lines = folder / "steps.jsonl"
        self._size = 0
        try:
            self.head: dict[str, Any] = json.loads(self._head.read_text("utf-8")) if self._head.exists() else {}
            self.steps: list[Step] = list(self._read())
        except (ValueError, TypeError, KeyError, OSError) as error:
            got = f"a record that can't be read ({type(error).__name__}: {error})"
            do = "move the folder away, or start another run with --name"
            raise BadInput([Fault(str(folder), got, "the record of a run", do)]) from error

    @property
    def checkpoints(self) -> Path:
        """The trainer's folder."""
        return self.folder / "checkpoints"

    @property
    def created_at(self) -> datetime:
        """When the run was first started."""
        return datetime.fromisoformat(self.head["created_at"])

    @property
    def final(self) -> Step | None:
        """The last step, if the run is complete."""
        return self.steps[-1] if self.steps and self.steps[-1].final else None

    @contextmanager
    def held(self) -> Iterator[Journal]:
        """Keep other processes out, and yield the record as it is now.

        Raises:
            PlatformError: another one is running this.
            BadInput: the folder can't be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            need, do = "a folder that can be written", "change its rights, or set PLATFORM_HOME"
            raise BadInput([Fault(str(self.folder), error.strerror or str(error), need, do)]) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PlatformError(
                    f"{self.folder}: another process runs this; wait for it, or give this run another --name"
                ) from error
            yield Journal(self.folder)

    def changes(self, config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Values at which `config` differs from the one recorded: (recorded, new) by path, None for no such path."""
        now = flatten(json.loads(json.dumps(config)))
        before = flatten(self.head.get("config", {}))
        paths = sorted(before.keys() | now.keys())
        return {path: (before.get(path), now.get(path)) for path in paths if before.get(path) != now.get(path)}

    def begin(self, config: Mapping[str, Any], trainer: str) -> None:
        """Record the start of a run, or of its continuation; one without a step begins anew with another config.

        Args:
            config: The trainer's.
            trainer: Its name.
        """
        now, changes = datetime.now(UTC).isoformat(), self.changes(config)
        known = self.head if self.steps or not changes else {}
        ours = {"trainer": trainer, "config": dict(config)}
        head = {"created_at": now} | known | ours | {"state": "running", "reason": None}
        if self.steps and changes:
            change = {"at": now, "after_step": self.steps[-1].step, "changed": changes}
            head["changes"] = [*head.get("changes", []), change]
        recorded = {self.evaluation(step.step) for step in self.steps}
        for file in set(self.evaluation(0).parent.glob("step-*.jsonl")) - recorded:
            file.unlink()  # a crash came before its step was recorded, which will be done again
        self._save(head)

    def end(self, state: str, reason: str | None = None) -> None:
        """Record how the run ended: complete, failed or interrupted."""
        self._save(self.head | {"state": state, "reason": reason})

    def evaluation(self, step: int) -> Path:
        """The file with the samples of the evaluation after a step; there is none where nothing was evaluated."""
        return self.folder / "evaluations" / f"step-{step:06d}.jsonl"

    def append(self, step: Step, samples: str = "") -> None:
        """Record a step; one that is recorded already (the run went back to a checkpoint) stays as it is.

        Args:
            step: The step.
            samples: What its evaluation sampled, as lines. They are written first, so that a step that is recorded
                has them.
        """
        known = self.steps and step.step <= self.steps[-1].step and not (step.final and not self.steps[-1].final)
        evaluation = self.evaluation(step.step)
        if samples and not (known and evaluation.exists()):
            write_atomically(evaluation, samples)
        if known:
            return
        line = asdict(step) | {"at": step.at.isoformat()}
        data = (json.dumps(line) + "\n").encode()
        with self._lines.open("r+b" if self._lines.exists() else "wb") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(data)
        self._size += len(data)
        self.steps.append(step)

    def _save(self, head: dict[str, Any]) -> None:
        self.head = head
        write_atomically(self._head, json.dumps(head, indent=2) + "\n")

    def _read(self) -> Iterator[Step]:
        """The whole lines; a part of one, left by a crash, is cut off by the next that is written."""
        if not self._lines.exists():
            return
        text = self._lines.read_bytes()
        self._size = text.rfind(b"\n") + 1
        for line in text[: self._size].splitlines():
            fields = json.loads(line)
            yield Step(**{**fields, "at": datetime.fromisoformat(fields["at"])})
