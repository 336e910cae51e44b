"""What the platform adds around a trial: the same configs trained by `platform sweep` and by calling the trainer.

Counted, for a trial: the time from the end of `train()` to the start of the next one's in the same process (recording
the result, the frontier's bookkeeping, asking for a candidate, checking it, dispatching it, and waiting for an older
trial, as a suggestion may have to), and all time inside `report()` (the way to the driver and back, the ledger's
commit). Both over the rest of the time in `train()`. MLflow is written beside the trials, so what it takes shows where
trials take longer than those trained directly. Starting Ray, once a sweep, belongs to no trial.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from run_ledger import Ledger
from sweep_platform.home import Home

from benchmarks._timed_trainer import TIMES

GOAL = 0.02
PLATFORM = Path(sys.executable).with_name("platform")
ROOT = Path(__file__).parent.parent
STEPS = 20
SETUPS = {"ray": (2, 6), "inline": (1, 4)}
"""Executor -> trials at once, trials in all."""
SWEEP = {
    "defaults": [{"model": "tiny"}, {"data": "arithmetic"}, {"hardware": "cpu"}, "_self_"],
    "name": "overhead",
    "trainer": "benchmarks._timed_trainer",
    "data": {"train_batch_size": 32, "gen_batch_size": 32},
    "config": {
        "algorithm": {"filter_groups": {"on_exhausted": "train_partial"}},
        "trainer": {"total_training_steps": STEPS, "test_freq": 10},
    },
    "objectives": [
        {"metric": "val/accuracy", "direction": "maximize"},
        {"metric": "cost/flops", "direction": "minimize"},
    ],
    # Candidates must differ; these differ too little to train differently long.
    "search": {
        "actor.clip_ratio_low": {"float": [0.2, 0.200001]},
        "actor.clip_ratio_high": {"float": [0.28, 0.280001]},
        "reward.overlong_buffer.penalty_factor": {"float": [1.0, 1.000001]},
    },
    "sampler": {"name": "tpe", "n_startup": 2},
}


def _sweep(folder: Path, executor: str, concurrency: int, trials: int, environment: dict[str, str]) -> Home:
    """Run a sweep in a home of its own."""
    home = Home(folder / executor)
    home.root.mkdir()
    spec = home.root / "sweep.yaml"
    spec.write_text(yaml.safe_dump({**SWEEP, "budget": {"concurrency": concurrency, "trials": trials}}))
    command = [PLATFORM, "sweep", spec, "--executor", executor]
    subprocess.run(
        command, env={**environment, "PLATFORM_HOME": str(home.root)}, stdout=sys.stderr, cwd=folder, check=True
    )
    return home


def _configs(home: Home) -> tuple[list[dict[str, Any]], list[Path]]:
    """What the sweep's trials trained, and their folders."""
    with Ledger.open(home.ledger_url) as ledger:
        sweep = ledger.find_sweep("overhead")
        assert sweep is not None
        trials = [trial for trial in ledger.trials(sweep.id) if trial.state == "complete"]
        return [dict(trial.config) for trial in trials], [home.trial_dir(sweep, trial.number) for trial in trials]


def _directly(
    folder: Path, configs: list[dict[str, Any]], processes: int, environment: dict[str, str]
) -> list[dict[str, float]]:
    """Train the same configs by calling the trainer, in as many processes at once, with as many threads."""
    folders = [folder / str(number) for number in range(len(configs))]
    lines = []
    for config, place in zip(configs, folders, strict=True):
        lines.append(json.dumps({**config, "trainer": {**config["trainer"], "default_local_dir": str(place)}}))
    threads = str(configs[0]["trainer"]["num_threads"])
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    command = [sys.executable, "-m", "benchmarks._timed_trainer"]
    started = []
    for index in range(processes):
        process = subprocess.Popen(command, env=environment | variables, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.write("\n".join(lines[index::processes]) + "\n")
        process.stdin.close()
        started.append(process)
    if any([process.wait() for process in started]):
        raise RuntimeError("the trainer failed when it was called directly")
    return _times(folders)


def _times(folders: list[Path]) -> list[dict[str, float]]:
    return [json.loads((folder / TIMES).read_text()) for folder in folders]


def overheads(times: list[dict[str, float]]) -> list[dict[str, float]]:
    """Training, reporting and waiting seconds of each trial that another one followed in its process."""
    by_process: dict[float, list[dict[str, float]]] = defaultdict(list)
    for one in sorted(times, key=lambda one: one["began"]):
        by_process[one["pid"]].append(one)
    return [
        {
            "train_s": one["ended"] - one["began"] - one["report_s"],
            "report_s": one["report_s"],
            "between_s": after["began"] - one["ended"],
        }
        for chain in by_process.values()
        for one, after in zip(chain, chain[1:], strict=False)
    ]


def run() -> dict[str, Any]:
    """Measure each executor against the trainer alone."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    runs: dict[str, Any] = {}
    shares, direct = {}, {}
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        for executor, (concurrency, trials) in SETUPS.items():
            home = _sweep(Path(name), executor, concurrency, trials, environment)
            configs, folders = _configs(home)
            alone = _directly(Path(name) / f"{executor}-alone", configs, concurrency, environment)
            around = overheads(_times(folders))
            each = [(one["report_s"] + one["between_s"]) / one["train_s"] for one in around]
            shares[executor] = statistics.median(each)
            direct[executor] = statistics.median(one["ended"] - one["began"] for one in alone)
            whole = statistics.median(sum(one.values()) for one in around)
            runs[executor] = {"concurrency": concurrency, "trials": around, "shares": each, "directly": alone}
            runs[executor] |= {"median_whole_s": whole, "median_directly_s": direct[executor]}
    return {
        "question": "Time that the platform adds around a trial, as a share of its training time (median)",
        "goal": f"< {GOAL:.0%} with either executor",
        "measured": "; ".join(
            f"{name} ({SETUPS[name][0]} at once): {share:.2%}, whole trial {runs[name]['median_whole_s']:.1f} s "
            f"against {direct[name]:.1f} s directly"
            for name, share in shares.items()
        ),
        "met": max(shares.values()) < GOAL,
        "peers": [
            {
                "name": f"the trainer called directly, {SETUPS[name][0]} at once, same configs and threads",
                "version": "this commit",
                "figure": f"{seconds:.1f} s a trial of {STEPS} updates",
            }
            for name, seconds in direct.items()
        ],
        "runs": runs,
    }
