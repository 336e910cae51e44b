"""Make the table of real runs that the trainer `recorded` replays: python -m benchmarks._record_runs FOLDER.

Configs are a scrambled Sobol sequence over the default sweep's space, without those that its constraints refuse; every
third is trained under two seeds, so that the noise between runs is known. All have the longest length of the space and
are evaluated on the way, and the learning rate doesn't depend on the length, so one run tells what every shorter one
would have shown. Each finished run is a file in FOLDER: killed and started again, the command goes on with the rest.
It uses all cores, one thread a run; `--workers` uses fewer. Device-seconds are those of the run's own thread: what else
the machine does meanwhile isn't in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "trainers" / "recorded" / "runs.parquet"
CONFIGS, DESIGN_SEED = 114, 2026
STEPS = 40
EVALUATED = (1, 2, 3, 5, 7, 10, 15, 20, 30)
"""Updates after which a run is evaluated, beside the last."""
NOT_VARIED = (
    "trainer.total_training_steps",
    "rollout.tensor_model_parallel_size",
    "actor.ulysses_sequence_parallel_size",
)
_TRAIN = """
import json, sys, time
from dapo.trainer import Config, train
steps = []
wall, busy = time.perf_counter(), time.process_time()
def report(step):
    kept = ("val/accuracy", "val/accuracy_se", "val/response_length", "filter/yield", "perf/peak_memory_gb")
    found = {name: step.metrics[name] for name in kept if name in step.metrics}
    cost = {"flops": step.cost.flops, "tokens": step.cost.tokens}
    share = (time.process_time() - busy) / (time.perf_counter() - wall)
    cost["device_seconds"] = step.cost.device_seconds * min(share, 1.0)
    steps.append({"step": step.step, **cost, **found})
    return True
train(Config.model_validate(json.loads(sys.argv[1])), report)
print(json.dumps(steps))
"""


def design() -> Iterator[tuple[dict[str, Any], int, dict[str, Any]]]:
    """Yield params, seed and the trainer's config of each run."""
    from scipy.stats.qmc import Sobol
    from sweep_platform.search import Feasibility, Space
    from sweep_platform.spec import load_spec
    from sweep_platform.trainers import load_trainer

    spec = load_spec(ROOT / "sweeps" / "aime.yaml", [f"~search.{path}" for path in NOT_VARIED])
    space, feasibility = Space(spec), Feasibility(spec, load_trainer(spec.trainer))
    engine, found = Sobol(len(space.domains), scramble=True, rng=DESIGN_SEED), 0
    while found < CONFIGS:
        params = space.at(dict(zip(space.domains, map(float, engine.random(1)[0]), strict=True)))
        if feasibility.refuse(params) is not None:
            continue
        for seed in (0, 1) if found % 3 == 0 else (0,):
            config = spec.trial_config(params)
            config["trainer"] |= {"total_training_steps": STEPS, "seed": seed, "num_threads": 1, "test_freq": 0}
            config["trainer"]["test_at"] = [step / STEPS for step in EVALUATED]
            yield params, seed, config
        found += 1


def train(path: Path, params: dict[str, Any], seed: int, config: dict[str, Any]) -> None:
    """Train one run in a process of its own, and keep what it told; nothing if it is there already."""
    if path.exists():
        return
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, json.dumps(config)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    steps = json.loads(done.stdout.splitlines()[-1])
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"params": params, "seed": seed, "steps": steps}))
    unfinished.replace(path)
    sys.stderr.write(f"{path.name}: {steps[-1]['val/accuracy']:.3f} in {steps[-1]['device_seconds']:.0f} s\n")


def collect(folder: Path) -> None:
    """Write the table: one row a step of a run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        run = json.loads(path.read_text())
        fixed = {"run": number, "seed": run["seed"], "params": json.dumps(run["params"], sort_keys=True)}
        names = {"val/accuracy": "accuracy", "val/accuracy_se": "accuracy_se"}
        rows += [{**fixed, **{names.get(key, key): value for key, value in step.items()}} for step in run["steps"]]
    columns = sorted({key for row in rows for key in row})
    table = pa.table({column: [row.get(column) for row in rows] for column in columns})
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, TABLE, compression="zstd")
    sys.stderr.write(f"{TABLE}: {len(rows)} rows of {rows[-1]['run'] + 1} runs\n")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks._record_runs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    from dapo.trainer import Config, prepare

    prepare(Config())
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.workers) as pool:
        jobs = [pool.submit(train, folder / f"{number:03d}.json", *run) for number, run in enumerate(design())]
        for job in jobs:
            job.result()
    collect(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
