"""Calls in a child process that can be killed: a call that hangs or dies fails alone, and costs its time limit.

Symbolic graders and user functions may run for ever on some answer. An alarm works in the main thread only, a
thread can't be killed, and a process pool keeps its hung workers; so each `Worker` has one child, sends it a
batch, reads the results as they come, and kills and replaces it when one is late. It works from any thread.
The child is a fresh interpreter (`dapo.killable_child`), never a fork of a process that holds torch's threads.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from dapo.errors import DapoError

STDERR = 2
START_S = 120.0
"""Seconds that a child may take to import what it calls."""
SENT_AT_ONCE = 256
"""Calls in one message: enough to make its cost small, few enough to send again after a kill."""
FRUITLESS_STARTS = 3
"""Children that may die one after the other, none of them at a call's hands, before it is an error."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call without a result."""

    kind: str
    """The exception's type, or `Timeout` or `Died`: failures of one kind look alike."""
    reason: str
    """In words."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a child does: `make(*args)` once, then its result on each call's arguments.

    `make` must be a function or class that can be imported, and its results must be picklable.
    """

    make: Callable[..., Callable[..., Any]]
    args: tuple[object, ...] = ()
    memory_gb: float | None = None
    """Address space of the child in GiB; None leaves it as it is."""


class Worker:
    """One child, started at the first call and again whenever it had to be killed. For one thread at a time."""

    def __init__(self, task: Task, timeout_s: float) -> None:
        self.task = task
        self.timeout_s = timeout_s
        self._child: _Child | None = None

    def run(self, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return each call's result, or `Failed`.

        Raises:
            DapoError: no child can be started, so that nothing at all could be graded.
        """
        results: list[Any] = []
        fruitless = 0
        try:
            while len(results) < len(calls):
                error = self._run_some(calls[len(results) : len(results) + SENT_AT_ONCE], results)
                fruitless = fruitless + 1 if error else 0
                if fruitless == FRUITLESS_STARTS:
                    raise DapoError(f"the grading process can't be started: {error}")
        except BaseException:
            self.close()  # results that nobody read would answer the next batch
            raise
        return results

    def _run_some(self, calls: Sequence[Mapping[str, Any]], results: list[Any]) -> str:
        """Append results until all are there or the child is lost; return what was wrong with its start."""
        try:
            self._child = self._child or _Child(self.task, self.timeout_s)
        except (OSError, EOFError) as error:
            return f"{type(error).__name__}: {error}"
        connection = self._child.connection
        with contextlib.suppress(OSError):  # a child that dies in between is noticed when its result is read
            connection.send(calls)
        for _ in calls:
            try:
                if connection.poll(self.timeout_s):
                    results.append(connection.recv())
                    continue
                results.append(Failed("Timeout", f"it took longer than {self.timeout_s:g} s"))
            except (OSError, EOFError, pickle.UnpicklingError):
                results.append(Failed("Died", f"its process died ({self._child.exit_reason()})"))
            self.close()
            break
        return ""

    def close(self) -> None:
        """Kill the child, if there is one."""
        if self._child is not None:
            self._child.stop()
            self._child = None


class Pool:
    """Several workers that share each batch evenly."""

    def __init__(self, task: Task, timeout_s: float, size: int = 1) -> None:
        self.workers = [Worker(task, timeout_s) for _ in range(size)]

    def run(self, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return each call's result, or `Failed`, in order.

        Raises:
            DapoError: no child can be started.
        """
        busy = self.workers[: max(1, len(calls))]
        if len(busy) == 1:
            return busy[0].run(calls)
        step = len(busy)
        shares = [calls[first::step] for first in range(step)]
        results: list[Any] = [None] * len(calls)
        with ThreadPoolExecutor(step) as threads:
            found = threads.map(Worker.run, busy, shares)
            for first, share in enumerate(found):
                results[first::step] = share
        return results

    def close(self) -> None:
        """Kill every child; a later call starts new ones."""
        for worker in self.workers:
            worker.close()


class _Child:
    """A running child and the connection to it."""

    def __init__(self, task: Task, timeout_s: float) -> None:
        """Start it, and wait until it has imported what it calls.

        Raises:
            DapoError: the task can't be made there.
            OSError, EOFError: it died, or took too long.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-uPm", "dapo.killable_child", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=STDERR,  # what a user's function prints is no output of ours
                # Its own group: Ctrl-C is for this process to handle, and a kill takes the child's children too.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.process = process
        self.connection = Connection(ours.detach())
        self.stop = weakref.finalize(self, _stop, process, self.connection)
        try:
            self.connection.send((list(sys.path), timeout_s, task.memory_gb))
            self.connection.send((task.make, task.args))
            if not self.connection.poll(START_S):
                raise TimeoutError(f"it wasn't ready after {START_S:g} s")
            if error := self.connection.recv():
                raise DapoError(error)
        except BaseException:
            self.stop()
            raise

    def exit_reason(self) -> str:
        """How a child whose connection broke ended."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _stop(process: subprocess.Popen[bytes], connection: Connection) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()
