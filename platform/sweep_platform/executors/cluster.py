"""A connection to Ray: a cluster that is joined, or one on this machine that is gone again afterwards."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import ray

from sweep_platform.errors import PlatformError, one_line
from sweep_platform.executors.address import check_address
from sweep_platform.executors.attempt import child_environment

_SOCKET_ROOM = 40
"""Characters of the temporary folder's path; Ray adds up to 65, and a socket's path may have 107."""
_SCRATCH = "sweep-"
"""How the names of our folders in it begin."""
_LOCK = "lock"
"""In such a folder: locked while its process lives."""
_OBJECT_STORE = 100 * 2**20
"""Bytes of shared memory for Ray's objects, which are single reports; Ray would take 30 % of all memory."""
_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
"""Keeps Ray and Tune from writing, phoning home, changing folders and handling Ctrl-C."""


@contextmanager
def connected(address: str | None, cores: int, threads: int) -> Iterator[Path]:
    """Hold a connection to a cluster, and a folder for what Ray and Tune insist on writing.

    A process that is connected already keeps that connection, as it is.

    Args:
        address: The cluster to join; None starts one here, which ends with the connection.
        cores: CPUs of one that is started here.
        threads: CPU threads of each worker process, set before anything in it is loaded.

    Raises:
        BadInput: nothing listens at the address.
        PlatformError: the cluster can't be joined, or none can be started.
    """
    ours = not ray.is_initialized()
    with _environment(_QUIET), _silent(), _scratch() as folder:
        try:
            if ours:
                with _sigterm_interrupts():
                    _connect(address, cores, threads, folder)
            yield folder
        finally:
            if ours:
                ray.shutdown()


def _connect(address: str | None, cores: int, threads: int, folder: Path) -> None:
    local: dict[str, Any] = {
        "num_cpus": cores,
        "object_store_memory": _OBJECT_STORE,
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }
    if address:
        check_address(address)
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            configure_logging=True,
            runtime_env={"env_vars": {**_QUIET, **child_environment(threads)}},
            **({} if address else local),
        )
    except Exception as error:
        where = f"join the cluster at {address}" if address else "start on this machine"
        raise PlatformError(f"Ray can't {where}: {one_line(error)}") from error


def check_node() -> None:
    """See whether Ray still runs on this machine.

    Raises:
        PlatformError: its process (raylet) is gone, without which nothing is ever placed or ends.
    """
    here = ray.get_runtime_context().get_node_id()
    if not any(node["NodeID"] == here and node["Alive"] for node in cast(Any, ray).nodes()):
        need = "it to run as long as the sweep"
        do = "see what ended it (memory that ran out, or somebody), then run the same command"
        raise PlatformError(f"Ray: got the end of its process on this machine (raylet); need {need}; {do}")


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder; first, those that killed processes left are removed."""
    default = tempfile.gettempdir()
    place = Path(default if len(default) <= _SOCKET_ROOM else "/tmp")
    for left in place.glob(f"{_SCRATCH}*/{_LOCK}"):
        with suppress(OSError), left.open() as lock:  # refused: another user's, or its process lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=place))
    try:
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / _LOCK)  # so nobody ever finds ours unlocked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Keep the handler of SIGTERM, over which connecting puts Ray's own; meanwhile the signal is an interrupt.

    Ray has two handlers. One raises SystemExit, which is lost where Python ignores exceptions, such as in a finaliser;
    so the signal itself is looked for. The other, of its C++ part, sets an alarm that aborts the process 3 s later.

    Raises:
        KeyboardInterrupt: the signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before, exited = signal.set_wakeup_fd(writer.fileno()), None
        try:
            yield
        except SystemExit as error:
            exited = error
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGTERM, handler)
        writer.sendall(b"\0")  # so that there is something to read
        if signal.SIGTERM in reader.recv(4096):
            signal.alarm(0)
            raise KeyboardInterrupt from exited
    if exited is not None:
        raise exited


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray's loggers quiet: what they say of trials, the driver says better."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
