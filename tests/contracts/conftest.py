"""Every database that the ledger supports, for the contract suites: SQLite, and a PostgreSQL server of our own."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from run_ledger import DriverLease, Ledger
from small_ledger import held


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that listens on a unix socket only, as libpq writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", os.environ.get("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime"))))
        import pgserver  # looks for that folder when it is imported

        server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="delete")
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made; nothing is there yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: str = request.getfixturevalue("postgresql")
    with psycopg.connect(server) as connection:
        connection.execute("SET lock_timeout = '10s'; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def book(ledger_url: str) -> Iterator[tuple[Ledger, DriverLease]]:
    """A ledger with one sweep, held."""
    with held(ledger_url) as book:
        yield book
