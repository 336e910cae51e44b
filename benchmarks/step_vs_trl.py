"""A whole DAPO step against trl's GRPOTrainer with its loss `dapo`: same model, prompts, n, lengths and updates.

Each side runs alone in a process of its own, in turn, float32, as many threads as cores; neither filters groups, so
that both generate and train on as much. trl takes as many rows at once as is fastest for it among those tried.
Needs the extra `peers`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks._step_sides import CASES, Case

GOAL = 3.0
ROUNDS = 2
"""Processes of each side."""
Side = dict[str, Any]


def one(side: str, case: str, rows: int) -> Side:
    """Run a side once."""
    command = [sys.executable, "-m", "benchmarks._step_sides", side, case, str(rows)]
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    done = subprocess.run(
        command, env={**os.environ, **threads}, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, check=True
    )
    return {"rows": rows, **json.loads(done.stdout.splitlines()[-1])}


def compare(name: str, case: Case) -> dict[str, list[Side]]:
    """Both sides in turn."""
    found: dict[str, list[Side]] = {"ours": [], "trl": []}
    for _ in range(ROUNDS):
        found["ours"].append(one("ours", name, 0))
        found["trl"] += [one("trl", name, rows) for rows in case.rows]
    return found


def fastest(runs: list[Side]) -> Side:
    """Medians and the highest peak, of the number of rows with the least seconds a step."""
    groups = {rows: [run for run in runs if run["rows"] == rows] for rows in {run["rows"] for run in runs}}
    found = [
        {
            "rows": rows,
            "seconds": statistics.median(second for run in group for second in run["seconds"]),
            "tokens": statistics.median(count for run in group for count in run["tokens"]),
            "peak_gb": max(run["peak_gb"] for run in group),
        }
        for rows, group in groups.items()
    ]
    return min(found, key=lambda one: one["seconds"])


def _told(name: str, sides: dict[str, Side], ratio: float) -> str:
    ours, trl, case = sides["ours"], sides["trl"], CASES[name]
    return (
        f"{name} ({case.prompts} x {case.n}): {ratio:.1f}x, {ours['seconds']:.2f} s a step of "
        f"{ours['tokens']:,.0f} tokens against {trl['seconds']:.2f} s of {trl['tokens']:,.0f}, "
        f"peak {ours['peak_gb']:.1f} GiB against {trl['peak_gb']:.1f}"
    )


def run() -> dict[str, Any]:
    """Compare on each model."""
    runs = {name: compare(name, case) for name, case in CASES.items()}
    best = {name: {side: fastest(each) for side, each in sides.items()} for name, sides in runs.items()}
    ratio = {name: sides["trl"]["seconds"] / sides["ours"]["seconds"] for name, sides in best.items()}
    told = [_told(name, sides, ratio[name]) for name, sides in best.items()]
    return {
        "question": "A whole step (generation, rewards, update) against trl's GRPOTrainer, loss `dapo`, float32",
        "goal": f">= {GOAL:.0f}x faster, peak memory not higher",
        "measured": "; ".join(told),
        "met": all(
            ratio[name] >= GOAL and sides["ours"]["peak_gb"] <= sides["trl"]["peak_gb"] for name, sides in best.items()
        ),
        "peers": [{"name": "trl", "version": version("trl"), "figure": "as measured"}],
        "runs": runs,
    }
