"""Hearing a trainer out, whichever it is; loads none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dapo.batch import Report, StepMetrics


def heard(train: Callable[[Any, Report], None], config: object, stop_at: int | None = None) -> list[StepMetrics]:
    """Train, and return what was reported; stop after a step when told so."""
    told: list[StepMetrics] = []

    def report(step: StepMetrics) -> bool:
        told.append(step)
        return step.step != stop_at

    train(config, report)
    return told
