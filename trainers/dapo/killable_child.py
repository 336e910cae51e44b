"""The child of `dapo.killable`: makes a function once, then answers batches of calls until the connection ends.

Whoever started it kills it when a call takes too long. If that process is gone, it ends by itself, in a hung
call too: a thread watches for its parent, and the kernel stops a call that computes far beyond its limit,
which such a thread can't see where C code never lets go of the interpreter.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from dapo.killable import Failed

WATCH_S = 0.5
"""Seconds between looks for the parent."""
CPU_MARGIN_S = 1
"""CPU seconds beyond a call's limit at which the kernel ends the process."""


def main() -> None:
    """Serve the connection whose file descriptor is the first argument, for the parent whose id is the second."""
    threading.Thread(target=_watch, args=(int(sys.argv[2]),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    try:
        path, timeout_s, memory_gb = connection.recv()
        sys.path[:] = path
        if memory_gb is not None:
            _lower(resource.RLIMIT_AS, int(memory_gb * 2**30))
        _lower(resource.RLIMIT_CORE, 0)
        function = _make(connection)
        while function is not None:
            for call in connection.recv():
                limit_cpu(timeout_s)
                connection.send(_answer(function, call))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody asks any more


def _make(connection: Connection) -> Callable[..., Any] | None:
    """Make the function, and tell how that went: None, or an error in words."""
    try:
        make, args = connection.recv()
        function: Callable[..., Any] = make(*args)
    except EOFError:
        raise
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        return None
    connection.send(None)
    return function


def _answer(function: Callable[..., Any], call: Mapping[str, Any]) -> object:
    try:
        return function(**call)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and the like from a user's function: its failure, not ours
        return Failed(type(error).__name__, str(error))


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


def limit_cpu(timeout_s: float) -> None:
    """Let this process compute for one more call; all its threads count."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    allowed = (timeout_s + CPU_MARGIN_S) * (os.cpu_count() or 1)
    _lower(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + allowed) + 1)


def _lower(kind: int, value: int) -> None:
    """Set a soft limit, within the hard one."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
