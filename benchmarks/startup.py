"""How fast the command line answers: median of whole processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPEATS = 7
PLATFORM = Path(sys.executable).with_name("platform")
ROOT = Path(__file__).parent.parent


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([PLATFORM, *arguments], check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - start


def run() -> dict[str, Any]:
    """Time `platform --help` and `platform validate`; the peer is `optuna --help` from the same environment."""
    peer = Path(sys.executable).with_name("optuna")
    runs: dict[str, list[float]] = {"help": [], "validate": [], "optuna_help": []}
    for _ in range(REPEATS):
        runs["help"].append(_seconds("--help"))
        runs["validate"].append(_seconds("validate", "sweeps/aime.yaml"))
        start = time.perf_counter()
        subprocess.run([peer, "--help"], check=True, capture_output=True)
        runs["optuna_help"].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in runs.items()}
    from importlib.metadata import version

    return {
        "question": "Seconds until `platform --help` and `platform validate` answer",
        "goal": "both under 1 s",
        "measured": f"help {median['help']:.2f} s, validate {median['validate']:.2f} s",
        "met": max(median["help"], median["validate"]) < 1.0,
        "peers": [{"name": "optuna --help", "version": version("optuna"), "figure": f"{median['optuna_help']:.2f} s"}],
        "runs": runs,
    }
