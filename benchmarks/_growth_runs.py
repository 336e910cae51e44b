"""Steps of a small run on this machine, one size changed at a time, for `benchmarks.growth`.

Models have random weights, so that every response reaches the limit; groups aren't filtered. Each process computes with
one thread, so that two of them have a core each, as one has.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory import _make_model

SKIPPED, TIMED = 1, 3
"""Steps: the first one warms up."""
PROMPT = 48
"""Tokens of a prompt, at most."""
MEAN_PROMPT = 9.7
"""Tokens of a prompt of the embedded task, in the mean."""
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "vocab_size": 4000,
    "tie_word_embeddings": True,
}
PHASES = {"generation": "timing_s/gen", "update": "timing_s/update_actor"}


@dataclass(frozen=True)
class Size:
    """What grows."""

    prompts: int = 8
    """Of a batch; 8 responses each."""
    response: int = 64
    """Tokens."""
    width: int = 128
    """Of the model, `hidden_size`."""
    processes: int = 1
    """gloo processes, a core each: FSDP over both, each generates half."""

    def config(self, model: str) -> dict[str, Any]:
        """Return the run."""
        return {
            "model": {"path": model},
            "data": {
                "train_batch_size": self.prompts,
                "max_prompt_length": PROMPT,
                "max_response_length": self.response,
                "val_size": 1,
            },
            "algorithm": {"filter_groups": {"enable": False}},
            "trainer": {
                "total_training_steps": SKIPPED + TIMED,
                "test_freq": -1,
                "val_before_train": False,
                "num_threads": 1,
                "n_gpus_per_node": self.processes,
            },
        }


BASE = Size()
GROWN = {
    "base": BASE,
    "batch x2": Size(prompts=16),
    "batch x4": Size(prompts=32),
    "response x2": Size(response=128),
    "response x4": Size(response=256),
    "width x2": Size(width=256),
    "width x4": Size(width=512),
    "2 processes": Size(processes=2),
    "2 processes, batch x4": Size(prompts=32, processes=2),
    "2 processes, width x4": Size(width=512, processes=2),
}
_RUN = """
import json, sys
from dapo.trainer import Config, train
steps = []
def report(step):
    steps.append(step.metrics)
    return True
train(Config.model_validate(json.loads(sys.argv[1])), report)
names = ["timing_s/step", "timing_s/gen", "timing_s/update_actor", "response_length/mean"]
print(json.dumps({name: [step[name] for step in steps if name in step] for name in names}))
"""


def make_models(folder: Path) -> dict[int, str]:
    """Save a model of each width."""
    paths: dict[int, str] = {}
    for width in sorted({size.width for size in GROWN.values()}):
        paths[width] = str(folder / str(width))
        _make_model({**MODEL, "hidden_size": width, "intermediate_size": 3 * width}, Path(paths[width]))
    return paths


def measure(size: Size, model: str) -> dict[str, Any]:
    """Train in a process of its own; medians of the steps that count, in seconds."""
    command = [sys.executable, "-c", _RUN, json.dumps(size.config(model))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = {name: statistics.median(values[-TIMED:]) for name, values in found.items()}
    parts = {phase: seconds[metric] for phase, metric in PHASES.items()}
    return {**asdict(size), "step": seconds["timing_s/step"], **parts, "sampled": seconds["response_length/mean"]}
