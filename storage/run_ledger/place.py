"""Where a ledger may lie: which URLs work, and what is refused before anything touches it."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from run_ledger.errors import ForeignDatabase, LedgerError

APPLICATION_ID = 0x52554E4C
"""Marks an SQLite file as a ledger, in its header ("RUNL"): https://www.sqlite.org/fileformat.html#application_id."""
_NEED_URL = "sqlite:///path or postgresql://user@host/database"
_NEED_FILE = "a ledger, or a path where no file is yet"


def parse(url: str) -> URL:
    """Take a URL apart.

    Raises:
        LedgerError: it is malformed, of another database or driver, or names no file.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise LedgerError(f"the URL {url!r}", _NEED_URL, "write it in one of these two forms") from error
    if parsed.drivername in ("postgresql", "postgres"):  # as other tools write it
        parsed = parsed.set(drivername="postgresql+psycopg")
    shown = parsed.render_as_string(hide_password=True)
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise LedgerError(f"the URL {shown}", _NEED_URL, "use one of these two forms")
    if parsed.get_backend_name() == "postgresql":
        if find_spec("psycopg") is None:
            raise LedgerError(f"{shown} without psycopg", "its driver", "pip install 'sweep-platform[postgresql]'")
        return parsed
    if parsed.database in (None, "", ":memory:") or parsed.query or parsed.host:
        raise LedgerError(f"the URL {shown}", "sqlite:///path of a file, and nothing after it", "name a file")
    return parsed


def check_file(path: Path) -> bool:
    """Tell whether a ledger is at `path` (True) or nothing is (False), without a write or a lock.

    SQLite itself reads the header, from its read-only, immutable mode: a plain open and close in this process would
    drop the locks of its other connections to that file (https://www.sqlite.org/howtocorrupt.html, section 2.2).

    Raises:
        ForeignDatabase: something else is there.
        LedgerError: it can't be read or written.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LedgerError(f"{path} ({error.strerror})", _NEED_FILE, "check the path and its rights") from error
    if not stat.S_ISREG(status.st_mode):
        raise ForeignDatabase(f"{path}, which is no file", _NEED_FILE, "name another path")
    if status.st_size == 0:
        raise ForeignDatabase(f"{path}, an empty file", _NEED_FILE, "delete it, or name another path")
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise LedgerError(f"{path}, which may not be read and written", "the right to do both", "change its rights")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?immutable=1", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA application_id").fetchone()
    except sqlite3.DatabaseError as error:
        raise ForeignDatabase(f"{path} ({error})", _NEED_FILE, "name another path") from error
    if found != APPLICATION_ID:
        raise ForeignDatabase(f"{path}, another program's database", _NEED_FILE, "name another path")
    return True
