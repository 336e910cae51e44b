"""The command `platform` in processes that start at once, forked from one that has loaded all but Ray and torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

import psutil
from sweep_platform.driver.holding import LEASE_S

READY = b"\0"
"""What a process says first, when signals reach the command and not what starts it."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["kills.process"])


class Command:
    """One process that runs `platform ARGUMENTS`.

    Args:
        arguments: of the command.
        environment: variables that it sees beside this process's.
        lease_s: how long its lease lives without a word.
    """

    def __init__(self, arguments: Sequence[object], environment: Mapping[str, str], lease_s: float = LEASE_S) -> None:
        reader, writer = _context.Pipe(duplex=False)
        words = [str(argument) for argument in arguments]
        self._process = _context.Process(target=_run, args=(words, dict(environment), lease_s, writer))
        self._process.start()
        self._reader, self._said = reader, bytearray()
        writer.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.pid = self._process.pid or 0
        while not self._said and self.alive:
            time.sleep(0.002)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.exitcode is None

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._said.removeprefix(READY).decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.alive:
            os.kill(self.pid, number)

    def sleep(self, seconds: float) -> bool:
        """Let it run for so long, or to its end; whether it still runs."""
        self._process.join(seconds)
        return self.alive

    def end(self, seconds: float = 120.0) -> int:
        """Wait for its end; its exit code, negative for a signal.

        Raises:
            AssertionError: it doesn't end.
        """
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            raise AssertionError(f"the command hangs after {seconds} s: {self.said}")
        self._listener.join(1.0)
        return code

    def family(self) -> list[psutil.Process]:
        """Its processes: children and theirs."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _listen(self) -> None:
        try:
            while chunk := os.read(self._reader.fileno(), 65536):
                self._said += chunk
        except OSError:
            pass


def _run(words: list[str], environment: dict[str, str], lease_s: float, output: Connection) -> None:
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
    from kills import process  # loaded already, in the process that this one is forked from

    process.run(words, environment, lease_s)
