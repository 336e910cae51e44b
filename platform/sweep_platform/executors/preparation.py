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
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from sweep_platform.errors import PlatformError, one_line
from sweep_platform.executors.attempt import child_environment
from sweep_platform.trainers import load_trainer

Progress = Callable[[str, int, int], None]


class Preparation:
    """A preparation that was started; `wait` for it before the first trial.

    Args:
        trainer: The trainer's name.
        config: Its config, plain.
        threads: CPU threads that it may use.
        progress: Told how far it is, from a thread, until `wait` returns.
    """

    def __init__(self, trainer: str, config: Mapping[str, Any], threads: int, progress: Progress) -> None:
        self._trainer = trainer
        self._progress = progress
        self._failure: str | None = None
        self._noise: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env={**os.environ, **child_environment(threads)},
            start_new_session=True,
        )
        task = json.dumps({"trainer": trainer, "config": config})
        self._thread = threading.Thread(target=self._relay, args=(task,), name="preparation", daemon=True)
        self._thread.start()

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # it and what it started have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.join()
        self._noise.close()

    def wait(self) -> None:
        """Return when it is over.

        Raises:
            PlatformError: the trainer failed.
        """
        self._thread.join()
        code = self._process.wait()
        failure = self._failure
        if failure is None and code != 0:
            self._noise.seek(0)
            lines = self._noise.read().decode(errors="replace").strip().splitlines()
            failure = f"its process ended with {code}{': ' + lines[-1] if lines else ''}"
        if failure is not None:
            raise PlatformError(f"{self._trainer} could not prepare: {failure}")

    def _relay(self, task: str) -> None:
        """Hand the task over, and pass on what is said until the process closes its end."""
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        with pipes.stdout:
            with suppress(BrokenPipeError), pipes.stdin:  # it died at once: `wait` says so
                pipes.stdin.write(task.encode() + b"\n")
            for line in pipes.stdout:
                said = json.loads(line)
                if "failed" in said:
                    self._failure = said["failed"]
                else:
                    self._progress(said["what"], said["done"], said["total"])


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
