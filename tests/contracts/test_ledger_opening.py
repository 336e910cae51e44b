"""Making, migrating and opening a ledger, whatever the database."""

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from run_ledger import ForeignDatabase, Ledger, LedgerLocked, LedgerTooNew
from run_ledger.database import Database
from run_ledger.migrate import HEAD
from run_ledger.models import VERSION_TABLE, Base, Trial
from small_ledger import held, sweep, trial
from sqlalchemy import Engine, MetaData, create_engine, func, inspect, select, text
from sqlalchemy.pool import NullPool

OPEN = """
import sys
from run_ledger import Ledger
print("ready", flush=True)
sys.stdin.readline()
with Ledger.open(sys.argv[1]) as ledger:
    print(ledger.create_sweep("aime", {}, "i", 0, None).version)
"""


def plain(url: str) -> Engine:
    """The same database, as another program sees it."""
    return create_engine(url, poolclass=NullPool)


def test_models_and_migrations_agree(ledger_url: str) -> None:
    Ledger.open(ledger_url).close()
    with plain(ledger_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert set(inspect(connection).get_table_names()) == {VERSION_TABLE, *Base.metadata.tables}


def test_a_difference_between_models_and_migrations_would_be_seen(ledger_url: str) -> None:
    Ledger.open(ledger_url).close()
    with plain(ledger_url).begin() as connection:
        connection.execute(text("ALTER TABLE ledger_trials ADD COLUMN mood TEXT"))
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert len(compare_metadata(context, Base.metadata)) == 1


def test_processes_that_open_a_fresh_database_at_once_all_get_it(ledger_url: str) -> None:
    command = [sys.executable, "-c", OPEN, ledger_url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate() for process in processes]
    assert [error for _, error in told] == [""] * 4
    assert sorted(int(said) for said, _ in told) == [1, 2, 3, 4]


def test_one_process_can_open_it_twice(ledger_url: str) -> None:
    with held(ledger_url) as (ledger, lease), Ledger.open(ledger_url) as other:
        added = trial(ledger, lease)
        assert other.trial(added.id) == added
        assert sweep(other).version == 2
        assert [made.version for made in ledger.sweeps()] == [1, 2]


def test_a_ledger_of_a_later_version_is_refused(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        made = sweep(ledger)
    with plain(ledger_url).begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(LedgerTooNew, match="^got a ledger of version 9999; need .* or earlier; update"):
        Ledger.open(ledger_url)
    with plain(ledger_url).begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{HEAD}'"))
    with Ledger.open(ledger_url) as ledger:
        assert ledger.sweeps() == [made]


def test_tables_under_our_names_that_no_ledger_made_are_left_alone(ledger_url: str) -> None:
    Ledger.open(ledger_url).close()
    with plain(ledger_url).begin() as connection:
        connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
    with pytest.raises(ForeignDatabase, match="that no ledger made; need "):
        Ledger.open(ledger_url)
    with plain(ledger_url).connect() as connection:
        assert set(inspect(connection).get_table_names()) == set(Base.metadata.tables)


def test_a_locked_database_is_waited_for_and_then_told(ledger_url: str) -> None:
    with held(ledger_url) as (_, lease):
        pass
    with plain(ledger_url).connect() as other:
        other.execute(text("UPDATE ledger_leases SET token = token"))
        with Ledger.open(ledger_url, busy_s=0.1) as ledger:
            with pytest.raises(LedgerLocked, match=r"locked by another process for 0\.1 s; need "):
                trial(ledger, lease)
            assert ledger.trials(lease.sweep_id) == []
            other.rollback()
            trial(ledger, lease)


def test_a_reader_sees_one_moment(ledger_url: str) -> None:
    with held(ledger_url) as (ledger, lease):
        database = Database(ledger_url)
        with database.reading() as session:
            before = session.scalar(select(func.count()).select_from(Trial))
            trial(ledger, lease)
            assert session.scalar(select(func.count()).select_from(Trial)) == before == 0
        with database.reading() as session:
            assert session.scalar(select(func.count()).select_from(Trial)) == 1
        database.close()


@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
def test_other_programs_in_a_shared_postgresql_database_are_not_touched(ledger_url: str) -> None:
    with plain(ledger_url).begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num text); CREATE TABLE trials (id int)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('of MLflow'); INSERT INTO trials VALUES (7)"))
    with held(ledger_url) as (ledger, lease):
        trial(ledger, lease)
    with plain(ledger_url).connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "of MLflow"
        assert connection.scalar(text("SELECT id FROM trials")) == 7
        seen = MetaData()
        seen.reflect(connection)
        assert set(seen.tables) == {"alembic_version", "trials", VERSION_TABLE, *Base.metadata.tables}
