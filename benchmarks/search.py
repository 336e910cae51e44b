"""Which search finds more for the same compute: hypervolume against FLOPs spent, over paired seeds.

Problems: the recorded runs (real costs and noise of the embedded task, `trainers/recorded`), ZDT1 to ZDT3, DTLZ2,
DTLZ7 and a mixed one (`_analytic`). In all of them trials differ in cost, and the budget is an amount of compute: what
20 (recorded) or 24 random trials cost. Whatever a trial costs counts, stopped ones too, and only complete ones count
for the hypervolume. It is that of true values, without noise (on the recorded problem the mean of its model): luck
is no gain. No method is given a prior. The files of the single runs are kept in a temporary folder that goes by what
the code is, so that a benchmark that was stopped goes on; `python -m benchmarks._search_runs FOLDER` makes them too.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks._search_methods import OURS, PEERS, Event, hypervolumes
from benchmarks._search_problems import TRIALS, UNSEEN, problem
from benchmarks._search_runs import SEEDS, Job, run_all

ROOT = Path(__file__).parent.parent
CODE = ("platform/sweep_platform", "trainers/recorded", "benchmarks/_search_*.py", "benchmarks/_analytic.py", "sweeps")
SHARES = [round(0.05 * step, 2) for step in range(1, 21)]
"""Shares of the budget at which the curves are read."""
SOON = 0.5
"""Share of the budget at which ours is to have what the best peer has at the end."""
Curves = dict[str, list[list[float]]]
"""Method -> by seed, hypervolume at each of `SHARES`."""


def cache() -> Path:
    """Where the runs of this code are kept."""
    digest = hashlib.sha256()
    for pattern in CODE:
        place = ROOT / pattern
        for path in sorted(place.rglob("*") if place.is_dir() else ROOT.glob(pattern)):
            if path.suffix in (".py", ".yaml", ".parquet"):
                digest.update(path.read_bytes())
    return Path(tempfile.gettempdir()) / f"search-benchmark-{digest.hexdigest()[:12]}"


def curves(name: str, runs: dict[Job, list[Event]], share: float) -> Curves:
    """The curves of one problem, as shares of the hypervolume of all that any method ever found."""
    there = problem(name, 0, share=share)
    everything = [event for job, events in runs.items() if job[0] == name for event in events]
    (best,) = hypervolumes(everything, there.reference, [float("inf")])
    amounts = [there.budget * part for part in SHARES]
    found: Curves = {}
    for (where, method, _), events in sorted(runs.items()):
        if where == name:
            volumes = hypervolumes(events, there.reference, amounts)
            found.setdefault(method, []).append([volume / best for volume in volumes])
    return found


def means(rows: list[list[float]]) -> list[float]:
    """The mean over seeds at each share of the budget."""
    return [mean(column) for column in zip(*rows, strict=True)]


def summary(found: Curves, ours: str) -> dict[str, Any]:
    """How one of ours does on a problem beside the peers."""
    ends = {method: means(found[method])[-1] for method in PEERS if method in found}
    best = max(ends, key=lambda method: ends[method])
    mine = means(found[ours])
    reached = next((share for share, value in zip(SHARES, mine, strict=True) if value >= ends[best]), None)
    return {
        "best_peer": best,
        "best_peer_end": ends[best],
        "at_half": mine[SHARES.index(SOON)],
        "end": mine[-1],
        "reached_at": reached,
        "worse_than_random": worse(found[ours], found["random"]),
        "area": mean(mine),
        "areas": {method: mean(means(rows)) for method, rows in found.items()},
        "ends": {method: means(rows)[-1] for method, rows in found.items()},
    }


def worse(ours: list[list[float]], others: list[list[float]]) -> list[float]:
    """Shares of the budget at which ours is worse, paired by seed, by more than two standard errors."""
    found = []
    for share, one, other in zip(SHARES, zip(*ours, strict=True), zip(*others, strict=True), strict=True):
        gaps = [a - b for a, b in zip(one, other, strict=True)]
        if len(gaps) > 1 and mean(gaps) < -2 * stdev(gaps) / len(gaps) ** 0.5:
            found.append(share)
    return found


def run(folder: Path | None = None, *, seeds: int = SEEDS, share: float = 1.0, **limits: Any) -> dict[str, Any]:
    """Do all runs and compare.

    Args:
        folder: where runs are kept.
        seeds: of each method on each problem.
        share: of the budget.
        limits: of `run_all`: problems, methods, workers.
    """
    runs = run_all(folder or cache(), seeds=seeds, share=share, **limits)
    names = [name for name in TRIALS if any(job[0] == name for job in runs)]
    found = {name: curves(name, runs, share) for name in names}
    ours = [method for method in OURS if any(job[1] == method for job in runs)]
    compared = {
        name: {method: summary(by_method, method) for method in ours if method in by_method}
        for name, by_method in found.items()
    }
    first = {name: by_method["ehvi"] for name, by_method in compared.items()}
    ahead = [name for name, item in first.items() if item["reached_at"] is not None and item["reached_at"] <= SOON]
    behind = [name for name, item in first.items() if item["worse_than_random"]]
    return {
        "question": f"Hypervolume of `ehvi` against compute, share of the best known ({seeds} paired seeds)",
        "goal": "the best peer's at 100 % of the budget by 50 % of it; never worse than random (2 SE, paired)",
        "measured": "; ".join(_told(name, item) for name, item in first.items()),
        "met": len(ahead) == len(first) and not behind,
        "peers": [method for method in PEERS if any(job[1] == method for job in runs)],
        "runs": {"compared": compared, "shares": SHARES, "curves": _means_and_errors(found), "seeds": seeds},
    }


def _told(name: str, item: dict[str, Any]) -> str:
    reached = "never" if item["reached_at"] is None else f"at {item['reached_at']:.0%} of the budget"
    random = ", ".join(f"{share:.0%}" for share in item["worse_than_random"])
    below = f", worse than random at {random}" if random else ""
    peer = f"{item['best_peer']}'s final {item['best_peer_end']:.3f}"
    unseen = " (unseen before)" if name in UNSEEN else ""
    return f"{name}{unseen}: {peer} {reached}, {item['end']:.3f} at its end{below}"


def _means_and_errors(found: dict[str, Curves]) -> dict[str, Any]:
    """What is kept of the curves: mean and standard error over seeds."""
    return {
        name: {
            method: {
                "mean": [round(value, 4) for value in means(rows)],
                "error": [
                    round(stdev(column) / len(column) ** 0.5, 4) if len(column) > 1 else 0.0
                    for column in zip(*rows, strict=True)
                ],
            }
            for method, rows in by_method.items()
        }
        for name, by_method in found.items()
    }
