"""The descriptions of runs and registered models on MLflow's page, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweep_platform import units
from sweep_platform.frontier import Frontier

if TYPE_CHECKING:
    from run_ledger import PromotionRecord, SweepRecord, TrialRecord

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


def promotion_note(sweep: SweepRecord, trial: TrialRecord, promotions: Sequence[PromotionRecord]) -> str:
    """What a promoted trial is, what is known of it, and every promotion of it."""
    known = promotions[-1].evidence
    runs, problems = known.get("confirming_runs", 0), sum(known.get("problems", {}).values())
    if promotions[-1].confirmed:
        basis = f"Confirmed by {units.count(runs, 'run')} under new seeds, on {units.count(problems, 'problem')}."
    else:
        basis = "**UNCONFIRMED**: one run speaks for it, the search's own."
    lines = [f"Trial {trial.number} of sweep {sweep.address}, proposed by `{trial.origin}`. {basis}", ""]
    lines += ["| measured | value |", "|---|---|"]
    for metric, value in known.get("values", {}).items():
        lines.append(f"| `{metric}` | {units.metric(metric, value, known.get('errors', {}).get(metric))} |")
    if known.get("probability") is not None:
        lines.append(f"| on the front, by the bootstrap | {known['probability']:.0%} |")
    lines += ["", "| promotion | as | when | by | why |", "|---|---|---|---|---|"]
    for record in promotions:
        why = f"(rollback) {record.why}" if record.restores else record.why
        cells = [str(record.id), record.alias, f"{record.at:%Y-%m-%d %H:%M} UTC", record.who, why]
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    lines += ["", "| searched | value |", "|---|---|"]
    lines += [f"| `{path}` | `{value}` |" for path, value in trial.params.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A text that stays in one cell of a table, and is no markup."""
    return " ".join("".join(f"\\{char}" if char in "\\|`*_[]<>&" else char for char in text).split())
