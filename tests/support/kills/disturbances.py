"""What happens to a sweep's processes and databases, and which exit codes may follow."""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from kills.command import Command
from kills.sweep import Shaken

ENDED = (1, 2)
"""Exit codes of a command that can't write; 2 only while it opens the ledger."""
INTERRUPTED = (130, -signal.SIGTERM, -signal.SIGINT)


@dataclass(frozen=True)
class Disturbance:
    """One kind.

    Args:
        strike: does it; false if there was nothing yet to be struck.
        codes: how the command may end by it; 0 it always may.
        ends: whether the command ends by it. Otherwise it goes on and is disturbed again.
    """

    strike: Callable[[Command, random.Random], bool]
    codes: tuple[int, ...] = ()
    ends: bool = True


def by_signal(number: signal.Signals) -> Disturbance:
    """Send the driver a signal."""

    def send(command: Command, _chance: random.Random) -> bool:
        command.signal(number)
        return True

    return Disturbance(send, (-signal.SIGKILL,) if number is signal.SIGKILL else INTERRUPTED)


def signals() -> dict[str, Disturbance]:
    """A kill, a scheduler's end and Ctrl-C."""
    return {number.name: by_signal(number) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)}


def no_room(command: Command, chance: random.Random) -> bool:
    """Let each write of the driver's to a file beyond a size fail: a real I/O error in the middle of anything."""
    try:
        psutil.Process(command.pid).rlimit(psutil.RLIMIT_FSIZE, (chance.choice((0, 20_000)), psutil.RLIM_INFINITY))
    except psutil.NoSuchProcess:
        return False
    if command.sleep(3.0):  # it may not have written; then this is another kill
        command.signal(signal.SIGKILL)
    return True


NO_ROOM = Disturbance(no_room, (*ENDED, -signal.SIGKILL))


def sqlite_locked(shaken: Shaken) -> Disturbance:
    """Another process holds the ledger's write lock for a while."""

    def hold(command: Command, chance: random.Random) -> bool:
        file = shaken.folder / "ledger.db"
        if not file.exists():
            return False
        other = sqlite3.connect(file, isolation_level=None, timeout=5.0)
        try:
            other.execute("BEGIN IMMEDIATE")
            command.sleep(chance.uniform(0.1, 1.0))
            other.execute("ROLLBACK")
        finally:
            other.close()
        return True

    return Disturbance(hold, ends=False)


def member(title: str, codes: tuple[int, ...] = (), *, ends: bool = False) -> Disturbance:
    """Kill one of the command's processes, by what its title holds."""

    def kill(command: Command, chance: random.Random) -> bool:
        found = members(command, title)
        if found:
            with_luck = chance.choice(found)
            try:
                with_luck.kill()
            except psutil.NoSuchProcess:
                return False
        return bool(found)

    return Disturbance(kill, codes, ends)


def members(command: Command, title: str) -> list[psutil.Process]:
    """Those of the command's processes whose title holds this."""
    return [process for process in command.family() if title in _title(process)]


def _title(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


WORKER = member("ray::TrialWorker")
"""The process of a trial: it is tried again from its checkpoint."""
RAY = {"raylet": member("/raylet", (1,), ends=True), "GCS": member("/gcs_server", (1,), ends=True)}
"""Ray's own processes: the sweep can't go on without them."""
RAY_SOON = {
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}
"""Variables by which Ray notices within seconds that one of them is gone; by itself it takes 20 and 60 s."""


class Server:
    """A PostgreSQL server of our own, on a unix socket.

    Args:
        folder: where it keeps its files.
    """

    def __init__(self, folder: Path) -> None:
        import pgserver  # looks for XDG_RUNTIME_DIR when it is imported

        self._server = pgserver.get_server(folder, cleanup_mode="delete")
        self._control = pgserver.pg_ctl
        self._folder = folder

    def database(self, name: str) -> str:
        """Make an empty database; its address, as libpq writes it."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self._server.get_uri(name)

    def disturbances(self, name: str) -> Mapping[str, Disturbance]:
        """Of a database's connections, and of the server."""
        return {
            "backends terminated": Disturbance(lambda *_: self._terminate(name), ENDED, ends=False),
            "server restarted": Disturbance(lambda *_: self._restart("fast"), ENDED, ends=False),
            "server killed": Disturbance(lambda *_: self._restart("immediate"), ENDED, ends=False),
        }

    def close(self) -> None:
        """End it, and delete its files."""
        self._server.cleanup()

    def _terminate(self, name: str) -> bool:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            return bool(connection.execute(ended.encode(), (name,)).fetchall())

    def _restart(self, mode: str) -> bool:
        options = ["restart", "-w", "-m", mode, "-l", str(self._folder / "log")]
        self._control(options, pgdata=self._folder, user=self._server.system_user)
        return True
