"""An Optuna storage by its URL: a database that holds studies, or may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sweep_platform.errors import BadInput, Fault, one_line

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

_SQLITE = "sqlite:///"
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, AssertionError)
"""What Optuna raises over rows that it didn't write."""
_NEED = "a database's URL, such as sqlite:///studies.db"


@contextmanager
def opened(url: str, *, must_exist: bool) -> Iterator[RDBStorage]:
    """Open a storage, whose tables are made if the database is empty.

    Optuna keeps everything as numbers, text and JSON; nothing is ever unpickled.

    Args:
        url: of the database, as SQLAlchemy has it.
        must_exist: an empty or missing database is a fault.

    Raises:
        BadInput: it is no URL, can't be opened, or holds something else.
    """
    import optuna
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if "://" not in url:
        raise BadInput([Fault("--storage", url, _NEED, f"write {_SQLITE}{url} if that is a file")])
    if must_exist and url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        raise BadInput(
            [Fault("--storage", f"{url}, where there is no file", "a storage with studies", "check the path")]
        )
    try:
        _check_holds_studies(url, must_exist=must_exist)
        storage = optuna.storages.RDBStorage(url)
    except (SQLAlchemyError, StorageInternalError, ImportError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput([Fault("--storage", f"{_without_password(url)} ({reason})", _NEED, "check it")]) from error
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def readable(url: str) -> Iterator[None]:
    """Tell of an opened storage whose tables or rows Optuna can't read.

    Raises:
        BadInput: it can't.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError, *_UNREADABLE) as error:
        got = f"{_without_password(url)}, in which something can't be read ({one_line(error, 200)})"
        raise BadInput([Fault("--storage", got, "a storage as Optuna writes it", "put a copy of it back")]) from error


def _check_holds_studies(url: str, *, must_exist: bool) -> None:
    """See that Optuna's tables are there or have room; looking makes nothing but SQLite's empty file."""
    from sqlalchemy import create_engine, inspect

    engine = create_engine(url)
    try:
        tables = inspect(engine).get_table_names()
    finally:
        engine.dispose()
    if "studies" in tables or not (tables or must_exist):
        return
    got = (
        f"{_without_password(url)}, a database of something else ({tables[0]})" if tables else f"{url}, which is empty"
    )
    raise BadInput(
        [Fault("--storage", got, "an Optuna storage" + ("" if must_exist else ", or a new one"), "name another")]
    )


def _without_password(url: str) -> str:
    from sqlalchemy import make_url

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ValueError:
        return url
    except Exception:  # SQLAlchemy can't read it: what stands there can't be told apart
        return url.partition("://")[0] + "://…"
