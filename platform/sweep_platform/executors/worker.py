"""The process that trains, under Ray Tune: the trainer in a thread, its reports handed over one at a time.

A report waits until the driver has recorded it and Tune asks for the next, so nothing runs ahead of the
ledger, and a trainer that is stopped gets to write its checkpoint.
"""

from __future__ import annotations

import os
import queue
import threading
import traceback
from typing import Any

from ray.tune import Trainable

from sweep_platform.driver import Crashed, Outcome
from sweep_platform.driver.placing import nodes_of
from sweep_platform.errors import one_line
from sweep_platform.executors.attempt import run_job
from sweep_platform.executors.payload import Job

JOB, STEP, END = "job", "step", "end"
"""Keys: the job in Tune's config; a step's bytes, or how the attempt ended, in Tune's result."""
GRACE_S = 120.0
"""Seconds that a stopped trainer gets to write its checkpoint."""


class TrialWorker(Trainable):
    """Tune's view of one attempt; reused for the next one, so that torch is loaded once."""

    def setup(self, config: dict[str, Any]) -> None:
        """Take the first job."""
        self._conversation = _Conversation(Job.load(config[JOB]))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another job in the same process."""
        self._conversation.stop()
        self._conversation = _Conversation(Job.load(new_config[JOB]))
        return True

    def step(self) -> dict[str, Any]:
        """Let the trainer go on to its next report, or its end, and return it."""
        return self._conversation.next()

    def cleanup(self) -> None:
        """Stop the trainer, if it still runs."""
        self._conversation.stop()


class _Conversation:
    """A trainer that runs in a thread and waits at each report."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def next(self) -> dict[str, Any]:
        """Answer the last report with "go on", and wait for what the trainer says next."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)
            self._thread.start()
        else:
            self._answers.put(True)
        return self._said.get()

    def stop(self) -> None:
        """Answer with "stop", and wait for the trainer to end. One that doesn't takes its process with it."""
        self._stopped = True
        self._answers.put(False)
        if self._thread is not None:
            self._thread.join(GRACE_S)
            if self._thread.is_alive():
                os._exit(1)

    def _run(self) -> None:
        try:
            outcome: Outcome = self._trained()
        except BaseException as error:  # whatever it is, `next` waits for a word
            outcome = Crashed(one_line(error), traceback.format_exc())
        self._said.put({END: outcome})

    def _trained(self) -> Outcome:
        if nodes_of(self._job.config) == 1:
            return run_job(self._job, self._report)
        from sweep_platform.executors.nodes import run_over_nodes

        return run_over_nodes(self._job, self._report)

    def _report(self, data: bytes) -> bool:
        if self._stopped:
            return False
        self._said.put({STEP: data})
        return self._answers.get()
