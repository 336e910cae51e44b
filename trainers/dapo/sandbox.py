"""Running a program that the policy wrote: in a process of its own, which can compute and print, and nothing else.

Each program has a fresh interpreter (`dapo.sandbox_child`) without site packages, environment or inherited files.
Before it runs, that process gives up for good:

- the network, other processes, and signals to them: their system calls are refused (`dapo.sandbox_filter`);
- writing: no file can be made, changed or removed anywhere, so that there is nothing to clean up and no disk to fill;
- reading, but for Python's standard library and the system's shared libraries (Landlock): no data, no checkpoints,
  no other process's memory or environment;
- more memory, CPU time and open files than its limits. It is killed when it takes too long, prints too much, or when
  the trainer dies.

Not protected from: bugs of the kernel or the processor; learning which paths exist (their names and sizes, not their
contents); using the CPU of one core and the memory it may have for as long as it may. This needs Linux with Landlock
(5.13 or later) and seccomp on x86_64 or aarch64, and no privileges: containers and root will do. Where it isn't to be
had, no program runs at all.

What a program prints should not depend on time or chance: a run in which it does can't be repeated bit by bit.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import platform
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple, cast

from dapo.errors import DapoError
from dapo.sandbox_filter import ARCHITECTURES, call_filter

MAX_OUTPUT = 2**16
"""Bytes that a program may print; it is killed when it prints more."""
START_S = 60.0
"""Seconds that an interpreter may take to start and lock itself in."""
OPEN_FILES = 64
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
CHILD = Path(__file__).with_name("sandbox_child.py")
RAISED = 1
"""Exit code of a program that raised; its output says what."""
NO_OUTPUT = "(no output)"


class Limits(NamedTuple):
    """What a program may use."""

    timeout_s: float
    """Wall time; CPU time is limited to as much, and a second."""
    memory_mb: int
    """Address space in MiB."""


class Outcome(NamedTuple):
    """What a program printed, and how it ended in words."""

    text: str
    failed: bool


def run_python(code: str, limits: Limits) -> Outcome:
    """Run a program, from any thread. What the program does wrong is in the outcome.

    Raises:
        DapoError: a program can't be locked in here.
    """
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        raise DapoError(f"no sandbox for {sys.platform} on {platform.machine()}")
    with _started(code, limits) as process:
        return _finished(process, limits)


@lru_cache(maxsize=1)
def sandbox_fault() -> str | None:
    """Say why no program can be locked in on this machine; None: one was, just now."""
    try:
        outcome = run_python("6 * 7", Limits(START_S, 256))
    except DapoError as error:
        return str(error)
    return None if outcome == Outcome("42", failed=False) else f"a program that should print 42 said {outcome.text!r}"


@contextlib.contextmanager
def _started(code: str, limits: Limits) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that is locked in and runs the program; it is gone afterwards.

    Raises:
        DapoError: it can't be started, or not be locked in.
    """
    told, status = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, told)
        try:
            with open(os.memfd_create("request"), "w+b") as request:
                request.write(marshal.dumps(_request(code, limits)))
                request.seek(0)
                process = stack.enter_context(_process(request, status))
        except OSError as error:
            raise DapoError(f"no process can be started ({error})") from error
        finally:
            os.close(status)
        stack.callback(process.kill)
        said = os.read(told, 2**12) if _has_come(told, START_S) else b"it wasn't ready in time"
        if said != b"ready":
            raise DapoError(f"no process can be locked in ({said.decode(errors='replace') or 'it died'})")
        yield process


def _process(request: IO[bytes], status: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-s", "-P", "-B", "-u", "-X", "utf8", str(CHILD), str(status)],
        stdin=request,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[status],
        cwd="/",
        env={"PYTHONHASHSEED": "0"},
        start_new_session=True,
    )


def _request(code: str, limits: Limits) -> dict[str, object]:
    """What the child is told."""
    seconds = math.ceil(limits.timeout_s) + 1
    return {
        "code": code,
        "raised": RAISED,
        "parent": os.getpid(),
        "filter": call_filter(platform.machine()),
        "readable": [*LIBRARIES, *DEVICES, sysconfig.get_path("stdlib"), os.path.join(sys.base_prefix, "lib")],
        "limits": {
            "RLIMIT_CPU": seconds,
            "RLIMIT_AS": limits.memory_mb * 2**20,
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_FSIZE": 0,
            "RLIMIT_CORE": 0,
        },
    }


def _finished(process: subprocess.Popen[bytes], limits: Limits) -> Outcome:
    """Wait for the program's end, within its limits, and collect what it printed."""
    output, trouble, code = b"", "", 0
    deadline = time.monotonic() + limits.timeout_s
    reader = cast(IO[bytes], process.stdout).fileno()
    while not trouble:
        if len(output) > MAX_OUTPUT:
            output, trouble = output[:MAX_OUTPUT], f"it printed more than {MAX_OUTPUT} bytes"
        elif not _has_come(reader, deadline - time.monotonic()):
            trouble = f"it took longer than {limits.timeout_s:g} s"
        elif some := os.read(reader, 2**16):
            output += some
        else:
            break
    if not trouble:
        try:
            code = process.wait(max(deadline - time.monotonic(), 0.1))
            trouble = _ending(code)
        except subprocess.TimeoutExpired:
            trouble = f"it took longer than {limits.timeout_s:g} s"
    text = output.decode("utf-8", errors="replace").strip("\n")
    if trouble:
        return Outcome(f"{text}\nerror: {trouble}".lstrip("\n"), failed=True)
    return Outcome(text or NO_OUTPUT, failed=code != 0)


def _has_come(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, or the end; not with `select`, which knows 1,024 descriptors only."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(seconds, 0.0) * 1000))


def _ending(code: int) -> str:
    """Say what is wrong with how a program ended; nothing, if nothing is or its output says so."""
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}" if code not in (0, RAISED) else ""
