"""A sweep of the toy trainer as a command, to be killed: python -m toybox.command HOME EXECUTOR [SECONDS]."""

from __future__ import annotations

import sys
from pathlib import Path

from run_ledger import Ledger
from sweep_platform.executors import make_executor
from sweep_platform.home import Home

from toybox.sweeps import run_sweep, toy_spec

TRIALS = 6
STEPS = 5


def main(folder: str, name: str, seconds: str = "0.05") -> int:
    """Run to the end; 130 after Ctrl-C or SIGTERM."""
    home = Home(Path(folder))
    spec = toy_spec(
        run={"seconds": float(seconds), "save_freq": 1, "total_training_steps": STEPS},
        sampler={"name": "tpe", "n_startup": 2},
        budget={"trials": TRIALS, "concurrency": 2},
        hardware={"cores": 2},
    )
    try:
        with Ledger.open(home.ledger_url) as ledger:
            run_sweep(ledger, home, spec, make_executor("ray" if name == "ray" else "inline"))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
