"""The open database: connections, transactions, and what a driver's errors mean."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DataError, DBAPIError, OperationalError, StatementError
from sqlalchemy.orm import Session

from run_ledger.errors import LedgerAway, LedgerError, LedgerLocked
from run_ledger.interrupts import interrupts_wait
from run_ledger.migrate import HEAD, create_file, migrate, version
from run_ledger.place import check_file, parse

BUSY_S = 8.0
"""Seconds that a write waits for another process's."""
_ADVISORY_LOCK = 0x52554E4C
"""Key of what excludes other processes where PostgreSQL's row locks can't: migrations, and a new sweep's version."""
_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE after `lock_timeout`."""
_PASSING = ("08", "40", "57P", "25P03", "53300")
"""How SQLSTATEs begin of what may go well a moment later: https://www.postgresql.org/docs/current/errcodes-appendix.html.
Broken connections, rollbacks, shutdowns, a transaction that stood still for too long, too many connections."""
_IDLE_MS = 60_000
"""Milliseconds after which PostgreSQL ends a transaction that stands still: its process is frozen, and others wait."""
_UNREACHABLE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Has libpq notice within half a minute that a server is gone; by itself it would take hours.
https://www.postgresql.org/docs/current/libpq-connect.html"""


@dataclass(slots=True)
class _Progress:
    """How far a transaction is."""

    committing: bool = False


class Database:
    """One open database, created and migrated where needed.

    Args:
        url: SQLAlchemy URL of an SQLite file or a PostgreSQL database.
        busy_s: Seconds to wait for another process's write.

    Raises:
        ForeignDatabase: something else lies there; it is left untouched.
        LedgerTooNew: a later version wrote it.
        LedgerLocked: another process holds it.
        LedgerError: the URL isn't supported, or nothing answers there.
    """

    def __init__(self, url: str, busy_s: float = BUSY_S) -> None:
        self._url = parse(url)
        self._busy_ms = round(busy_s * 1000)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        if self._sqlite and not check_file(path := Path(self._url.database or "")):
            create_file(path)
        self._engine = self._sqlite_engine() if self._sqlite else self._postgresql_engine()
        try:
            self._bring_up_to_date()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One view of everything, whatever is written meanwhile."""
        with self._told(), self._readable(), self._engine.connect() as connection:
            if self._sqlite:
                connection.exec_driver_sql("BEGIN")
            else:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with Session(connection) as session:
                yield session

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Tell of rows that say what this package never wrote: the database is whole, and what stands in it isn't."""
        try:
            yield
        except (ValueError, TypeError, LookupError) as error:
            raise _damaged(self._url, error) from error

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Session]:
        """A transaction that is committed at the end of the block, or not at all.

        Args:
            alone: Let no other such transaction run meanwhile. On SQLite, no two writes ever do.
        """
        with self._transaction(alone) as connection, Session(connection) as session:
            yield session
            session.flush()

    @contextmanager
    def _transaction(self, alone: bool) -> Iterator[Connection]:
        with self._told() as progress, self._engine.connect() as connection:
            if self._sqlite:  # the write lock at once: two that read first and write then would deadlock
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                limits = f"lock_timeout = {self._busy_ms}; SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}"
                connection.exec_driver_sql(f"SET LOCAL {limits}")
                if alone:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            yield connection
            progress.committing = True
            connection.commit()

    def _bring_up_to_date(self) -> None:
        with self._told(), self._engine.connect() as connection:
            if version(connection) == HEAD:
                return
        with self._transaction(alone=True) as connection:
            migrate(connection)

    def _sqlite_engine(self) -> Engine:
        arguments = {"timeout": self._busy_ms / 1000, "check_same_thread": False}
        engine = create_engine(self._url, connect_args=arguments, json_serializer=_dump, json_deserializer=self._load)

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None  # transactions are begun by hand, above
            connection.execute("PRAGMA foreign_keys=ON")
            # Under WAL, NORMAL loses nothing when processes are killed; FULL survives a power cut, too, for one
            # fsync a commit, and a sweep commits every few seconds at most.
            connection.execute("PRAGMA synchronous=FULL")

        return engine

    def _postgresql_engine(self) -> Engine:
        arguments = {name: value for name, value in _UNREACHABLE.items() if name not in self._url.query}
        return create_engine(self._url, connect_args=arguments, pool_pre_ping=True, json_serializer=_dump)

    def _load(self, value: str) -> Any:
        """JSON out of a row; PostgreSQL checks its own."""
        try:
            return json.loads(value)
        except (ValueError, TypeError) as error:
            raise _damaged(self._url, error) from error

    @contextmanager
    def _told(self) -> Iterator[_Progress]:
        """Keep interrupts away meanwhile, and turn what the driver raises into the ledger's errors."""
        progress = _Progress()
        try:
            with interrupts_wait():
                yield progress
        except (DataError, OverflowError) as error:  # PostgreSQL's and SQLite's
            raise _unstorable(" ".join(str(getattr(error, "orig", error)).split())) from error
        except DBAPIError as error:
            raise self._explained(error, progress) from error
        except StatementError as error:
            if isinstance(error.orig, LedgerError):  # from `_dump`
                raise error.orig from error
            raise

    def _explained(self, error: DBAPIError, progress: _Progress) -> LedgerError:
        cause = error.orig
        place = self._url.render_as_string(hide_password=True)
        state = getattr(cause, "sqlstate", None)
        busy = getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if busy or state == _LOCK_NOT_AVAILABLE:
            got = f"{place}, locked by another process for {self._busy_ms / 1000:g} s"
            return LedgerLocked(got, "its turn to write", "wait for that process or end it, then try again")
        said = " ".join(str(cause).split()) or type(cause).__name__
        return LedgerAway(
            f"{place} ({said})",
            "a database that answers, whole and writable",
            "check it and try again",
            passing=not self._sqlite and (error.connection_invalidated or _passing(state, error)),
            unsure=progress.committing,
        )


def _passing(state: str | None, error: DBAPIError) -> bool:
    """Whether PostgreSQL's error may be gone a moment later; without a code, no server was reached."""
    return isinstance(error, OperationalError) if state is None else state.startswith(_PASSING)


def _dump(value: object) -> str:
    """JSON, without NaN and infinity, which PostgreSQL refuses there; so does this, whatever the database."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _unstorable(str(error)) from error


def _damaged(url: URL, error: Exception) -> LedgerError:
    got = f"{url.render_as_string(hide_password=True)}, in which a row can't be read ({' '.join(str(error).split())})"
    return LedgerError(got, "a ledger that nothing else has written to", "put a copy of it back, or name another path")


def _unstorable(why: str) -> LedgerError:
    need = "text, finite numbers, integers of at most 64 bits, lists and maps of these"
    return LedgerError(f"a value that can't be stored ({why})", need, "store it in such a form")
