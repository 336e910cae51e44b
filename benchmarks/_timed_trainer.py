"""The DAPO trainer with a stopwatch; for `benchmarks.overhead`, in a sweep and on its own.

`python -m benchmarks._timed_trainer` reads configs, one a line of JSON, and trains one after the other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from dapo import trainer as dapo
from dapo.trainer import Config, Report, StepMetrics, preflight, prepare

__all__ = ["TIMES", "Config", "preflight", "prepare", "train"]

TIMES = "times.json"
"""In the run's folder: its process, when it began and ended (seconds of one clock for all processes), seconds in
`report`."""


def train(config: Config, report: Report) -> None:
    """Train, and write down the times."""
    reporting = 0.0

    def timed(step: StepMetrics) -> bool:
        nonlocal reporting
        start = time.perf_counter()
        go_on = report(step)
        reporting += time.perf_counter() - start
        return go_on

    began = time.monotonic()
    dapo.train(config, timed)
    times = {"pid": os.getpid(), "began": began, "ended": time.monotonic(), "report_s": reporting}
    folder = config.trainer.default_local_dir
    assert folder is not None
    (Path(folder) / TIMES).write_text(json.dumps(times))


if __name__ == "__main__":
    for line in sys.stdin:
        train(Config.model_validate_json(line), lambda _: True)
