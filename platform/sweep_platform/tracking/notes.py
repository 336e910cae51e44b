"""The descriptions of runs on MLflow's page, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep_platform import units
from sweep_platform.frontier import Frontier

if TYPE_CHECKING:
    from run_ledger import TrialRecord

NOTE = "mlflow.note.content"
"""Tag that MLflow's page shows as the run's description."""


def searched_note(trial: TrialRecord) -> str:
    """What was searched, apart from the many params that all trials share."""
    lines = [f"Trial {trial.number}, proposed by `{trial.origin}`.", "", "| searched | value |", "|---|---|"]
    lines += [f"| `{path}` | `{value}` |" for path, value in trial.params.items()]
    return "\n".join(lines)


def frontier_note(frontier: Frontier) -> str:
    """The front as a table, cheapest first."""
    metrics = [goal.metric for goal in frontier.goals]
    lines = [
        "Frontier, cheapest first:",
        "",
        f"| trial | {' | '.join(metrics)} |",
        "|---" * (len(metrics) + 1) + "|",
    ]
    for point in frontier.front:
        cells = [
            units.metric(metric, value, error)
            for metric, value, error in zip(metrics, point.values, point.errors, strict=True)
        ]
        name = f"**{point.number}** (knee)" if point.number == frontier.knee.number else str(point.number)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
