"""Adapters: the numbers are peft's own, generation uses them, and a run trains, saves and resumes nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dapo.config import Config, ModelConfig
from dapo.errors import CheckpointError, ModelError
from dapo.model import Policy, load_policy, response_logprobs, save_policy
from dapo.model_lora import adapter_state, add_adapters
from dapo.preflight import preflight
from dapo.rollout import generate
from dapo.run import Run
from dapo.train import train
from peft import LoraConfig, inject_adapter_in_model
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

IDS = torch.tensor([5, 6, 7, 8, 9, 40])
SOME = ("q_proj", "down_proj")
SCRIPT = """
import os, signal, sys
from dapo.config import Config
from dapo.train import train

def report(step):
    if step.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return True

train(Config.model_validate_json(sys.argv[1]), report)
"""


def randomise(model: torch.nn.Module, seed: int = 3) -> None:
    """Adapters begin as nothing; give them something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in adapter_state(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)


def adapted(policy: Policy, **settings: object) -> Policy:
    add_adapters(policy.model, ModelConfig.model_validate({"lora_rank": 4, "lora_alpha": 12, **settings}), seed=1)
    return policy


@pytest.mark.parametrize("targets", ["all-linear", SOME])
def test_logits_and_gradients_are_those_of_peft(policy: Policy, model_folder: Path, targets) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    settings = LoraConfig(r=4, lora_alpha=12, target_modules=targets if targets == "all-linear" else list(targets))
    theirs = inject_adapter_in_model(settings, theirs)
    adapted(policy, target_modules=targets)
    randomise(policy.model)
    mine = adapter_state(policy.model)
    assert mine.keys() == adapter_state(theirs).keys()
    theirs.load_state_dict(mine, strict=False)
    plain = load_policy(model_folder).model(IDS)
    got, want = policy.model(IDS), theirs(IDS.unsqueeze(0)).logits[0]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    assert (got - plain).abs().max() > 0.01
    for logits in (got, want):
        torch.autograd.backward(logits.log_softmax(-1)[:-1].gather(1, IDS[1:, None]).sum())
    expected = dict(theirs.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (name in mine)
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-4, rtol=1e-4)


def test_new_adapters_change_nothing_and_are_of_the_seed(policy: Policy, model_folder: Path) -> None:
    before = policy.model(IDS)
    state = torch.get_rng_state()
    adapted(policy)
    torch.testing.assert_close(policy.model(IDS), before)
    assert torch.equal(torch.get_rng_state(), state)
    again = adapter_state(adapted(load_policy(model_folder)).model)
    assert all(torch.equal(tensor, again[name]) for name, tensor in adapter_state(policy.model).items())
    other = load_policy(model_folder)
    add_adapters(other.model, ModelConfig(lora_rank=4), seed=2)
    assert not all(torch.equal(tensor, again[name]) for name, tensor in adapter_state(other.model).items())


def test_number_of_trained_parameters(policy: Policy) -> None:
    adapted(policy)
    # hidden 32, MLP 64, q and o 32 x 32, k and v 16 x 32, two layers.
    sides = 2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64)
    assert sum(p.numel() for p in policy.model.parameters() if p.requires_grad) == 2 * 4 * sides


def test_generation_uses_the_adapters(policy: Policy) -> None:
    adapted(policy)
    randomise(policy.model)
    prompts = [[5, 6, 7], [8, 9]]
    groups = generate(
        policy,
        prompts,
        4,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        max_response_length=12,
        max_num_seqs=8,
        generator=torch.Generator().manual_seed(0),
    )
    for prompt, group in zip(prompts, groups, strict=True):
        for response in group:
            expected, _ = response_logprobs(policy.model, [(prompt, response.token_ids)], 1.0)
            torch.testing.assert_close(torch.tensor(response.rollout_logprobs), expected.detach(), atol=1e-5, rtol=0)


def test_merged_folder_computes_the_same(policy: Policy, tmp_path: Path) -> None:
    adapted(policy)
    randomise(policy.model)
    save_policy(policy, tmp_path / "merged")
    torch.testing.assert_close(load_policy(tmp_path / "merged").model(IDS), policy.model(IDS), atol=1e-5, rtol=0)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(theirs(IDS.unsqueeze(0)).logits[0], policy.model(IDS), atol=1e-5, rtol=0)


def test_a_run_trains_the_adapters_only(make_config, model_folder: Path, tmp_path: Path) -> None:
    config = make_config(model__lora_rank=4, actor__use_kl_loss=True, trainer__default_local_dir=str(tmp_path / "run"))
    start = Run.start(config)
    assert start.reference is not None and not adapter_state(start.reference.model)
    begin = {name: tensor.clone() for name, tensor in adapter_state(start.policy.model).items()}
    steps = []
    train(config, lambda step: steps.append(step) or True)
    assert [step.metrics["actor/optimizer_steps"] for step in steps[1:]] == [1.0] * 3
    end = load_file(tmp_path / "run" / "global_step_3" / "adapters.safetensors")
    assert not any(torch.equal(tensor, begin[name]) for name, tensor in end.items())
    base, merged = (
        load_file(folder / "model.safetensors")
        for folder in (model_folder, tmp_path / "run" / "global_step_3" / "model")
    )
    assert base.keys() == merged.keys()
    changed = {name for name, tensor in base.items() if not torch.equal(tensor, merged[name])}
    assert changed == {name for name in base if "_proj" in name}


def test_killed_and_resumed_gives_the_same_adapters(make_config, tmp_path: Path) -> None:
    changes = {"model__lora_rank": 4, "trainer__total_training_steps": 4, "trainer__save_freq": 1}
    train(make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")), lambda _: True)
    config = make_config(**changes, trainer__default_local_dir=str(tmp_path / "killed"))
    paths = os.pathsep.join([str(Path(__file__).parent / "helpers"), *sys.path])
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, config.model_dump_json()],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    told = []
    train(config, lambda step: told.append(step.step) or True)
    assert told == [2, 3, 4]
    for file in ("adapters.safetensors", "model/model.safetensors"):
        one, other = (load_file(tmp_path / name / "global_step_4" / file) for name in ("whole", "killed"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_resume_refuses_another_model_in_the_same_place(make_config, model_folder: Path, tmp_path: Path) -> None:
    changes = {"model__lora_rank": 4, "trainer__save_freq": 1, "trainer__default_local_dir": str(tmp_path / "run")}
    train(make_config(**changes, trainer__total_training_steps=1), lambda _: True)
    other = load_policy(model_folder)
    with torch.no_grad():
        other.model.model.norm.weight.mul_(1.5)
    save_policy(other, model_folder)
    with pytest.raises(CheckpointError, match=r"model\.path: got other weights.*norm\.weight.*put the model back"):
        Run.start(make_config(**changes))


def test_faults_are_told_before_the_run(make_config, monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    assert not preflight(make_config(model__lora_rank=4, model__target_modules=["q_proj"]))
    assert [fault.key for fault in preflight(make_config(model__lora_alpha=32))] == ["model.lora_alpha"]
    (fault,) = preflight(make_config(model__lora_rank=4, model__target_modules=["q_proj", "c_attn"]))
    assert (fault.key, fault.got) == ("model.target_modules", "c_attn")
    with pytest.raises(ValidationError, match="lora_rank"):
        Config.model_validate({"model": {"lora_rank": -1}})
    monkeypatch.setitem(sys.modules, "peft", None)
    assert [fault.key for fault in preflight(make_config(model__lora_rank=4))] == ["model.lora_rank"]
    with pytest.raises(ModelError, match=r"lora_rank: got 4 without the package peft"):
        adapted(policy)
