"""The estimate of a run's peak memory: its numbers are those of real models, and it moves with what it depends on."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dapo.arithmetic import WORDS
from dapo.config import Config
from dapo.memory import GIB, LOGITS_AT_ONCE, estimate_memory
from dapo.mesh_sizes import MeshSizes
from dapo.model import Decoder, DecoderConfig
from dapo.model_logprobs import CHUNK_ELEMENTS, flops_per_token
from dapo.model_size import ModelSize
from dapo.named_models import NAMED_SHAPES, PUBLIC_SHAPES, TINY
from dapo.tokenizer import byte_tokenizer
from small_policy import small_policy
from transformers import AutoModelForCausalLM, GPT2Config


def estimated(**keys: Any) -> float:
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        section, name = key.split("__", 1)
        tree.setdefault(section, {})[name] = value
    found = estimate_memory(Config.model_validate(tree))
    assert found is not None
    return found.total_gb


def test_the_embedded_models_shape_is_its_tokenizers() -> None:
    tokenizer = byte_tokenizer(WORDS)
    assert (TINY.vocab_size, TINY.eos_token_id, TINY.pad_token_id) == (
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.pad_id,
    )


def test_logits_are_cut_as_the_estimate_says() -> None:
    assert LOGITS_AT_ONCE == CHUNK_ELEMENTS


@pytest.mark.parametrize("changes", [{}, {"model_type": "qwen2"}, {"tie_word_embeddings": False}])
def test_parameters_are_those_of_the_model(changes: dict[str, Any]) -> None:
    shape = dataclasses.replace(small_policy().config, **changes)
    assert ModelSize.of_decoder(shape).parameters == sum(w.numel() for w in Decoder(shape).parameters())


def test_smollm2_has_135_million() -> None:
    assert ModelSize.of_decoder(NAMED_SHAPES["smollm2-135m"]).parameters == 134_515_008


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-Math-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
    ],
)
def test_public_models_have_as_many_as_their_cards_say(path: str, parameters: int) -> None:
    assert ModelSize.of_decoder(PUBLIC_SHAPES[path]).parameters == parameters


def test_flops_are_those_that_a_run_counts() -> None:
    assert ModelSize.of_decoder(TINY).flops_per_token(17.5) == flops_per_token(TINY, 17.5)


def test_what_is_saved_for_the_backward_pass_is_what_is_counted() -> None:
    """Everything that autograd keeps of one layer more, in numbers per token."""

    def kept(layers: int) -> int:
        shape = DecoderConfig("llama", 50, 64, 160, layers, 4, 2, 16)
        torch.manual_seed(0)
        model = Decoder(shape)
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            store = tensor.untyped_storage()
            if store.data_ptr() not in weights:
                found[store.data_ptr()] = store.nbytes() // 4
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            hidden = model.hidden_packed(torch.arange(512) % 50, torch.arange(9) * 64)
        assert hidden.requires_grad
        return sum(found.values())

    fused_weights = 64 * (64 + 2 * 32)
    counted = ModelSize.of_decoder(DecoderConfig("llama", 50, 64, 160, 1, 4, 2, 16)).kept_per_token
    assert (kept(3) - kept(2) - fused_weights) / 512 == pytest.approx(counted, rel=0.05)


def test_it_grows_and_falls_with_what_it_depends_on() -> None:
    base = estimated(model__path="smollm2-135m")
    weights = 134_515_008 * 4 / GIB
    assert estimated(model__path="smollm2-135m", actor__use_kl_loss=True) == pytest.approx(base + weights)
    assert estimated(model__path="smollm2-135m", model__enable_gradient_checkpointing=True) < 0.6 * base
    assert estimated(model__path="smollm2-135m", actor__ppo_max_token_len_per_gpu=512) < 0.6 * base
    assert estimated(model__path="smollm2-135m", model__dtype="bfloat16") < 0.65 * base
    assert estimated(model__path="smollm2-135m", model__lora_rank=8) < base - weights
    assert estimated(model__path="smollm2-135m", trainer__device="cuda") < 0.9 * base
    long: dict[str, Any] = {"data__max_response_length": 4096, "actor__ppo_max_token_len_per_gpu": 8192}
    assert estimated(model__path="smollm2-135m", **long) > 1.5 * base  # the KV cache


def test_it_says_what_for() -> None:
    found = estimate_memory(Config.model_validate({"model": {"path": "smollm2-135m"}}))
    assert found is not None
    assert found.phase == "update" and str(found).startswith(f"{found.total_gb:.3g} GiB in update (activations ")
    wide = {"model": {"path": "smollm2-135m"}, "data": {"max_response_length": 4000}, "rollout": {"n": 64}}
    found = estimate_memory(Config.model_validate(wide))
    assert found is not None and found.phase == "generation" and "(KV cache " in str(found)


def test_a_model_of_transformers_is_read_from_its_folder(tmp_path: Path) -> None:
    tokens = small_policy().tokenizer
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=None, vocab_size=64)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    tokens.save(tmp_path)
    size = ModelSize.of_folder(tmp_path)
    assert size is not None and not size.native
    assert size.parameters == sum(weight.numel() for weight in model.parameters())
    assert (size.hidden, size.intermediate, size.layers, size.queries, size.keys) == (32, 128, 2, 32, 32)


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"model_type": "gpt2", "n_head": 4, "n_embd": 8, "n_layer": 1}'])
def test_where_nothing_can_be_told_there_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert estimate_memory(Config.model_validate({"model": {"path": str(tmp_path)}})) is None
    assert estimate_memory(Config.model_validate({"model": {"path": "owner/nothing-here"}})) is None


def held(devices: int, **keys: Any) -> dict[str, dict[str, float]]:
    config: dict[str, Any] = {
        "model": {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16", "enable_gradient_checkpointing": True},
        "data": {"max_response_length": 4096},
        "actor": {"ppo_max_token_len_per_gpu": 8192},
        "trainer": {"device": "cuda"},
    }
    for key, value in keys.items():
        section, name = key.split("__")
        config.setdefault(section, {})[name] = value
    found = estimate_memory(Config.model_validate(config), devices)
    assert found is not None
    return {phase: dict(parts) for phase, parts in found.phases.items()}


def test_devices_share_weights_gradients_and_optimiser() -> None:
    one, eight = held(1), held(8)
    for name in ("weights", "optimizer"):
        assert eight["update"][name] == pytest.approx(one["update"][name] / 8)
    assert eight["update"]["gathered weights"] > 1.5 * 2**30, "the embeddings and the head stay whole"
    assert "gathered weights" not in one["update"]
    copies = held(8, actor__fsdp_config={"fsdp_size": 2})
    assert copies["update"]["weights"] == pytest.approx(one["update"]["weights"] / 2)
    host = held(8, actor__fsdp_config={"offload_policy": True})
    assert host["update"]["weights"] == host["update"]["optimizer"] == 0.0
    assert held(1, trainer__n_gpus_per_node=8) == eight, "the config's own number counts"


def test_tensor_parallel_engines_share_keys_and_values_up_to_their_heads() -> None:
    caches = [held(8, rollout__tensor_model_parallel_size=tp)["generation"]["KV cache"] for tp in (1, 2, 4)]
    rows = [-(-32 * 8 * tp // 8) for tp in (1, 2, 4)]
    assert [cache / count for cache, count in zip(caches, rows, strict=True)] == pytest.approx(
        [caches[0] / rows[0] / part for part in (1, 2, 4)]
    )
    engines = [held(8, rollout__tensor_model_parallel_size=tp)["generation"]["engine weights"] for tp in (1, 8)]
    assert engines[1] < engines[0] / 4


def test_sequence_parallelism_shares_activations() -> None:
    one, four = (held(4, actor__ulysses_sequence_parallel_size=sp)["update"]["activations"] for sp in (1, 4))
    assert one / 4 < four < one / 2


def test_a_mesh_has_parts_for_all_devices() -> None:
    mesh = MeshSizes.of(Config.model_validate({"actor": {"ulysses_sequence_parallel_size": 2}}), 8)
    assert (mesh.dp, mesh.replicas, mesh.shards) == (4, 8, 8)


@pytest.mark.slow
def test_a_run_has_about_as_much(tmp_path: Path) -> None:
    """A model of 20M parameters, whose memory is well above the interpreter's."""
    tokenizer = byte_tokenizer(WORDS)
    shape = DecoderConfig(
        "llama", tokenizer.vocab_size, 384, 1152, 10, 6, 2, 64, eos_token_id=tokenizer.eos_id, pad_token_id=0
    )
    from dapo.model import Policy, save_policy
    from dapo.warmstart import initialise

    model = Decoder(shape)
    initialise(model, torch.Generator().manual_seed(0))
    save_policy(Policy(model, tokenizer, shape), tmp_path / "model")
    config = {
        "model": {"path": str(tmp_path / "model")},
        "data": {
            "train_batch_size": 4,
            "val_size": 2,
            "max_prompt_length": 24,
            "max_response_length": 88,
            "filter_overlong_prompts": True,
        },
        "algorithm": {"filter_groups": {"enable": False}},
        "trainer": {"total_training_steps": 1, "test_freq": 0, "val_before_train": False, "num_threads": 1},
    }
    code = (
        "import json, sys\nfrom dapo.trainer import Config, estimate_memory, train\n"
        "config, peaks = Config.model_validate(json.loads(sys.argv[1])), []\n"
        "train(config, lambda step: peaks.append(step.metrics['perf/peak_memory_gb']) or True)\n"
        "print(json.dumps([max(peaks), estimate_memory(config).total_gb]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(config)],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    had, told = json.loads(done.stdout.splitlines()[-1])
    assert 0.7 * had < told < 1.6 * had
