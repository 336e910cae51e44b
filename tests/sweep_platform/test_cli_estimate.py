"""`platform estimate`: what would fit and how long a step would take, without weights, data or a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from dapo.named_models import PUBLIC_SHAPES
from shell import Shell

TP, SP = "rollout.tensor_model_parallel_size", "actor.ulysses_sequence_parallel_size"
LARGE = ("model=qwen2.5-7b", "data.val_size=30", "--hardware", "a100x8")


def _layout(tp: int, sp: int, shards: int) -> list[str]:
    return [
        *(f"config.{TP}={tp}", f"config.{SP}={sp}", f"config.actor.fsdp_config.fsdp_size={shards}"),
        "config.actor.use_dynamic_bsz=true",
    ]


def spec(**changes: object) -> str:
    tree = {
        "defaults": [{"model": "tiny"}, {"data": "arithmetic"}, {"hardware": "cpu"}, "_self_"],
        "name": "planned",
        "objectives": [{"metric": "val/accuracy", "direction": "maximize"}],
        "search": {"actor.clip_ratio_high": {"float": [0.2, 0.4]}},
    }
    Path("planned.yaml").write_text(yaml.safe_dump({**tree, **changes}))
    return "planned.yaml"


def test_each_size_has_its_memory_and_its_time_the_best_first(platform: Shell) -> None:
    reply = platform("estimate", spec(), *LARGE, "--response", "30", "--json")
    assert (reply.code, reply.err) == (0, "")
    told = json.loads(reply.out)
    assert told["hardware"] == "a100x8"
    assert told["assumed"] == {"prompt": 32.0, "response": 30.0, "kept": 0.5, "spread": 0.7}
    layouts = told["layouts"]
    assert {(row["choice"][TP], row["choice"][SP]) for row in layouts} == {(t, s) for t in (1, 2, 4) for s in (1, 2, 4)}
    assert all(row["fits"] for row in layouts)
    totals = [row["time"]["total_s"] for row in layouts]
    assert totals == sorted(totals)
    for row in layouts:
        time, memory = row["time"], row["memory"]
        parts = ("generation", "weights", "scoring", "update", "evaluation", "other")
        assert time["total_s"] > 0 and abs(sum(time[part] for part in parts) - time["total_s"]) < 1e-9
        assert abs(sum(memory[memory["phase"]].values()) - memory["total_gb"]) < 1e-9
        assert {"weights", "optimizer", "gradients", "activations"} <= memory["update"].keys()
        assert "KV cache" in memory["generation"]
    assert not platform.home.exists()


def test_the_table_says_what_it_is_and_what_was_assumed(platform: Shell) -> None:
    reply = platform("estimate", spec(), *LARGE, "--kept", "0.25", "--prompt", "20")
    lines = reply.out.splitlines()
    assert lines[0].rstrip() == "planned on a100x8: 8 devices with 79 GiB each, an estimate"
    assert "rows that fit" in lines[2] and max(map(len, lines[1:12])) < 110
    assert lines[14].startswith("memory of the first: ") and " GiB in update (" in lines[14]
    tight = platform("estimate", spec(), *LARGE, "hardware.memory_gb=10").out.splitlines()
    assert any(line.startswith("nothing fits as it is; ") for line in tight)
    assert len([line for line in lines if line.startswith("│")]) == 9
    assert lines[-1] == "assumed: prompt 20, response 19.2, kept 0.25, spread 0.7"
    unknown = platform("estimate", spec(), "data.val=unseen.jsonl", *LARGE[:1], *LARGE[2:])
    assert unknown.out.splitlines()[-1].startswith("evaluation isn't counted: data.val_size isn't set")


def test_searched_sizes_are_those_that_are_shown(platform: Shell) -> None:
    searched = {TP: {"choice": [1, 3]}, SP: {"choice": [2]}}
    reply = platform("estimate", spec(search=searched), *LARGE)
    assert len([line for line in reply.out.splitlines() if line.startswith("│")]) == 1
    assert f"can't be: {TP}: got 3; need a divisor of the 8 devices at hand" in reply.out.splitlines()


def test_a_shape_alone_will_do(platform: Shell) -> None:
    Path("shape").mkdir()
    Path("shape/config.json").write_text(json.dumps(PUBLIC_SHAPES["Qwen/Qwen2.5-7B"].to_dict()))
    one = platform("estimate", spec(), "model.path=shape", "model.dtype=bfloat16", *LARGE[1:], "--json")
    other = platform("estimate", spec(), *LARGE, "model.enable_gradient_checkpointing=false", "--json")
    assert one.out == other.out


@pytest.mark.parametrize(
    ("hardware", "keys"),
    [
        ("cpu", ["model=tiny"]),
        ("rtx-3090", ["model=smollm2-135m", "data.train_batch_size=128", "config.rollout.max_num_seqs=64"]),
        ("rtx-4090", ["model=smollm2-135m", "data.train_batch_size=128", "config.rollout.max_num_seqs=64"]),
        ("rtx-4090x2", ["model=tiny", "data.train_batch_size=128", *_layout(2, 2, 2)]),
        ("a100-80gb", ["model=smollm2-135m"]),
        ("h100-80gb", ["model=smollm2-135m"]),
        ("h200-141gb", ["model=smollm2-135m"]),
        ("a100x8", ["model=qwen2.5-7b", "data.train_batch_size=512", *_layout(4, 4, 8)]),
        ("h100x8", ["model=qwen2.5-7b", "data.train_batch_size=512", *_layout(4, 4, 8)]),
        ("ascend-910b", ["model=qwen2.5-7b", "data.train_batch_size=512", *_layout(4, 4, 8)]),
        ("h800x128", ["model=qwen2.5-32b", "data.train_batch_size=512", *_layout(4, 8, -1)]),
    ],
)
def test_the_usual_profile_of_each_hardware_fits_it(platform: Shell, hardware: str, keys: list[str]) -> None:
    """Sizes that people train with on it: batch, tensor, sequence and weight parallelism."""
    reply = platform("estimate", spec(), "--hardware", hardware, "data.val_size=30", *keys, "--json")
    told = json.loads(reply.out)
    assert told["hardware"] == hardware and [row for row in told["layouts"] if row["fits"]], reply
    assert all(0.05 < row["time"]["total_s"] < 3600 for row in told["layouts"] if not row["refused"])


def test_what_is_missing_is_told_with_its_key(platform: Shell) -> None:
    bare = {"name": "mine", "devices": 1, "kind": "cuda"}
    reply = platform("estimate", spec(defaults=["_self_"], hardware=bare, model={"path": "tiny"}))
    assert reply.code == 2
    keys = [line.partition(": ")[0] for line in reply.err.splitlines()]
    assert keys == ["planned.yaml:hardware.peak_tflops.float32", "planned.yaml:hardware.memory_gb_per_s"]
    assert "need one of" in platform("estimate", spec(), "--hardware", "a100x9").err
    unknown = platform("estimate", spec(), "model.path=owner/unknown")
    assert unknown.code == 2 and "planned.yaml:model.path: got 'owner/unknown'" in unknown.err


def test_a_trainer_that_cannot_says_so(platform: Shell) -> None:
    reply = platform("estimate", spec(trainer="recorded"))
    assert reply.code == 2 and "trainer: got 'recorded', which estimates nothing" in reply.err
