"""Which engine generates, and in which type."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from dapo.batch import Fault
from dapo.config import Config, RolloutConfig
from dapo.device import has_fast_bfloat16, rollout_dtype
from dapo.engine_vllm import row_seeds
from dapo.preflight import preflight


def faults(**rollout: Any) -> dict[str, Fault]:
    found = preflight(Config.model_validate({"rollout": rollout}))
    return {fault.key: fault for fault in found if fault.key.startswith("rollout")}


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_a_package_that_lacks_is_told_with_what_to_do() -> None:
    fault = faults(name="vllm")["rollout.name"]
    assert (fault.got, fault.need) == ("vllm", "the package vllm, which isn't installed")
    assert "set it to builtin" in fault.do


def test_what_vllm_would_do_otherwise_is_refused() -> None:
    found = faults(name="vllm", tensor_model_parallel_size=2, temperature=0.001, val_kwargs={"temperature": 0.005})
    assert {"rollout.tensor_model_parallel_size", "rollout.temperature", "rollout.val_kwargs.temperature"} <= set(found)
    assert not faults(temperature=0.001), "ours samples at any temperature"


def test_generation_computes_in_the_models_type_unless_told() -> None:
    like = torch.zeros(1, dtype=torch.bfloat16)
    assert rollout_dtype(RolloutConfig(), like) == torch.bfloat16
    assert rollout_dtype(RolloutConfig(dtype="float32"), like) == torch.float32
    fast = has_fast_bfloat16(torch.device("cpu"))
    assert fast == torch.cpu.get_capabilities().get("amx_bf16", False)
    assert rollout_dtype(RolloutConfig(dtype="auto"), like) == (torch.bfloat16 if fast else torch.float32)


def test_each_row_has_a_seed_of_its_own_random_numbers() -> None:
    uniforms = torch.rand(1000, 8, generator=torch.Generator().manual_seed(0))
    seeds = row_seeds(uniforms)
    assert len(set(seeds)) == 1000 and all(0 <= seed < 2**48 for seed in seeds)
    assert row_seeds(uniforms[5:]) == seeds[5:]
    assert len(set(row_seeds(uniforms[:, :1]))) == 1000
