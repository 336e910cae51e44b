"""As many statements for much as for little. What that takes is measured by `python -m benchmarks ledger_load`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from run_ledger import Ledger
from run_ledger.database import Database
from run_ledger.models import Cost, Trial
from small_ledger import held, sample, started, step, sweep
from sqlalchemy import Engine, event, insert

CONFIG = {f"section {i}": {f"field {j}": j / 7 for j in range(10)} for i in range(6)}


@contextmanager
def statements() -> Iterator[list[str]]:
    """The first word of each statement that is sent to a database meanwhile."""
    words: list[str] = []

    def note(*arguments: object) -> None:
        words.append(str(arguments[2]).split()[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield words
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def test_trials_are_read_at_once(url: str) -> None:
    with Ledger.open(url) as ledger:
        sweep_id = sweep(ledger).id
        trials = [
            {
                "id": number + 1,
                "sweep_id": sweep_id,
                "number": number,
                "state": "complete",
                "params": {"actor.lr": number / 7},
                "params_hash": str(number),
                "replicate": 0,
                "origin": "tpe",
                "sampler_state": {},
                "config": CONFIG,
                "objective_values": [0.5, 1e15],
                "metrics": CONFIG["section 0"],
                "step": 30,
                "total_steps": 30,
                "attempts": 1,
            }
            for number in range(500)
        ]
        database = Database(url)
        with database.writing() as session:
            session.execute(insert(Trial), trials)
            session.execute(insert(Cost), [{"trial_id": trial["id"]} for trial in trials])
        database.close()
        with statements() as sent:
            assert [trial.number for trial in ledger.trials(sweep_id)] == list(range(500))
        assert sent == ["BEGIN", "SELECT"]


def test_a_step_is_recorded_at_once_with_all_its_samples(url: str) -> None:
    with held(url) as (ledger, lease):
        attempt, sent = started(ledger, lease), {}
        for number, count in enumerate((1, 800), 1):
            with statements() as sent[count]:
                step(ledger, attempt, number, samples=[sample(index) for index in range(count)])
            assert len(ledger.evaluations(attempt.trial_id)) == count
        assert sent[800] == sent[1] and sent[1].count("INSERT") == 2
