"""Trials in this process, one after the other: for debugging, and for machines with one core."""

from __future__ import annotations

import time

from sweep_platform.driver import Assignment, Driver
from sweep_platform.errors import PlatformError, one_line
from sweep_platform.executors.attempt import run_attempt, threads_limited
from sweep_platform.executors.payload import decode
from sweep_platform.spec.model import available_cores

WAIT_S = 0.1
"""Seconds between two questions for the next trial while none can start."""


class InlineExecutor:
    """Runs each trial to its end before the next; the threads are those it would have beside others."""

    def run(self, driver: Driver) -> None:
        """Run trials until nothing is left to start."""
        if driver.finished:
            return
        self._prepare(driver)
        while (step := driver.next_trial()) is not None:
            if isinstance(step, Assignment):
                self._run(driver, step)
            else:  # a trial that was lost waits before it is tried again
                time.sleep(WAIT_S)

    def _prepare(self, driver: Driver) -> None:
        threads = driver.spec.hardware.cores or available_cores()
        with threads_limited(threads):
            config = driver.trainer.Config.model_validate(driver.prepare_config(threads))
            try:
                driver.trainer.prepare(config, driver.observers.prepare_progress)
            except Exception as error:
                raise PlatformError(f"{driver.spec.trainer} could not prepare: {one_line(error)}") from error

    def _run(self, driver: Driver, assignment: Assignment) -> None:
        def report(data: bytes) -> bool:
            return driver.report(assignment, decode(data))

        with threads_limited(assignment.threads):
            folder = driver.workplace(assignment.number)
            outcome = run_attempt(driver.trainer, assignment.config, report, folder)
        driver.finish(assignment, outcome)
