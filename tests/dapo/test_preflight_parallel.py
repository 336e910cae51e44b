"""Parallel sizes against devices and heads."""

import json
from pathlib import Path
from typing import Any

import pytest
from dapo.batch import Fault
from dapo.config import Config
from dapo.preflight import preflight


def faults(devices: int, **tree: Any) -> dict[str, Fault]:
    return {fault.key: fault for fault in preflight(Config.model_validate(tree), devices)}


@pytest.mark.parametrize(
    ("devices", "size", "need"),
    [
        (6, 4, "a divisor of the 6 devices"),
        (4, 4, "14 attention heads"),
    ],
)
def test_parallel_sizes_must_divide_devices_and_heads(model_folder: Path, devices: int, size: int, need: str) -> None:
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 14, "num_key_value_heads": 2}))
    found = faults(devices, model={"path": str(model_folder)}, actor={"ulysses_sequence_parallel_size": size})
    assert need in found["actor.ulysses_sequence_parallel_size"].need


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"actor": {"ulysses_sequence_parallel_size": 2}, "rollout": {"tensor_model_parallel_size": 4}}, ""),
        ({"actor": {"ulysses_sequence_parallel_size": 8}}, "actor.ulysses_sequence_parallel_size"),
        ({"actor": {"fsdp_config": {"fsdp_size": 2}}}, ""),
        ({"actor": {"fsdp_config": {"fsdp_size": 3}}}, "actor.fsdp_config.fsdp_size"),
        (
            {"trainer": {"n_gpus_per_node": 1}, "rollout": {"tensor_model_parallel_size": 4}},
            "rollout.tensor_model_parallel_size",
        ),
        ({"trainer": {"device": "tpu"}}, "trainer.device"),
        ({"trainer": {"nnodes": 2}, "actor": {"ulysses_sequence_parallel_size": 4}}, ""),
        ({"trainer": {"nnodes": 3}}, "trainer.nnodes"),
        ({"trainer": {"nnodes": 3, "n_gpus_per_node": 1}}, ""),
    ],
)
def test_sizes_on_four_devices(tree: dict[str, Any], key: str) -> None:
    """The embedded model has four heads, and two key-value heads that can be copied to four."""
    assert list(faults(4, **tree)) == ([key] if key else [])
