"""Bringing a database to this package's version: Alembic, run from here, with the migrations inside the package."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import URL, Connection, create_engine, inspect, text
from sqlalchemy.exc import OperationalError

from run_ledger.errors import ForeignDatabase, LedgerError, LedgerTooNew
from run_ledger.models import VERSION_TABLE, Base
from run_ledger.place import APPLICATION_ID

HEAD = "0002"
"""The newest migration, which this package's models are of."""


def version(connection: Connection) -> str | None:
    """The migration that the database is at; None before the first."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return found


def migrate(connection: Connection) -> None:
    """Bring the database to `HEAD`, in the caller's transaction, which no other process's may interleave.

    Raises:
        LedgerTooNew: a later version of this package migrated it.
        ForeignDatabase: it holds tables under our names, but no version.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    current = version(connection)
    if current == HEAD:
        return
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    if current is None:
        taken = sorted(set(Base.metadata.tables) & set(inspect(connection).get_table_names()))
        if taken:
            got = f"a database with a table {taken[0]} that no ledger made"
            raise ForeignDatabase(got, "a ledger, or a database without such tables", "name another database")
    elif current not in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
        raise LedgerTooNew(f"a ledger of version {current}", f"{HEAD} or earlier", "update sweep-platform")
    command.upgrade(config, "head")


def create_file(path: Path) -> None:
    """Make a new ledger at `path`, whole or not at all; if another process was faster, its file stays.

    It is built aside and linked into place, so that neither a process that opens it at the same time nor one that
    comes after a kill ever sees half of it.

    Raises:
        LedgerError: the folder can't be made or written, or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            aside = Path(folder) / path.name
            _build(aside)
            os.link(aside, path)
    except FileExistsError as error:
        if path.is_symlink() and not path.exists():
            raise LedgerError(f"{path}, a link to nothing", "a file, or nothing there", "remove the link") from error
        if not path.exists():  # what exists is a file where a folder is needed
            raise LedgerError(f"{path.parent}, which is no folder", "a folder", "name another path") from error
    except (OSError, sqlite3.OperationalError, OperationalError) as error:  # a full disk is SQLite's to notice
        why = getattr(error, "strerror", None) or getattr(error, "orig", error)
        do = "free some room, change its rights, or name another path"
        raise LedgerError(f"{path.parent} ({why})", "a folder that can be written", do) from error


def _build(path: Path) -> None:
    engine = create_engine(URL.create("sqlite", database=str(path)))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("BEGIN")  # one transaction, one fsync
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
            migrate(connection)
    finally:
        engine.dispose()
    with closing(sqlite3.connect(path)) as raw:  # last: until now, all of it is in the one file that gets linked
        raw.execute("PRAGMA journal_mode=WAL")
