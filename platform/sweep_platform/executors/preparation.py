"""`Trainer.prepare` in a process of its own, so that the driver's stays free of what trainers load.

Run as a module, it takes one line of JSON (the trainer's name and a config) on standard input and writes
progress as lines of JSON to standard output; what the trainer itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from sweep_platform.errors import PlatformError
from sweep_platform.executors.attempt import child_environment, one_line
from sweep_platform.trainers import load_trainer

Progress = Callable[[str, int, int], None]


class Preparation:
    """A preparation that was started; `wait` for it before the first trial."""

    def __init__(self, trainer: str, config: Mapping[str, Any], threads: int) -> None:
        self._trainer = trainer
        self._noise: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env={**os.environ, **child_environment(threads)},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        task = json.dumps({"trainer": trainer, "config": config})
        with suppress(BrokenPipeError):  # it died at once: `wait` says so
            self._process.stdin.write(task.encode() + b"\n")
            self._process.stdin.flush()
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # it and what it started have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._noise.close()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait(self, progress: Progress) -> None:
        """Pass its progress on until it is over.

        Raises:
            PlatformError: the trainer failed.
        """
        assert self._process.stdout is not None
        failure = None
        for line in self._process.stdout:
            said = json.loads(line)
            if "failed" in said:
                failure = said["failed"]
            else:
                progress(said["what"], said["done"], said["total"])
        code = self._process.wait()
        if failure is None and code != 0:
            self._noise.seek(0)
            lines = self._noise.read().decode(errors="replace").strip().splitlines()
            failure = f"its process ended with {code}{': ' + lines[-1] if lines else ''}"
        if failure is not None:
            raise PlatformError(f"{self._trainer} could not prepare: {failure}")


def _main() -> None:
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def say(**fields: Any) -> None:
        pipe.write(json.dumps(fields) + "\n")

    task = json.loads(sys.stdin.readline())
    try:
        trainer = load_trainer(task["trainer"])
        config = trainer.Config.model_validate(task["config"])
        trainer.prepare(config, lambda what, done, total: say(what=what, done=done, total=total))
    except Exception as error:
        say(failed=one_line(error))


if __name__ == "__main__":
    _main()
