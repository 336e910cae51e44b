"""Migrations: what this package's models are of, and how a file comes to be."""

import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import run_ledger
from alembic.config import Config
from alembic.script import ScriptDirectory
from run_ledger import LedgerError
from run_ledger.migrate import HEAD, create_file
from small_ledger import held


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(run_ledger.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_new_file_keeps_the_one_that_another_process_made_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with held(f"sqlite:///{path}") as (ledger, _):
        create_file(path)
        assert len(ledger.sweeps()) == 1


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("run_ledger.migrate.migrate", fail)
        create_file(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("room", [0, 20_000])
def test_a_disk_without_room_is_told(tmp_path: Path, room: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(LedgerError, match="^got .*need a folder that can be written; free some room") as raised:
            create_file(tmp_path / "ledger.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path) in raised.value.got
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_made_for_many_processes(tmp_path: Path) -> None:
    create_file(tmp_path / "ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
