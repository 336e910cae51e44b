"""Times of a step that others published for large runs, and what they say of these runs, for `benchmarks.growth`.

Nobody publishes all that a step's time depends on. What is assumed is said at each run; how fast devices of different
machines exchange is assumed for all of them: 50 GB/s a device, and 25 GB/s for A100 and A800. At most 256 responses
are taken to be decoded at once, where theirs are as many as the memory holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dapo.config import Config
from dapo.hardware import Machine
from dapo.mesh_sizes import MeshSizes
from dapo.model_size import size_of
from dapo.step_time import StepModel, StepTime, Workload

SPREAD = 1.2
"""Of lengths, over their mean: with it the longest of a batch reach the limit. Chosen after seeing that 0.7, the usual
of `platform estimate`, makes generation on H20 half as long as published."""
VERL = "https://github.com/volcengine/verl/blob"
DOCS = f"{VERL}/2147009822388b70cda46ab4a27c5400d3d113ed/docs/advance"
A100 = {"memory_gb": 79.0, "peak_tflops": {"bfloat16": 312.0}, "memory_gb_per_s": 2039.0, "network_gb_per_s": 25.0}
H100 = {"memory_gb": 79.0, "peak_tflops": {"bfloat16": 989.0}, "memory_gb_per_s": 3350.0, "network_gb_per_s": 50.0}
H20 = {"memory_gb": 95.0, "peak_tflops": {"bfloat16": 148.0}, "memory_gb_per_s": 4000.0, "network_gb_per_s": 50.0}
DEVICES: dict[str, dict[str, Any]] = {
    "A100": {**A100, "link_gb_per_s": 300.0},
    "A800": {**A100, "link_gb_per_s": 200.0},
    "H800": {**H100, "link_gb_per_s": 200.0},
    "H20": {**H20, "link_gb_per_s": 450.0},
}


def _recipe(model: str, response: int, tp: int, sp: int, **keys: Any) -> dict[str, Any]:
    """What the recipes have in common: 512 prompts x 16 unless said otherwise, mini-batches of 32 prompts."""
    return {
        "model": {"path": model, "dtype": "bfloat16", "enable_gradient_checkpointing": True},
        "data": {
            "train_batch_size": keys.get("prompts", 512),
            "gen_batch_size": keys.get("generated"),
            "max_prompt_length": 2048,
            "max_response_length": response,
            "val_size": 30,
        },
        "rollout": {"n": keys.get("n", 16), "tensor_model_parallel_size": tp, "max_num_seqs": 256},
        "actor": {
            "ppo_mini_batch_size": 32,
            "ppo_max_token_len_per_gpu": keys.get("budget", 2048 + response),
            "ulysses_sequence_parallel_size": sp,
            "fsdp_config": {"fsdp_size": keys.get("shards", -1)},
        },
        "algorithm": {"filter_groups": {"enable": "generated" in keys}},
        "trainer": {"device": "cuda", "test_freq": 20},
    }


MATH_7B = _recipe("Qwen/Qwen2.5-Math-7B", 28 * 1024, 4, 4, shards=8, budget=60 * 1024)
BASE_7B = _recipe("Qwen/Qwen2.5-7B", 8 * 1024, 2, 1, prompts=256, generated=768, n=8, budget=30720)
BASE_32B = _recipe("Qwen/Qwen2.5-32B", 20 * 1024, 4, 8, generated=1536)


@dataclass(frozen=True)
class Published:
    """A run, and the seconds of its step."""

    source: str
    config: dict[str, Any]
    devices: int
    kind: str
    """Of `DEVICES`."""
    workload: Workload
    seconds: dict[str, float]
    """By part of `StepTime`, and `step`; empty: nobody published any."""
    assumed: str = ""

    def estimate(self) -> StepTime:
        """Estimate the same run."""
        config = Config.model_validate(self.config)
        size = size_of(config)
        assert size is not None
        hardware = {**DEVICES[self.kind], "kind": "cuda", "devices": self.devices, "devices_per_node": 8}
        machine, mesh = Machine.of(config, hardware), MeshSizes.of(config, self.devices)
        return StepModel(config, size, machine, mesh, self.workload).estimate()


def _h20(devices: int, gen: float, scoring: float, update: float, step: float) -> Published:
    return Published(
        f"{DOCS}/fully_async.md, colocate sync, {devices} H20",
        MATH_7B,
        devices,
        "H20",
        Workload(prompt=150, response=2000, spread=SPREAD),
        {"generation": gen, "scoring": scoring, "update": update, "step": step},
        "lengths: the mean with which scoring on 32 devices takes as long as published",
    )


RUNS = {
    "7B, 32 H20": _h20(32, 357.41, 107.71, 313.81, 790.10),
    "7B, 64 H20": _h20(64, 150.72, 70.26, 133.41, 365.28),
    "7B, 128 H20": _h20(128, 177.85, 53.92, 113.81, 356.30),
    "7B, 8 x A100": Published(
        "https://github.com/PRIME-RL/Entropy-Mechanism-of-RL/issues/18 (10 to 15 minutes a step, one node)",
        BASE_7B,
        8,
        "A100",
        Workload(prompt=150, response=1000, kept=0.5, spread=SPREAD),
        {"step": 750.0},
        "that the node has A100; mean length 1000; half of the groups are kept",
    ),
    "32B, 128 A800": Published(
        "https://github.com/verl-project/verl/issues/795 (230 steps in 5 days, all else as in the recipe)",
        BASE_32B,
        128,
        "A800",
        Workload(prompt=150, response=3000, kept=0.4, spread=SPREAD),
        {"step": 5 * 86400 / 230},
        "mean length 3000; 40 % of the groups are kept; offloading costs nothing",
    ),
    "32B, 16 x 8 H800": Published(
        f"{VERL}/03150d4fa825bcca1ec5c0a3f582cf6449148112/recipe/dapo/run_dapo_qwen2.5_32b.sh (no times)",
        BASE_32B,
        128,
        "H800",
        Workload(prompt=150, response=3000, kept=0.4, spread=SPREAD),
        {},
        "as for A800",
    ),
}


def fitted() -> dict[str, Published]:
    """The runs, those on H20 with the mean length that scoring on 32 of them tells."""
    first = RUNS["7B, 32 H20"]
    low, high = 1_000.0, 3_000.0
    for _ in range(6):
        middle = (low + high) / 2
        tried = replace(first, workload=replace(first.workload, response=middle))
        if tried.estimate().parts["scoring"] < first.seconds["scoring"]:
            low = middle
        else:
            high = middle
    return {
        name: replace(run, workload=replace(run.workload, response=round(high))) if run.kind == "H20" else run
        for name, run in RUNS.items()
    }
