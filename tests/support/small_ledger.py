"""Short ways to fill a ledger, for tests of its parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from run_ledger import AttemptRecord, CostRecord, DriverLease, EvaluationRecord, Ledger, SweepRecord, TrialRecord

SPEC = {"name": "aime", "objectives": [{"metric": "val/accuracy"}], "budget": {"cost": None, "trials": 3}}


def sweep(ledger: Ledger, name: str = "aime") -> SweepRecord:
    return ledger.create_sweep(name, SPEC, "0" * 64, 7, "c0ffee")


def trial(ledger: Ledger, lease: DriverLease, number: int = 0, **changed: Any) -> TrialRecord:
    given: dict[str, Any] = {
        "params": {"actor.lr": 0.1 * number, "metric": "acc"},
        "params_hash": f"hash {number}",
        "config": {"actor": {"lr": 0.1 * number}, "stop": ["a", "b"]},
        "origin": "prior:published",
        "sampler_state": {"tpe": [1, None]},
    }
    return ledger.add_trial(lease, number=number, **(given | changed))


def started(ledger: Ledger, lease: DriverLease, number: int = 0) -> AttemptRecord:
    return ledger.start_attempt(lease, trial(ledger, lease, number).id, host="node", pid=12)


def sample(index: int = 0, step: int = 0, **changed: Any) -> EvaluationRecord:
    given = {
        "data_source": "aime",
        "problem_id": f"problem {index // 8}",
        "sample_index": index % 8,
        "prompt": "What is 6 x 7? " * 10,
        "response": "Six sevens are 42. " * 20,
        "answer": "42",
        "ground_truth": "42",
        "correct": index % 3 == 0,
        "response_length": 100 + index,
    }
    return EvaluationRecord(step=step, **(given | changed))


def step(ledger: Ledger, attempt: AttemptRecord, number: int, **changed: Any) -> None:
    given: dict[str, Any] = {
        "total_steps": 10,
        "metrics": {"val/accuracy": number / 10},
        "cost": CostRecord(flops=1e15 * number, tokens=100 * number, device_seconds=0.5 * number),
    }
    ledger.record_step(attempt, step=number, **(given | changed))


@contextmanager
def held(url: str) -> Iterator[tuple[Ledger, DriverLease]]:
    """A ledger with one sweep, held."""
    with Ledger.open(url) as ledger:
        yield ledger, ledger.acquire_sweep(sweep(ledger).id, "me")
