"""Training on several processes of this machine: started here, heard here, and all ended if one fails."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from dapo.batch import Cost, EvaluatedSample, Report, StepMetrics
from dapo.config import Config
from dapo.errors import DapoError
from dapo.interrupt import interrupts_wait

POLL_S = 0.5
"""Between two looks for a process that died."""
END_S = 60.0
"""In which processes end by themselves once they were told to."""
_LAST_WORDS = 2000
"""Bytes of a process's output that are looked at for the reason of its end."""


def processes_of(config: Config) -> int:
    """How many processes `train` starts for a config here; 1 where it, or torchrun, has them already."""
    if "WORLD_SIZE" in os.environ:
        return 1
    if config.trainer.nnodes > 1:
        raise DapoError(
            f"trainer.nnodes: got {config.trainer.nnodes}; need 1, or `torchrun -m dapo.train` on every machine; "
            "set it to 1, or start it so"
        )
    return config.trainer.n_gpus_per_node or 1


def train_together(config: Config, report: Report, processes: int) -> None:
    """Train on so many processes of this machine; what one process alone would do and raise, these do and raise.

    Raises:
        DapoError: the run can't go on, or a process died.
        KeyboardInterrupt: as `dapo.train.train` has it.
    """
    with interrupts_wait() as interrupt, _started(config, processes) as (connection, children):
        while True:
            message = _heard(connection, children)
            if message is None:
                break
            if "line" in message:
                logging.getLogger(message["logger"]).log(message["level"], message["line"])
                continue
            if "error" in message:
                raise DapoError(message["error"])
            go_on = report(step_from(message)) and interrupt.number is None
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps(go_on).encode())
        for child in children:
            child.process.wait(END_S)


def step_to(step: StepMetrics) -> dict[str, Any]:
    """A step's report as JSON has it."""
    return asdict(step)


def step_from(content: dict[str, Any]) -> StepMetrics:
    """Undo `step_to`."""
    samples = tuple(EvaluatedSample(**sample) for sample in content["evaluation"])
    return StepMetrics(**{**content, "cost": Cost(**content["cost"]), "evaluation": samples})


class _Child:
    """One of the processes, and the file that its output goes to."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.process = process
        self.output = output

    def last_words(self) -> str:
        """The last line that it wrote."""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - _LAST_WORDS))
        lines = self.output.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


@contextmanager
def _started(config: Config, processes: int) -> Iterator[tuple[Connection, list[_Child]]]:
    """Start the processes; at the end of the block none is left."""
    ours, theirs = socket.socketpair()
    children: list[_Child] = []
    connection = Connection(ours.detach())
    try:
        with theirs:
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(processes)}
            for rank in range(processes):
                environment = {**os.environ, **rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(_start(config, environment, theirs))
        yield connection, children
    finally:
        connection.close()
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
            child.output.close()


def _start(config: Config, environment: dict[str, str], theirs: socket.socket) -> _Child:
    output = tempfile.TemporaryFile()
    handed = [theirs.fileno()] if environment["RANK"] == "0" else []
    process = subprocess.Popen(
        [sys.executable, "-um", "dapo.rank", *map(str, handed)],
        pass_fds=handed,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for this process, which lets them end an update and save it
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if process.stdin is not None:
        with process.stdin as stdin, contextlib.suppress(BrokenPipeError):
            stdin.write(config.model_dump_json().encode())
    return _Child(process, output)


def _heard(connection: Connection, children: list[_Child]) -> dict[str, Any] | None:
    """The leading process's next message; None once it is done.

    Raises:
        DapoError: a process died.
    """
    while not wait([connection], POLL_S):
        _check(children)
    try:
        message: dict[str, Any] = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(END_S)
        _check(children)
        return None
    return message


def _check(children: list[_Child]) -> None:
    for rank, child in enumerate(children):
        code = child.process.poll()
        if code not in (None, 0):
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            raise DapoError(f"process {rank} of {len(children)} ended ({how}): {child.last_words()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
