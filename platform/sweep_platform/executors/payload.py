"""A step's report as bytes: all that passes from a trainer to the driver, whichever process it is in.

JSON rather than pickle: the driver's process loads no type of the trainer's, nor the libraries they need.
Floats come back bit for bit, NaN and infinity too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from run_ledger import CostRecord, EvaluationRecord

from sweep_platform.driver.reading import COST_FIELDS, as_number
from sweep_platform.trainers import StepMetrics

_SAMPLE_FIELDS = tuple(field.name for field in fields(EvaluationRecord) if field.name != "step")


@dataclass(frozen=True, slots=True)
class Step:
    """A decoded report; a `StepMetrics`."""

    step: int
    total_steps: int
    metrics: Mapping[str, Any]
    """As reported; what is no number arrives as the text it reads as."""
    cost: CostRecord
    evaluation: Sequence[EvaluationRecord]
    final: bool


def encode(step: StepMetrics) -> bytes:
    """Pack a report.

    Raises:
        Exception: of any kind, on what is no `StepMetrics`.
    """
    plain = {
        "step": step.step,
        "total_steps": step.total_steps,
        "metrics": {name: as_number(value) for name, value in step.metrics.items()},
        "cost": {name: getattr(step.cost, name) for name in COST_FIELDS},
        "evaluation": [[getattr(sample, name) for name in _SAMPLE_FIELDS] for sample in step.evaluation],
        "final": step.final,
    }
    return zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), level=1)


def decode(data: bytes) -> Step:
    """Unpack a report."""
    plain = json.loads(zlib.decompress(data))
    samples = [
        EvaluationRecord(step=plain["step"], **dict(zip(_SAMPLE_FIELDS, row, strict=True)))
        for row in plain["evaluation"]
    ]
    return Step(**{**plain, "cost": CostRecord(**plain["cost"]), "evaluation": samples})


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker process needs to know to run one attempt."""

    trainer: str
    """The trainer's name; the worker loads it itself."""
    config: Mapping[str, Any]
    threads: int
    folder: str
    """The trial's: the worker's output goes to a file there."""

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Job:
        """Read `dump()`."""
        return cls(**json.loads(text))
