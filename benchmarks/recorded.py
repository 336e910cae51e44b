"""How well the simulator knows a config that it has not seen, and how fast it is.

Every config of the table is left out once, both its seeds, the model fitted to the others, and its runs predicted:
accuracy at the end, and FLOPs. What differs between two seeds of one config is the least error that any model could
have.
"""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

TRIALS = 50
"""Runs of 40 updates for the speed."""


def left_out(key: str) -> list[dict[str, float]]:
    """Fit without one config; the errors of its runs."""
    from recorded.surrogate import Surrogate
    from recorded.table import recorded_runs

    runs = recorded_runs()
    model = Surrogate.fit([run for run in runs if run.key != key])
    found = []
    for run in (run for run in runs if run.key == key):
        curve = model.curve(model.mean(run.params))
        found.append(
            {
                "accuracy": float(curve["accuracy"][-1] - run.curve["accuracy"][-1]),
                "accuracy at 10": float(curve["accuracy"][10] - run.curve["accuracy"][10]),
                **{name: math.log(curve[name][-1] / run.curve[name][-1]) for name in ("flops", "tokens")},
            }
        )
    return found


def between_seeds() -> dict[str, float]:
    """Root mean square of what one run differs by from the mean of its config, by the pairs of seeds."""
    from recorded.table import recorded_runs

    by_key: dict[str, list[Any]] = {}
    for run in recorded_runs():
        by_key.setdefault(run.key, []).append(run.curve)
    pairs = [curves for curves in by_key.values() if len(curves) == 2]
    differences = {
        "accuracy": [one["accuracy"][-1] - other["accuracy"][-1] for one, other in pairs],
        "accuracy at 10": [one["accuracy"][10] - other["accuracy"][10] for one, other in pairs],
        **{name: [math.log(one[name][-1] / other[name][-1]) for one, other in pairs] for name in ("flops", "tokens")},
    }
    return {name: root_mean_square(values) / math.sqrt(2) for name, values in differences.items()}


def root_mean_square(values: list[float]) -> float:
    """Root of the mean of the squares."""
    return float(np.sqrt(np.mean(np.square(values))))


def seconds_per_run() -> tuple[float, float]:
    """Seconds until the first run is over, model fit included, and of each later one."""
    from recorded.limits import BASE
    from recorded.trainer import Config, train

    def replay(seed: int) -> None:
        tree = BASE.model_dump(mode="json")
        tree["trainer"] |= {"total_training_steps": 40, "seed": 1000 + seed}
        train(Config.model_validate(tree), lambda step: True)

    began = time.perf_counter()
    replay(0)
    first = time.perf_counter()
    for seed in range(1, TRIALS):
        replay(seed)
    return first - began, (time.perf_counter() - first) / (TRIALS - 1)


def run() -> dict[str, Any]:
    """Leave each config out once, and time replays."""
    from recorded.table import recorded_runs

    runs = recorded_runs()
    keys = list(dict.fromkeys(run.key for run in runs))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        errors = [error for found in pool.map(left_out, keys) for error in found]
    missed = {name: root_mean_square([error[name] for error in errors]) for name in errors[0]}
    floor, spread = between_seeds(), float(np.std([run.curve["accuracy"][-1] for run in runs]))
    # A left-out run differs from the prediction by the model's error and by its own noise.
    model = {name: math.sqrt(max(missed[name] ** 2 - floor[name] ** 2, 0.0)) for name in missed}
    first, later = seconds_per_run()
    measured = (
        f"{100 * missed['accuracy']:.1f} points after 40 updates ({100 * floor['accuracy']:.1f} between seeds, "
        f"{100 * spread:.1f} among the runs), {100 * missed['accuracy at 10']:.1f} after 10 "
        f"({100 * floor['accuracy at 10']:.1f}); FLOPs {missed['flops']:.0%} ({floor['flops']:.0%}); "
        f"{1000 * later:.1f} ms for a run of 40 updates, {first:.1f} s for the first in a process"
    )
    return {
        "question": f"Error of the simulator on a config that it hasn't seen ({len(keys)} configs, {len(runs)} runs)",
        "goal": "accuracy within 1.5 times the noise between seeds, FLOPs within 20 %",
        "measured": measured,
        "met": missed["accuracy"] <= 1.5 * floor["accuracy"] and missed["flops"] <= 0.2,
        "peers": [],
        "runs": {
            "missed": missed,
            "between_seeds": floor,
            "of_the_model": model,
            "seconds_first": first,
            "seconds_later": later,
        },
    }
