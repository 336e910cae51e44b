"""How the time of a step grows, and whether `platform estimate` tells it: against runs here, and against public ones.

Here: batch, response length, width and processes are changed one at a time, on a core each. The estimate knows the
processor's speed in a product and of its memory, measured just before, and nothing of the runs. Elsewhere: the same
model of a step estimates published runs of verl with 7B and 32B on up to 128 devices. These are estimates of other
people's runs by another trainer, of which some sizes are assumed: whoever reads them as measurements is misled.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._growth_runs import BASE, GROWN, MEAN_PROMPT, Size, make_models, measure
from benchmarks._published_steps import fitted

GOAL, PUBLISHED_GOAL = 1.5, 2.0
EXACT = 0.02
"""Spread of lengths where all reach the limit."""


def _figures() -> dict[str, Any]:
    """This processor's, of one core, as a sweep's `hardware` has them."""
    import torch
    from dapo.config import Config
    from dapo.hardware import Machine

    torch.set_num_threads(1)
    machine = Machine.of(Config(), {})
    return {"peak_tflops": {"float32": machine.peak / 1e12}, "memory_gb_per_s": machine.memory / 1e9}


def predict(size: Size, model: str, figures: dict[str, Any], sampled: float) -> dict[str, float]:
    """Estimate a run's seconds a step, and those of its phases."""
    from dapo.config import Config
    from dapo.hardware import Machine
    from dapo.mesh_sizes import MeshSizes
    from dapo.model_size import size_of
    from dapo.step_time import StepModel, Workload

    config = Config.model_validate(size.config(model))
    shape = size_of(config)
    assert shape is not None
    machine = Machine.of(config, {**figures, "devices": size.processes})
    workload = Workload(prompt=MEAN_PROMPT, response=sampled, spread=EXACT)
    time = StepModel(config, shape, machine, MeshSizes.of(config, size.processes), workload).estimate()
    return {"step": time.total, "generation": time.parts["generation"], "update": time.parts["update"]}


def _grow() -> dict[str, dict[str, Any]]:
    """Measure and predict each size."""
    runs: dict[str, dict[str, Any]] = {}
    figures = _figures()
    with tempfile.TemporaryDirectory() as work:
        models = make_models(Path(work))
        for name, size in GROWN.items():
            measured = measure(size, models[size.width])
            predicted = predict(size, models[size.width], figures, measured["sampled"])
            runs[name] = {"measured": measured, "predicted": predicted}
            sys.stderr.write(f"{name}: {measured['step']:.2f} s, predicted {predicted['step']:.2f} s\n")
    return runs


def _estimated() -> dict[str, dict[str, Any]]:
    """Estimate the published runs."""
    found: dict[str, dict[str, Any]] = {}
    for name, run in fitted().items():
        time = run.estimate()
        seconds = {"step": time.total, **time.parts}
        found[name] = {
            "source": run.source,
            "assumed": run.assumed,
            "mean_response": run.workload.response,
            "published": run.seconds,
            "estimated": seconds,
            "ratio": {part: seconds[part] / value for part, value in run.seconds.items()},
        }
    return found


def _range(ratios: dict[str, float]) -> str:
    low, high = min(ratios, key=lambda name: ratios[name]), max(ratios, key=lambda name: ratios[name])
    return f"{ratios[low]:.2f}x ({low}) to {ratios[high]:.2f}x ({high})"


def run() -> dict[str, Any]:
    """Hold estimates against measured steps, and against published ones."""
    runs, published = _grow(), _estimated()
    plain = {name: one["predicted"]["step"] / one["measured"]["step"] for name, one in runs.items()}
    grown = {name: ratio / plain["base"] for name, ratio in plain.items() if name != "base"}
    shared = runs["2 processes, batch x4"]["measured"]["step"] / runs["batch x4"]["measured"]["step"]
    ratios = {name: one["ratio"]["step"] for name, one in published.items() if one["ratio"]}
    told = ", ".join(
        f"{name} {one['estimated']['step']:.0f} s"
        + (f" (published {one['published']['step']:.0f} s)" if one["published"] else " (none published)")
        for name, one in published.items()
    )
    off = statistics.median(max(ratio, 1 / ratio) for ratio in grown.values())
    return {
        "question": "Estimated seconds a step over measured ones, as batch, response, width and processes grow",
        "goal": f"growth from the first run within {GOAL}x; published runs, as estimates, within {PUBLISHED_GOAL:g}x",
        "measured": (
            f"growth from a step of {BASE.prompts} x 8: {_range(grown)}, median {off:.2f}x off; without a run to start "
            f"from {_range(plain)}; 2 gloo processes take {shared:.2f} of 1's time; estimates of other people's runs: "
            f"{told}"
        ),
        "met": all(1 / GOAL <= ratio <= GOAL for ratio in grown.values())
        and all(1 / PUBLISHED_GOAL <= ratio <= PUBLISHED_GOAL for ratio in ratios.values()),
        "peers": [{"name": "verl", "version": "as published", "figure": f"estimated over published: {_range(ratios)}"}],
        "runs": {"here": runs, "published": published},
    }
