"""The default sweep, from nothing: wall time, first progress, what the frontier separates, and the README's picture."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLATFORM = Path(sys.executable).with_name("platform")
ROOT = Path(__file__).parent.parent
LIMIT_S = 600


def _sweep(environment: dict[str, str]) -> dict[str, float]:
    """Run the sweep with an empty home and cache; return seconds to the first line and to the end."""
    start = time.perf_counter()
    with subprocess.Popen(
        [PLATFORM, "sweep", "sweeps/aime.yaml"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = None
        for line in process.stdout:
            first = first or time.perf_counter() - start
            sys.stderr.write(line)
    if process.returncode:
        raise RuntimeError(f"the sweep ended with exit code {process.returncode}")
    return {"first_progress_s": first or math.inf, "wall_s": time.perf_counter() - start}


def separated(points: list[dict[str, Any]]) -> int:
    """How many points of the front can be taken so that neighbours differ by more than their combined error."""
    chosen: list[dict[str, Any]] = []
    for point in points:
        value, error = point["values"]["val/accuracy"], point["errors"]["val/accuracy"]
        if not chosen:
            chosen.append(point)
            continue
        last = chosen[-1]
        gap = value - last["values"]["val/accuracy"]
        if gap > math.hypot(error, last["errors"]["val/accuracy"]):
            chosen.append(point)
    return len(chosen)


def run() -> dict[str, Any]:
    """Run `platform sweep sweeps/aime.yaml` as on a fresh machine."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PLATFORM_HOME": f"{folder}/home", "PLATFORM_CACHE": f"{folder}/cache"}
        timing = _sweep(environment)
        reply = subprocess.run(
            [PLATFORM, "pareto", "aime", "--json"], env=environment, check=True, capture_output=True, text=True
        )
        picture = [PLATFORM, "pareto", "aime", "--plot", ROOT / "docs" / "frontier.png"]
        subprocess.run(picture, env=environment, check=True, stdout=subprocess.DEVNULL)
        status = subprocess.run(
            [PLATFORM, "status", "aime", "--json"], env=environment, check=True, capture_output=True, text=True
        )
    front = json.loads(reply.stdout)["points"]
    trials = json.loads(status.stdout)["trials"]
    full = sum(trial["state"] == "complete" for trial in trials)
    distinct = separated(front)
    return {
        "question": "The default sweep from an empty cache: seconds, full trials, frontier points apart by > 1 SE",
        "goal": f">= 10 full trials in <= {LIMIT_S} s, first progress <= 10 s, >= 3 points apart",
        "measured": (
            f"{full} full trials in {timing['wall_s']:.0f} s, first progress {timing['first_progress_s']:.1f} s, "
            f"{distinct} points apart ({len(front)} on the front)"
        ),
        "met": full >= 10 and timing["wall_s"] <= LIMIT_S and timing["first_progress_s"] <= 10 and distinct >= 3,
        "peers": [],
        "runs": {**timing, "front": front, "trials": trials},
    }
