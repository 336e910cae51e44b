"""SQLite as the ledger sets it up, and what its errors are told as."""

import gc
import pickle
import signal
import sqlite3
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path

import pytest
from run_ledger import ForeignDatabase, Ledger, LedgerError, LedgerLocked, StaleToken, SweepBusy
from run_ledger.database import Database
from small_ledger import held, started, step, trial
from sqlalchemy import Engine, event, text


def test_connections_wait_and_check_foreign_keys(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/ledger.db", busy_s=7.5)
    with database.reading() as session:
        pragmas = [
            session.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "busy_timeout", "foreign_keys", "synchronous")
        ]
    database.close()
    assert pragmas == ["wal", 7500, 1, 2]


def test_a_file_that_another_process_keeps_to_itself_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(LedgerLocked, match=r"locked by another process for 0\.2 s; need "):
            Ledger.open(url, busy_s=0.2)
        assert 0.15 < time.monotonic() - began < 5


def test_a_damaged_ledger_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with held(f"sqlite:///{path}") as (ledger, lease):
        for number in range(20):
            trial(ledger, lease, number)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(LedgerError, match=r"^got sqlite:///.*; need a database that answers, whole and writable; "):
        Ledger.open(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger_trials SET params = '{oops'",
        "UPDATE ledger_trials SET state = 'wat'",
        "UPDATE ledger_trials SET objective_values = '1'",
        "UPDATE ledger_trials SET started_at = 'soon'",
        "UPDATE ledger_sweeps SET spec = 'x'",
    ],
)
def test_a_row_that_cannot_be_read_is_told(tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger.db"
    with held(f"sqlite:///{path}") as (ledger, lease):
        trial(ledger, lease)
        with closing(sqlite3.connect(path)) as other:
            other.execute(change)
            other.commit()
        with pytest.raises(LedgerError, match=r"^got sqlite:///.*, in which a row can't be read \(.*\); need "):
            ledger.sweeps() if "sweeps" in change else ledger.trials(lease.sweep_id)
        with suppress(LedgerError):  # and never another error, whatever else is read
            ledger.add_trial(lease, number=1, params={}, params_hash="x", config={}, origin="test", sampler_state={})


def test_a_write_that_fails_halfway_writes_nothing(tmp_path: Path) -> None:
    with held(f"sqlite:///{tmp_path}/ledger.db") as (ledger, lease):
        attempt = started(ledger, lease)
        step(ledger, attempt, 1)
        before = ledger.trials(lease.sweep_id)
        with pytest.raises(AttributeError):
            step(ledger, attempt, 2, samples=["no sample"])
        assert ledger.trials(lease.sweep_id) == before
        assert len(ledger.observations(attempt.trial_id)) == 1
        step(ledger, attempt, 2)


@pytest.mark.parametrize("kind", [LedgerError, ForeignDatabase, LedgerLocked, SweepBusy, StaleToken])
def test_errors_tell_three_things_and_travel_between_processes(kind: type[LedgerError]) -> None:
    error = pickle.loads(pickle.dumps(kind("this", "that", "do so")))
    assert type(error) is kind
    assert str(error) == "got this; need that; do so"


def test_closing_leaves_no_connection_behind(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with held(f"sqlite:///{tmp_path}/ledger.db") as (ledger, lease):
            trial(ledger, lease)
        gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_end_of_a_transaction_and_a_second_one_does_not(
    tmp_path: Path, number: signal.Signals
) -> None:
    signals = 1

    def interrupt(*arguments: object) -> None:
        if str(arguments[2]).startswith("INSERT"):
            for _ in range(signals):
                signal.raise_signal(number)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with held(f"sqlite:///{tmp_path}/ledger.db") as (ledger, lease):
            attempt = started(ledger, lease)
            event.listen(Engine, "before_cursor_execute", interrupt)
            with pytest.raises(KeyboardInterrupt):
                step(ledger, attempt, 1)
            assert [seen.step for seen in ledger.observations(attempt.trial_id)] == [1]
            signals = 2
            with pytest.raises(KeyboardInterrupt):
                step(ledger, attempt, 2)
            assert [seen.step for seen in ledger.observations(attempt.trial_id)] == [1]
    finally:
        event.remove(Engine, "before_cursor_execute", interrupt)
        signal.signal(number, before)
