"""Generated tokens until a fixed validation accuracy: plain DAPO, and each switch that wastes less, over seeds.

Every run makes the same number of updates on the same batch size, so a variant that learns the same from an update
reaches the accuracy at the same update and differs in what the updates cost. Tokens are all those generated for
training, filtered, surplus and pilot ones included; evaluation is not in them. A run that never reaches the accuracy
counts with all its tokens, which flatters it, and is told.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SEEDS = (0, 1, 2, 3, 4)
TARGET = 0.82
UPDATES = 18
EVALUATE_EVERY = 3
CARRY = {"algorithm": {"filter_groups": {"surplus": "carry"}}}
HISTORY = {"data": {"selection": {"strategy": "thompson"}}}
PILOT = {"rollout": {"pilot_n": 4}}
FINE_ROUNDS = {"data": {"gen_batch_size": 16}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "carry": CARRY,
    "history": HISTORY,
    "pilot": PILOT,
    "carry and pilot": {**CARRY, **PILOT, **FINE_ROUNDS},
    "all": {**CARRY, **PILOT, "data": {**HISTORY["data"], **FINE_ROUNDS["data"]}},
}
_TRAIN = """
import json, sys
from dapo.trainer import Config, train
points, shares = [], []
def report(step):
    if "val/accuracy" in step.metrics:
        points.append({"step": step.step, "tokens": step.cost.tokens, "flops": step.cost.flops,
                       "accuracy": step.metrics["val/accuracy"], "error": step.metrics["val/accuracy_se"]})
    shares.append({name.split("/")[1]: value for name, value in step.metrics.items() if name[:13] == "tokens_total/"})
    return True
train(Config.model_validate(json.loads(sys.argv[1])), report)
print(json.dumps({"curve": points, "tokens": shares[-1]}))
"""


def _train(variant: str, seed: int) -> dict[str, Any]:
    """Train in a process of its own, on one thread."""
    trainer = {"seed": seed, "num_threads": 1, "total_training_steps": UPDATES, "test_freq": EVALUATE_EVERY}
    rollout = {**VARIANTS[variant].get("rollout", {}), "val_kwargs": {"n": 2}}
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, json.dumps({**VARIANTS[variant], "rollout": rollout, "trainer": trainer})],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    sys.stderr.write(f"{variant}, seed {seed}: done\n")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tokens_to(curve: list[dict[str, float]], target: float) -> float | None:
    """Tokens at which the straight line between evaluations first meets `target`; None if it never does."""
    for before, after in zip(curve, curve[1:], strict=False):
        if after["accuracy"] >= target:
            share = (target - before["accuracy"]) / (after["accuracy"] - before["accuracy"])
            return before["tokens"] + max(share, 0.0) * (after["tokens"] - before["tokens"])
    return None


def _summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """One variant's figures, over its seeds."""
    reached = [tokens_to(run["curve"], TARGET) for run in runs]
    counted = [run["curve"][-1]["tokens"] if found is None else found for found, run in zip(reached, runs, strict=True)]
    finals = [run["curve"][-1]["accuracy"] for run in runs]
    return {
        "tokens_to_target": statistics.mean(counted),
        "standard_error": statistics.stdev(counted) / len(counted) ** 0.5,
        "never_reached": float(sum(found is None for found in reached)),
        "tokens": statistics.mean(run["curve"][-1]["tokens"] for run in runs),
        "final_accuracy": statistics.mean(finals),
        "final_accuracy_error": statistics.stdev(finals) / len(finals) ** 0.5,
    }


def run() -> dict[str, Any]:
    """Train every variant from every seed, as many at once as there are cores."""
    from dapo.trainer import Config, prepare

    prepare(Config())
    jobs = [(variant, seed) for seed in SEEDS for variant in VARIANTS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda job: _train(*job), jobs))
    runs = {name: [result for job, result in zip(jobs, results, strict=True) if job[0] == name] for name in VARIANTS}
    summaries = {name: _summary(found) for name, found in runs.items()}
    plain = summaries["plain"]
    parts = [
        f"{name} {item['tokens_to_target'] / 1000:.0f}k ± {item['standard_error'] / 1000:.0f}k"
        f" ({item['tokens_to_target'] / plain['tokens_to_target']:.2f} of plain), at the end "
        f"{100 * item['final_accuracy']:.1f} ± {100 * item['final_accuracy_error']:.1f} %"
        + (f", {item['never_reached']:.0f} never reached it" if item["never_reached"] else "")
        for name, item in summaries.items()
    ]
    best = min(
        (item for item in summaries.values() if item["final_accuracy"] >= plain["final_accuracy"] - 0.01),
        key=lambda item: item["tokens_to_target"],
    )
    return {
        "question": f"Generated tokens to {TARGET:.0%} validation accuracy on the embedded task ({len(SEEDS)} seeds)",
        "goal": "half of plain DAPO's or fewer, at the same final accuracy (within 1 point)",
        "measured": "; ".join(parts),
        "met": best["tokens_to_target"] <= plain["tokens_to_target"] / 2,
        "peers": [],
        "runs": {"settings": VARIANTS, "updates": UPDATES, "summaries": summaries, "seeds": SEEDS, "curves": runs},
    }
