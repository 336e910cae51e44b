"""What a process of `Command` runs, and what it would otherwise spend seconds on loading."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import mlflow.store.tracking.sqlalchemy_store
import optuna
import run_ledger.ledger
import sweep_platform.plots.html_insight
import sweep_platform.plots.image_insight
import sweep_platform.plots.save
import sweep_platform.search.samplers
import sweep_platform.tracking.projector
from sweep_platform import tracking
from sweep_platform.cli import main
from sweep_platform.driver import holding
from sweep_platform.executors import inline
from sweep_platform.tracking import MLflowObserver
from toybox import trainer

from kills.command import READY

LOADED = (mlflow, optuna, run_ledger, sweep_platform, inline, trainer)
FLUSH_S = 0.2


def run(words: list[str], environment: dict[str, str], lease_s: float) -> None:
    """Run `platform WORDS`, with MLflow written often.

    Args:
        words: of the command.
        environment: variables that it sees.
        lease_s: how long its lease lives without a word.
    """
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script started in the background
    vars(tracking)["MLflowObserver"] = partial(MLflowObserver, flush_s=FLUSH_S)
    vars(holding)["LEASE_S"] = lease_s
    sys.argv = ["platform", *words]
    os.write(1, READY)
    main()
