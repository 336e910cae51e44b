"""The kill campaign: sweeps whose processes and databases are killed at random instants, again and again.

Each campaign disturbs one sweep, looks after each restart at what ledger, MLflow and the trials' folders hold, lets the
sweep end, and compares its result with that of a sweep that nobody disturbed. Instants and kinds are drawn by seeds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent.parent / "tests" / "support"
"""Holds the simulated trainer, and what disturbs."""
SIMULATED, REAL = 200, 10
"""Disturbances at least."""


def run(simulated: int = SIMULATED, real: int = REAL) -> dict[str, Any]:
    """Run all campaigns, with at least so many disturbances over trials of either kind."""
    sys.path.insert(0, str(SUPPORT))
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # the PostgreSQL server's socket lies there
        from benchmarks import _kill_campaigns

        rows = _kill_campaigns.run(Path(folder), simulated, real)
    counts = {trials: Counter[str]() for trials in ("simulated", "real")}
    for row in rows:
        counts[row["trials"]] += Counter(row["struck"])
    broken = [row["broken"] for row in rows if row["broken"]]
    return {
        "question": "Driver, trials, Ray and database killed at random instants: what is lost, repeated or left",
        "goal": f">= {simulated} kills over simulated trials and >= {real} over real ones; no finished trial lost or "
        "repeated, no ghost, ledger equal to MLflow, the undisturbed sweep's result",
        "measured": f"{_told('simulated', counts)}; {_told('real', counts)}; after {_sum(rows, 'looks')} restarts "
        + ("nothing broken" if not broken else f"{len(broken)} sweeps broken"),
        "met": not broken and counts["simulated"].total() >= simulated and counts["real"].total() >= real,
        "peers": [],
        "runs": {"counts": counts, "campaigns": rows},
    }


def _told(trials: str, counts: dict[str, Counter[str]]) -> str:
    each = ", ".join(f"{kind} {count}" for kind, count in counts[trials].most_common())
    return f"{counts[trials].total()} over {trials} trials ({each})"


def _sum(rows: Sequence[dict[str, Any]], key: str) -> int:
    return sum(row[key] for row in rows)
