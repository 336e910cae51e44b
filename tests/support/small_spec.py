"""A spec without a trainer, for tests of the search."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from run_ledger.records import CostRecord, TrialRecord, TrialState
from sweep_platform.search import Suggestion
from sweep_platform.spec import SweepSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_spec(search: dict[str, Any], sampler: str = "tpe", **more: Any) -> SweepSpec:
    return SweepSpec.model_validate(
        {
            "name": "s",
            "config": {"a": "x", "b": 1, "c": 0, "kind": "spread", "cut": 0.0, "size": 1},
            "objectives": [
                {"metric": "val/accuracy", "direction": "maximize"},
                {"metric": "cost/flops", "direction": "minimize"},
            ],
            "search": search,
            "sampler": {"name": sampler, "n_startup": 4, "population": 4},
            **more,
        }
    )


def measured(params: Mapping[str, Any]) -> tuple[float, float]:
    score = sum(len(str(value)) * 0.1 + (hash_of(value) % 7) * 0.01 for value in params.values())
    return score, 1.0 + sum(value for value in params.values() if isinstance(value, int | float))


def hash_of(value: Any) -> int:
    return sum(map(ord, str(value)))


def record(
    suggestion: Suggestion,
    state: TrialState = TrialState.COMPLETE,
    values: tuple[float, ...] | None = None,
) -> TrialRecord:
    complete = state is TrialState.COMPLETE
    return TrialRecord(
        id=suggestion.number + 1, sweep_id=1, number=suggestion.number, state=state, params=suggestion.params,
        params_hash=suggestion.params_hash, replicate=0, origin=suggestion.origin,
        sampler_state=suggestion.sampler_state, config={},
        values=values or (measured(suggestion.params) if complete else None), metrics={}, cost=CostRecord(),
        step=1, total_steps=1, reason=None, attempts=1, started_at=NOW, ended_at=NOW, mlflow_run_id=None,
    )  # fmt: skip
