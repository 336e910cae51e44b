"""The model's sampled answers as a table that MLflow's page shows, right and wrong ones side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep_platform.trainers import EvaluatedSample

FILE = "samples.json"
TAG = "mlflow.loggedArtifacts"
"""Files named in this tag are shown as tables. `MlflowClient.log_table` sets it too, but appends again."""
TAG_VALUE = json.dumps([{"path": FILE, "type": "table"}])

_COLUMNS = ("correct", "answer", "ground_truth", "prompt", "response", "response_length")
_KEYS = ("data_source", "problem_id", "sample_index")


def samples_table(samples: Sequence[EvaluatedSample], limit: int = 200) -> str:
    """Up to `limit` samples as JSON in the form of `DataFrame.to_json(orient="split")`.

    Half of the rows are right answers and half wrong ones where there are enough of both, each half spread
    evenly over the problems. The record of the run keeps all of them: the ledger a trial's, and a production run's
    folder its own (`sweep_platform.production.journal`).
    """
    ordered = sorted(samples, key=_key)
    right = [sample for sample in ordered if sample.correct]
    wrong = [sample for sample in ordered if not sample.correct]
    rights = min(len(right), max(limit // 2, limit - len(wrong)))
    kept = sorted([*_spread(wrong, limit - rights), *_spread(right, rights)], key=_key)
    columns = [*_COLUMNS, *_KEYS]
    rows = [[getattr(sample, column) for column in columns] for sample in kept]
    return json.dumps({"columns": columns, "data": rows})


def samples_lines(samples: Sequence[EvaluatedSample]) -> str:
    """All samples, a line of JSON each."""
    rows = ({name: getattr(sample, name) for name in (*_KEYS, *_COLUMNS)} for sample in samples)
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _key(sample: EvaluatedSample) -> tuple[Any, ...]:
    return sample.data_source, sample.problem_id, sample.sample_index


def _spread(samples: list[EvaluatedSample], count: int) -> list[EvaluatedSample]:
    if len(samples) <= count:
        return samples
    return [samples[i * len(samples) // count] for i in range(count)]
