"""Reaching the database: which URLs work, what else may lie there, migrations, and transactions."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import Session

from run_ledger.errors import ForeignDatabase, LedgerError, LedgerLocked, LedgerTooNew
from run_ledger.models import VERSION_TABLE, Base

BUSY_S = 30.0
"""Seconds that a write waits for another process's."""
_SQLITE_HEADER = b"SQLite format 3\x00"
_MIGRATIONS = Path(__file__).parent / "migrations"
_ADVISORY_LOCK = 0x5357_4545_5001
_NEED = "sqlite:///path or postgresql+psycopg://user@host/database"


class Database:
    """One open database, migrated to this package's version.

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
        self.url = _parse(url)
        self._busy_s = busy_s
        self._file = Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None
        if self._file is not None:
            _check_file(self._file)
        self.engine = self._create()
        try:
            with self._migration_lock():
                self._migrate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A consistent view."""
        with self._told(), self.engine.connect() as connection:
            if self._file is not None:
                connection.exec_driver_sql("BEGIN")
            with Session(connection) as session:
                yield session
            connection.rollback()

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that is committed at the end of the block, or not at all.

        SQLite takes the write lock at once: two transactions that read first and write then would deadlock.
        """
        with self._transaction() as connection, Session(connection, autoflush=True) as session:
            yield session
            session.flush()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._told(), self.engine.connect() as connection:
            if self._file is not None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the driver raises into the ledger's errors."""
        try:
            yield
        except (OperationalError, DatabaseError) as error:
            raise self._explain(error) from error

    def _explain(self, error: DatabaseError) -> LedgerError:
        said = (
            str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        )
        place = self.url.render_as_string(hide_password=True)
        if "locked" in said or "busy" in said:
            need = "a database that no other process holds for long"
            return LedgerLocked(
                f"{place}, locked for {self._busy_s:.0f} s", need, "end that process, or wait for it"
            )
        return LedgerError(
            f"{place} ({said})", "a database that can be read and written", "check it, and try again"
        )

    def _create(self) -> Engine:
        if self._file is None:
            return create_engine(self.url, pool_pre_ping=True)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            got = f"{self._file} ({error.strerror})"
            raise LedgerError(got, "a folder that can be written", "choose another place") from error
        engine = create_engine(self.url, connect_args={"timeout": self._busy_s, "check_same_thread": False})

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None  # transactions are begun by hand, see `writing`
            connection.execute(f"PRAGMA busy_timeout={int(self._busy_s * 1000)}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA foreign_keys=ON")
            # In WAL mode NORMAL loses nothing when a process is killed; FULL also survives a power cut.
            connection.execute("PRAGMA synchronous=FULL")

        return engine

    @contextmanager
    def _migration_lock(self) -> Iterator[None]:
        """One process migrates at a time."""
        if self._file is not None:
            with self._told(), self._file.with_name(f"{self._file.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            return
        with self._told(), self.engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})
                connection.rollback()

    def _migrate(self) -> None:
        config = alembic_config()
        with self._transaction() as connection:
            tables = set(inspect(connection).get_table_names())
            if self._file is not None and tables and VERSION_TABLE not in tables:
                raise ForeignDatabase(
                    str(self._file), "a ledger, or a file that does not exist yet", "choose another"
                )
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            current = context.get_current_revision()
            script = ScriptDirectory.from_config(config)
            if current == script.get_current_head():
                return
            try:
                if current is not None:
                    script.get_revision(current)
            except CommandError as error:
                place = self.url.render_as_string(hide_password=True)
                got = f"{place} at version {current}"
                raise LedgerTooNew(
                    got, f"version {script.get_current_head()} or earlier", "update this package"
                ) from error
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def alembic_config() -> Config:
    """Alembic's configuration, without a file: the migrations are in this package."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise LedgerError(f"the URL {url!r}", _NEED, "correct it") from error
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise LedgerError(f"the URL scheme {parsed.drivername}://", _NEED, "use one of these")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise LedgerError(f"the URL {url!r}", "a file, since several processes read it", "name a file")
    return parsed


def _check_file(path: Path) -> None:
    """Refuse what is certainly no ledger before SQLite touches it."""
    need = "a ledger, or a file that does not exist yet"
    if path.is_dir():
        raise ForeignDatabase(f"{path}, a folder", need, "choose another")
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_HEADER))
    except OSError as error:
        raise LedgerError(
            f"{path} ({error.strerror})", "a file that can be read and written", "check its rights"
        ) from error
    if head and head != _SQLITE_HEADER:
        raise ForeignDatabase(f"{path}, which is no SQLite database", need, "choose another")
    if not os.access(path, os.W_OK):
        raise LedgerError(f"{path}, which is read-only", "a file that can be written", "check its rights")
    if head:
        _check_tables(path, need)


def _check_tables(path: Path, need: str) -> None:
    """Look at a database's tables without changing a byte."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            tables = {
                row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            }
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise ForeignDatabase(f"{path} ({error})", need, "choose another") from error
    if tables and VERSION_TABLE not in tables and not set(Base.metadata.tables) & tables:
        raise ForeignDatabase(f"{path}, another program's database", need, "choose another")
