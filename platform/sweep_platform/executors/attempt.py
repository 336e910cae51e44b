"""Running one attempt in the process that trains, and the threads that it gets."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sweep_platform.driver import Crashed, Ended
from sweep_platform.errors import one_line
from sweep_platform.executors.payload import Job, encode
from sweep_platform.logs import logged
from sweep_platform.trainers import StepMetrics, Trainer, load_trainer

OUTPUT = "output.log"
"""In the trial's folder: what the trainer printed."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def run_job(job: Job, report: Callable[[bytes], bool], rank: int = 0) -> Ended | Crashed:
    """Do one attempt in a process that is there for it, or this process's part of it.

    Args:
        job: The attempt.
        report: As `run_attempt` has it.
        rank: Of this process among those that train together; the leading one, 0, keeps the trainer's log.
    """
    folder = Path(job.folder)
    _print_to(folder / (OUTPUT if rank == 0 else f"output-{rank}.log"))
    with threads_limited(job.threads):
        trainer = load_trainer(job.trainer)
        trainer.prepare(trainer.Config.model_validate(job.config))
        return run_attempt(trainer, job.config, report, folder if rank == 0 else None)


def run_attempt(
    trainer: Trainer, config: Mapping[str, Any], report: Callable[[bytes], bool], folder: Path | None
) -> Ended | Crashed:
    """Train, and say how it ended. What `report` raises is raised again once the trainer has stopped.

    A trainer that is told to stop may leave a checkpoint first, so a failure in `report` stops it like that.

    Args:
        trainer: What trains.
        config: Its config, plain.
        report: Takes each step's encoded report, and says whether to go on.
        folder: The trial's, for the trainer's log; None keeps none.
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
        with nullcontext() if folder is None else logged(trainer, folder):
            trainer.train(trainer.Config.model_validate(config), guarded)
        outcome: Ended | Crashed = Ended()
    except (Exception, SystemExit) as error:
        outcome = Crashed(one_line(error), traceback.format_exc())
    if failures:
        raise failures[0]
    return outcome


def _print_to(file: Path) -> None:
    """Append what this process prints to a file, from here on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


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
