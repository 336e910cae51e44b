"""Runs of the search benchmark, each kept as a file: python -m benchmarks._search_runs FOLDER.

Stopped and started again, the command goes on with what is missing. Each run has one thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks._search_methods import OURS, PEERS, Event, run
from benchmarks._search_problems import TRIALS

SEEDS = 20
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Job = tuple[str, str, int]
"""Problem, method, seed."""


def jobs(problems: tuple[str, ...], methods: tuple[str, ...], seeds: int) -> list[Job]:
    """All runs; one seed after the other, so that what is there at any time can be compared."""
    return [
        (name, method, seed)
        for seed in range(seeds)
        for name in problems
        for method in methods
        if name == "recorded" or method not in ("ehvi, pruning", "tpe, ours")
    ]


def path_of(folder: Path, job: Job) -> Path:
    """Where a run is kept."""
    name, method, seed = job
    return folder / f"{name}-{method.replace(', ', '-').replace(' ', '-')}-{seed:03d}.json"


def keep(folder: Path, job: Job, share: float) -> None:
    """Do one run and keep its events; nothing if it is there already."""
    path = path_of(folder, job)
    if path.exists():
        return
    began = time.perf_counter()
    name, method, seed = job
    events = run(method, name, seed, share)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"events": events, "seconds": time.perf_counter() - began}))
    unfinished.replace(path)


def run_all(
    folder: Path,
    *,
    problems: tuple[str, ...] = tuple(TRIALS),
    methods: tuple[str, ...] = (*OURS, *PEERS),
    seeds: int = SEEDS,
    share: float = 1.0,
    workers: int | None = None,
) -> dict[Job, list[Event]]:
    """Do all runs that aren't in the folder, and return the events of all."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    wanted = jobs(problems, methods, seeds)
    missing = [job for job in wanted if not path_of(folder, job).exists()]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        for done, future in enumerate(as_completed([pool.submit(keep, folder, job, share) for job in missing]), 1):
            future.result()
            sys.stderr.write(f"\r{done}/{len(missing)} runs")
    found = {job: json.loads(path_of(folder, job).read_text())["events"] for job in wanted}
    return {job: [(spent, tuple(losses)) for spent, losses in events] for job, events in found.items()}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks._search_runs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--problems", nargs="+", default=list(TRIALS), choices=list(TRIALS))
    parser.add_argument("--methods", nargs="+", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    given = parser.parse_args()
    methods, problems = tuple(given.methods), tuple(given.problems)
    run_all(given.folder, problems=problems, methods=methods, seeds=given.seeds, workers=given.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
