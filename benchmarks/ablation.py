"""The DAPO paper's table of steps (arXiv 2503.14476, Table 1), from naive GRPO to DAPO, repeated on the embedded task.

Each row adds one step to the row before it. What all rows share: no KL (the paper leaves it out of DAPO; its naive
GRPO is given none either, so that the rows differ by what they name), rewards of 1 and -1, 32 prompts x 8 responses
an update, 16 optimiser steps on them (the paper's number: with one, no ratio would ever leave the clip range), and a
length limit that the longest right solutions hardly fit into. The overlong penalty begins at four fifths of the
limit, as in the paper. Filtering of overlong responses stays on under the rows after it.

Compared at equal updates, as the paper does, and at equal generated tokens: dynamic sampling trains on about half of
what it generates. Rows are paired by seed: same order of prompts, same noise at evaluation.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SEEDS = (0, 1, 2, 3, 4)
UPDATES = 15
EVALUATE_EVERY = 3
NAIVE: dict[str, Any] = {
    "data": {"max_response_length": 28},
    "algorithm": {"filter_groups": {"enable": False}},
    "actor": {"clip_ratio_high": 0.2, "loss_agg_mode": "seq-mean-token-mean", "ppo_mini_batch_size": 2},
    "rollout": {"val_kwargs": {"n": 2}},
}
STEPS: dict[str, dict[str, Any]] = {
    "naive GRPO": {},
    "+ overlong filtering": {"reward": {"overlong_filtering": True}},
    "+ clip-higher": {"actor": {"clip_ratio_high": 0.28}},
    "+ soft overlong punishment": {"reward": {"overlong_buffer": {"enable": True, "len": 6}}},
    "+ token-level loss": {"actor": {"loss_agg_mode": "token-mean"}},
    "+ dynamic sampling": {"algorithm": {"filter_groups": {"enable": True, "on_exhausted": "train_partial"}}},
}
PAPER = ", ".join(f"{name} {figure} %" for name, figure in zip(STEPS, (30, 36, 38, 41, 42, 50), strict=True))
"""The paper's own figures."""
_TRAIN = """
import json, sys
from dapo.trainer import Config, train
points, updates = [], []
def report(step):
    if "val/accuracy" in step.metrics:
        points.append({"step": step.step, "tokens": step.cost.tokens, "accuracy": step.metrics["val/accuracy"],
                       "error": step.metrics["val/accuracy_se"]})
    names = ("response_length/clip_ratio", "actor/pg_clipfrac", "actor/entropy", "filter/yield")
    updates.append({name: step.metrics[name] for name in names if name in step.metrics})
    return True
train(Config.model_validate(json.loads(sys.argv[1])), report)
print(json.dumps({"curve": points, "updates": updates}))
"""


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with those of `other` on top."""
    both = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], Mapping):
            both[key] = merged(one[key], other[key])
    return both


def rows() -> dict[str, dict[str, Any]]:
    """The settings of each row: every step so far."""
    found, settings = {}, NAIVE
    for name, step in STEPS.items():
        settings = merged(settings, step)
        found[name] = settings
    return found


def _train(row: str, seed: int) -> dict[str, Any]:
    """Train in a process of its own, on one thread."""
    trainer = {"seed": seed, "num_threads": 1, "total_training_steps": UPDATES, "test_freq": EVALUATE_EVERY}
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, json.dumps({**rows()[row], "trainer": trainer})],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    sys.stderr.write(f"{row}, seed {seed}: done\n")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def accuracy_at(curve: Sequence[Mapping[str, float]], tokens: float) -> float:
    """Accuracy after so many generated tokens, on the straight line between evaluations; at most the last one's."""
    for before, after in zip(curve, curve[1:], strict=False):
        if after["tokens"] >= tokens:
            share = (tokens - before["tokens"]) / (after["tokens"] - before["tokens"])
            return before["accuracy"] + share * (after["accuracy"] - before["accuracy"])
    return curve[-1]["accuracy"]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error over seeds."""
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def compared(runs: Mapping[str, list[dict[str, Any]]], read: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """Accuracy of each row over seeds, and what it adds to the row before it and to the first, paired by seed."""
    found: dict[str, Any] = {}
    first = before = None
    for name, row in runs.items():
        values = [read(run) for run in row]
        found[name] = {"accuracy": mean_and_error(values)}
        for key, other in (("over_row_before", before), ("over_naive", first)):
            if other is not None:
                found[name][key] = mean_and_error([a - b for a, b in zip(values, other, strict=True)])
        first, before = first or values, values
    return found


def _means(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What happened in one row: means over its updates and seeds."""
    updates = [update for run in runs for update in run["updates"] if update]
    means = {name: statistics.mean(update[name] for update in updates) for name in updates[0]}
    return means | {"tokens": statistics.mean(run["curve"][-1]["tokens"] for run in runs)}


def run() -> dict[str, Any]:
    """Train every row from every seed, as many at once as there are cores."""
    from dapo.trainer import Config, prepare

    prepare(Config())
    jobs = [(row, seed) for seed in SEEDS for row in STEPS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda job: _train(*job), jobs))
    runs = {name: [result for job, result in zip(jobs, results, strict=True) if job[0] == name] for name in STEPS}
    tokens = min(run["curve"][-1]["tokens"] for found in runs.values() for run in found)
    updates = compared(runs, lambda run: run["curve"][-1]["accuracy"])
    equal = compared(runs, lambda run: accuracy_at(run["curve"], tokens))
    parts = [
        f"{name} {_percent(updates[name]['accuracy'])} at equal updates, {_percent(equal[name]['accuracy'])} at equal "
        f"tokens"
        for name in STEPS
    ]
    gains = [found["+ dynamic sampling"]["over_naive"] for found in (updates, equal)]
    over = f"{_points(gains[0])} at equal updates, {_points(gains[1])} at equal tokens"
    return {
        "question": f"The DAPO paper's steps on the embedded task: validation accuracy after {UPDATES} updates, and "
        f"after {tokens / 1000:.0f}k generated tokens ({len(SEEDS)} seeds)",
        "goal": "DAPO above naive GRPO by more than two standard errors, at equal updates and at equal tokens",
        "measured": "; ".join([*parts, f"DAPO over naive GRPO, paired by seed: {over}"]),
        "met": all(gain > 2 * error for gain, error in gains),
        "peers": [{"name": "paper: Qwen2.5-32B, AIME 2024 avg@32", "version": "arXiv 2503.14476", "figure": PAPER}],
        "runs": {
            "settings": rows(),
            "updates": UPDATES,
            "tokens": tokens,
            "seeds": SEEDS,
            "at_equal_updates": updates,
            "at_equal_tokens": equal,
            "means": {name: _means(found) for name, found in runs.items()},
            "curves": {name: [run["curve"] for run in found] for name, found in runs.items()},
        },
    }


def _percent(value: tuple[float, float]) -> str:
    return f"{100 * value[0]:.1f} ± {100 * value[1]:.1f} %"


def _points(value: tuple[float, float]) -> str:
    return f"{100 * value[0]:+.1f} ± {100 * value[1]:.1f} points"
