"""What is refused before anything is touched."""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from run_ledger import ForeignDatabase, Ledger, LedgerError
from run_ledger.place import parse
from small_ledger import held, trial


def state_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def program(path: Path, *, wal: bool = False) -> sqlite3.Connection:
    """Another program's database, still open."""
    connection = sqlite3.connect(path)
    if wal:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE experiments (name TEXT)")
    connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.execute("INSERT INTO experiments VALUES ('theirs')")
    connection.commit()
    return connection


def foreign_sqlite(path: Path) -> None:
    program(path).close()


def foreign_wal(path: Path) -> None:
    program(path, wal=True).close()


@pytest.mark.parametrize(
    "make",
    [
        foreign_sqlite,
        foreign_wal,
        lambda path: path.write_text("number,accuracy\n0,0.5\n"),
        lambda path: path.write_bytes(b"SQLite format 3\0 and then nonsense" * 100),
        lambda path: path.write_bytes(b""),
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("/dev/null"),
    ],
    ids=["sqlite", "sqlite in wal", "text", "broken", "empty", "folder", "pipe", "device"],
)
def test_what_is_no_ledger_is_refused_and_left_as_it_was(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "other.db"
    make(path)
    before = state_of(tmp_path)
    with pytest.raises(ForeignDatabase, match=r"^got .*other\.db.*; need a ledger, or a path where no file is yet; "):
        Ledger.open(f"sqlite:///{path}")
    assert state_of(tmp_path) == before


def test_a_program_at_work_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(program(path, wal=True)) as theirs:
        before = state_of(tmp_path)
        with pytest.raises(ForeignDatabase, match="another program's database"):
            Ledger.open(f"sqlite:///{path}")
        assert state_of(tmp_path) == before
        assert theirs.execute("SELECT name FROM experiments").fetchall() == [("theirs",)]


@pytest.mark.parametrize(
    "url",
    [
        "ledger.db",
        "",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///ledger.db?mode=ro",
        "sqlite+aiosqlite:///ledger.db",
        "postgresql+psycopg2://me:secret@host/database",
        "postgresql+asyncpg://me:secret@host/database",
        "mysql://me:secret@host/database",
        "nosuch://x",
    ],
)
def test_a_url_that_is_not_supported_is_refused_without_its_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerError, match="^got the URL .*; need .*sqlite:///path.*; ") as error:
        Ledger.open(url)
    assert "secret" not in str(error.value)
    assert state_of(tmp_path) == {}


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(LedgerError, match=r"^got postgresql\+psycopg://me:\*\*\*@127.0.0.1:1/x \(.*\); need ") as error:
        Ledger.open("postgresql+psycopg://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(error.value)


def test_odd_paths_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a b/100%25/é#1.db"
    with held(url) as (ledger, lease):
        added = trial(ledger, lease)
    with Ledger.open(url) as ledger:
        assert ledger.trials(lease.sweep_id) == [added]


def test_a_relative_path_and_a_link_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with held("sqlite:///real.db"):
        (tmp_path / "link.db").symlink_to("real.db")
        with Ledger.open("sqlite:///link.db") as ledger:
            assert len(ledger.sweeps()) == 1


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").symlink_to("nowhere.db")
    with pytest.raises(LedgerError, match="^got .*ledger.db, a link to nothing; need .*; remove the link"):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]


def test_a_file_where_a_folder_is_needed_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerError, match="^got .*; need .*; "):
        Ledger.open(f"sqlite:///{tmp_path}/file/ledger.db")
    assert (tmp_path / "file").read_text() == "x"


def test_opening_leaves_nothing_else_in_the_folder(tmp_path: Path) -> None:
    with held(f"sqlite:///{tmp_path}/ledger.db"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Rights are no obstacle to root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_file_without_the_rights_is_told(public: Path, mode: int) -> None:
    path = public / "ledger.db"
    with held(f"sqlite:///{path}"):
        pass
    path.chmod(mode)
    with ordinary_user(), pytest.raises(LedgerError, match="^got .*; need the right to do both; change its rights"):
        Ledger.open(f"sqlite:///{path}")


def test_a_folder_without_the_rights_is_told(public: Path) -> None:
    public.chmod(0o555)
    with ordinary_user(), pytest.raises(LedgerError, match="^got .*Permission denied.*; need a folder that can be"):
        Ledger.open(f"sqlite:///{public}/ledger.db")
    public.chmod(0o755)
    assert list(public.iterdir()) == []


def test_a_plain_postgresql_address_is_taken() -> None:
    assert parse("postgresql://user@host/base").drivername == "postgresql+psycopg"
