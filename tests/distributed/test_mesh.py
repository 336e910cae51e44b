"""Every layout of processes computes what one process computes: log-probabilities, gradients, generation."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from mesh_start import started_together


def compared(processes: int, layouts: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Run the layouts on so many processes; how far each is from one process."""
    found: list[dict[str, float]] = json.loads(started_together(processes, "mesh_rank", json.dumps(layouts)))
    return found


def layout(sp: int, tp: int, family: str, **changes: bool | int) -> dict[str, Any]:
    """A config of two prompts, small micro-batches, and no clipping of the gradient."""
    return {
        "family": family,
        "config": {
            "model": {
                "enable_gradient_checkpointing": changes.get("checkpointing", False),
                "use_remove_padding": changes.get("packed", True),
            },
            "actor": {
                "ulysses_sequence_parallel_size": sp,
                "ppo_max_token_len_per_gpu": 64,
                "grad_clip": 1e9,
                "use_prefix_grouper": changes.get("shared", False),
                "fsdp_config": {"fsdp_size": changes.get("fsdp_size", -1)},
            },
            "rollout": {"tensor_model_parallel_size": tp},
            "data": {"train_batch_size": 2},
        },
    }


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_layout_computes_what_one_process_does(processes: int) -> None:
    sizes = [size for size in (1, 2, 4) if size <= processes]
    layouts = [
        layout(sp, tp, family, packed=packed, checkpointing=checkpointing)
        for (sp, tp, packed, checkpointing), family in zip(
            product(sizes, sizes, (True, False), (True, False)), ["qwen3", "llama", "tiny"] * 99, strict=False
        )
        if not (family == "tiny" and max(sp, tp) > 2)
    ]
    layouts += [layout(1, 1, "qwen3", fsdp_size=processes // 2), layout(2, 2, "llama", fsdp_size=1, shared=True)]
    for wanted, far in zip(layouts, compared(processes, layouts), strict=True):
        assert far["size"] > 1e-3, "there is a gradient"
        for name in ("scored", "gradient", "metrics", "generated"):
            assert far[name] < 1e-5, (wanted, name, far)
        assert far["tokens"] == 0, wanted
        if not wanted["config"]["actor"]["use_prefix_grouper"]:
            assert far["segments"] == 0, "the work doesn't depend on the layout"
