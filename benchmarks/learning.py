"""Does the embedded model learn: the warm start's time and accuracy, and what a default run adds, over seeds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

SEEDS = (0, 1, 2)
_PREPARE = """
import json, time
start = time.perf_counter()
from dapo.trainer import Config, prepare
prepare(Config())
print(json.dumps(time.perf_counter() - start))
"""
_TRAIN = """
import json, sys, time
start = time.perf_counter()
from dapo.trainer import Config, train
points = []
def report(step):
    if "val/accuracy" in step.metrics:
        points.append({"step": step.step, "seconds": time.perf_counter() - start,
                       "accuracy": step.metrics["val/accuracy"], "error": step.metrics["val/accuracy_se"]})
    return True
train(Config.model_validate({"trainer": {"seed": int(sys.argv[1])}}), report)
print(json.dumps(points))
"""


def _python(code: str, cache: str, *arguments: str) -> Any:
    """Run code in a process of its own with all cores, and read the JSON on its last line."""
    cores = str(len(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PLATFORM_CACHE": cache, "OMP_NUM_THREADS": cores},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def run() -> dict[str, Any]:
    """Make the embedded model from nothing, then train the default config from each seed."""
    with tempfile.TemporaryDirectory() as cache:
        warm_seconds = _python(_PREPARE, cache)
        curves = {str(seed): _python(_TRAIN, cache, str(seed)) for seed in SEEDS}
    starts = [curve[0]["accuracy"] for curve in curves.values()]
    gains = [100 * (curve[-1]["accuracy"] - curve[0]["accuracy"]) for curve in curves.values()]
    seconds = [curve[-1]["seconds"] for curve in curves.values()]
    start = statistics.median(starts)
    return {
        "question": "Embedded model: the warm start, and what a default run adds on validation (3 seeds)",
        "goal": "warm start in < 90 s to 20-60 %; a run of <= 60 s gains >= 15 points",
        "measured": (
            f"warm start {warm_seconds:.0f} s to {100 * start:.0f} %; {statistics.median(seconds):.0f} s of training "
            f"gain {statistics.median(gains):.0f} points (least {min(gains):.0f})"
        ),
        "met": warm_seconds < 90 and 0.2 <= start <= 0.6 and max(seconds) <= 60 and min(gains) >= 15,
        "peers": [],
        "runs": {"warm_start_s": warm_seconds, "curves": curves},
    }
