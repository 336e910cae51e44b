"""Running one attempt in the process that trains, and the threads that it gets."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sweep_platform.driver import Crashed, Ended
from sweep_platform.errors import one_line
from sweep_platform.executors.payload import encode
from sweep_platform.trainers import StepMetrics, Trainer

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def run_attempt(trainer: Trainer, config: Mapping[str, Any], report: Callable[[bytes], bool]) -> Ended | Crashed:
    """Train, and say how it ended. What `report` raises is raised again once the trainer has stopped.

    A trainer that is told to stop may leave a checkpoint first, so a failure in `report` stops it like that.

    Args:
        trainer: What trains.
        config: Its config, plain.
        report: Takes each step's encoded report, and says whether to go on.
    """
    failures: list[BaseException] = []

    def guarded(step: StepMetrics) -> bool:
        data = encode(step)  # what is no report raises into the trainer whose fault it is
        try:
            return not failures and report(data)
        except BaseException as error:
            failures.append(error)
            return False

    try:
        trainer.train(trainer.Config.model_validate(config), guarded)
        outcome: Ended | Crashed = Ended()
    except (Exception, SystemExit) as error:
        outcome = Crashed(one_line(error), traceback.format_exc())
    if failures:
        raise failures[0]
    return outcome


def thread_environment(threads: int) -> dict[str, str]:
    """The environment that holds numeric libraries to so many threads, if it is set before they load."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def child_environment(threads: int) -> dict[str, str]:
    """What a new process needs in its environment to find what this one can import, and to keep to its threads."""
    path = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    return {**thread_environment(threads), "PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def threads_limited(threads: int) -> Iterator[None]:
    """Hold this process to so many threads: what is yet to load by its environment, and torch if loaded."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(thread_environment(threads))
    torch = sys.modules.get("torch")
    torch_before = torch.get_num_threads() if torch is not None else None
    if torch is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if torch is not None:
            torch.set_num_threads(torch_before)
