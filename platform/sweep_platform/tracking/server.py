"""MLflow's page on the platform's store: started, announced once it answers, stopped with its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from sweep_platform.errors import BadInput, Fault, PlatformError
from sweep_platform.signals import interruptible
from sweep_platform.tracking.store import Store

HOST = "127.0.0.1"
DEFAULT_PORT = 5000
START_SECONDS = 90.0
_STOP_SECONDS = 5.0


def serve(store: Store, port: int | None = None, announce: Callable[[str], None] = print) -> None:
    """Run MLflow's server until it is interrupted (Ctrl-C or SIGTERM). For the main thread.

    Args:
        store: What to show. A store that is a server already is only announced.
        port: Where to listen, on 127.0.0.1; None takes 5000 or, if that is taken, a free one.
        announce: Takes the URL once the page answers.

    Raises:
        BadInput: `port` is taken, or the store can't be used.
        PlatformError: the server did not start; the message ends with what it said.
    """
    if not store.local:
        announce(store.uri)
        return
    # A server in a session of its own hears no Ctrl-C; leaving the `with` block stops it.
    with suppress(KeyboardInterrupt), interruptible(), running(store, port) as (url, process):
        announce(url)
        process.wait()
        raise PlatformError(f"MLflow's server ended with exit code {process.returncode}")


@contextmanager
def running(store: Store, port: int | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the server around a block: yields its URL, once it answers, and its process.

    Raises:
        BadInput: `port` is taken, or the store can't be used.
        PlatformError: the server did not start.
    """
    chosen = _choose_port(port)
    # The database is created here, by one process, before the server's workers open it.
    with store.told():
        store.client.search_experiments(max_results=1)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                _command(store, chosen), env=_environment(store), stdout=out, stderr=out, start_new_session=True
            )
        try:
            url = f"http://{HOST}:{chosen}"
            _wait_until_up(url, process, log)
            yield url, process
        finally:
            _stop(process)


def _command(store: Store, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--artifacts-destination", store.artifacts.absolute().as_uri()),
        *("--host", HOST, "--port", str(port), "--workers", "1"),
    ]


def _environment(store: Store) -> dict[str, str]:
    """The server's: the store, whose password a command line would show, and neither telemetry nor job runners.

    Those run evaluation jobs, which nothing here starts.
    """
    return os.environ | {
        "MLFLOW_BACKEND_STORE_URI": store.uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _choose_port(port: int | None) -> int:
    if port is not None:
        if not _free(port):
            need = "a port that nothing listens on"
            raise BadInput([Fault("--port", f"{port}, which is taken", need, "choose another, or leave --port out")])
        return port
    return DEFAULT_PORT if _free(DEFAULT_PORT) else _any_free()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do, so that a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _any_free() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with opener.open(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    told = log.read_text(errors="replace").strip().splitlines()[-15:]
    raise PlatformError("MLflow's server did not start; it said:\n" + "\n".join(told))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which share its process group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
