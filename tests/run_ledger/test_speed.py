"""Fast enough that nobody waits for it: few statements, and little time of this process."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_ledger import Ledger
from run_ledger.database import Database
from run_ledger.models import Cost, Trial
from small_ledger import held, sample, started, step, sweep
from sqlalchemy import Engine, event, insert

CONFIG = {f"section {i}": {f"field {j}": j / 7 for j in range(10)} for i in range(6)}


def cpu_seconds(task: Callable[[], object], times: int = 3) -> float:
    """The least that this process worked for one call: other processes' load doesn't count."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        task()
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def test_ten_thousand_trials_are_read_at_once(url: str) -> None:
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
            for number in range(10_000)
        ]
        database = Database(url)
        with database.writing() as session:
            session.execute(insert(Trial), trials)
            session.execute(insert(Cost), [{"trial_id": trial["id"]} for trial in trials])
        database.close()
        statements: list[str] = []

        def note(*arguments: object) -> None:
            statements.append(str(arguments[2]))

        event.listen(Engine, "before_cursor_execute", note)
        try:
            assert [trial.number for trial in ledger.trials(sweep_id)] == list(range(10_000))
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert [said.split()[0] for said in statements] == ["BEGIN", "SELECT"]
        assert cpu_seconds(lambda: ledger.trials(sweep_id)) < 2.0


def test_a_step_with_all_its_samples_is_recorded_in_no_time(url: str) -> None:
    with held(url) as (ledger, lease):
        attempt = started(ledger, lease)
        samples = [sample(index) for index in range(800)]
        assert cpu_seconds(lambda: step(ledger, attempt, 1, samples=samples), times=5) < 0.05
        assert len(ledger.evaluations(attempt.trial_id)) == 800
