"""LoRA: the decoder with an adapter is what peft says it is, and a run trains the adapter alone."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dapo.config import Config, ModelConfig
from dapo.errors import ModelError
from dapo.lora import FILE, add_adapter, load_adapter
from dapo.model import Policy, load_policy, response_logprobs, save_policy
from dapo.model_decoder import adapter_state, effective_weight, merged_state
from dapo.preflight import preflight
from dapo.run import Run
from dapo.update import make_optimizer
from generation import respond
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import load_file
from training import run, weights
from transformers import AutoModelForCausalLM

RANK, ALPHA = 4, 8
PAIRS = [([5, 9, 11, 7], [20, 31, 8]), ([5, 6], [40, 41, 42, 43, 9])]
LORA = {"lora_rank": RANK, "lora_alpha": ALPHA}
KILLED = """
import os, signal, sys
from dapo.config import Config
from dapo.train import train

def report(step):
    if step.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return True

train(Config.model_validate_json(sys.argv[1]), report)
"""


def adapted(policy: Policy, **changes: object) -> Policy:
    """The policy with an adapter whose second half isn't zero any more."""
    add_adapter(policy, ModelConfig.model_validate(LORA | changes), seed=3)
    generator = torch.Generator().manual_seed(5)
    for name, tensor in adapter_state(policy.model).items():
        if ".lora_B." in name:
            tensor.normal_(0.0, 0.1, generator=generator)
    return policy


def logprobs_of(policy: Policy) -> torch.Tensor:
    return response_logprobs(policy.model, PAIRS, 1.0)[0]


def test_a_fresh_adapter_changes_nothing_and_its_seed_decides_it(policy: Policy) -> None:
    before = logprobs_of(policy)
    one, same, other = (copy.deepcopy(policy) for _ in range(3))
    for chosen, seed in ((one, 1), (same, 1), (other, 2)):
        add_adapter(chosen, ModelConfig.model_validate(LORA), seed)
    assert torch.equal(logprobs_of(one), before)
    first, again, third = (adapter_state(chosen.model) for chosen in (one, same, other))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


def test_the_adapter_alone_is_trained(policy: Policy) -> None:
    add_adapter(policy, ModelConfig.model_validate(LORA | {"target_modules": ("q_proj", "down_proj")}), 0)
    optimizer = make_optimizer(policy, Config().actor.optim)
    trained = sum(weight.numel() for group in optimizer.param_groups for weight in group["params"])
    assert trained == 2 * RANK * ((32 + 32) + (64 + 32)), "two layers: q 32 to 32, down 64 to 32"
    assert trained == sum(tensor.numel() for tensor in adapter_state(policy.model).values())


def test_log_probabilities_and_gradients_are_pefts(policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path / "base")
    adapted(policy)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager")
    names = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in adapter_state(policy.model)})
    settings = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=names)
    inject_adapter_in_model(settings, theirs)
    theirs.load_state_dict(adapter_state(policy.model), strict=False)
    ours = logprobs_of(policy)
    expected = []
    for prompt, response in PAIRS:
        logits = theirs(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        expected.append(logits[len(prompt) - 1 : -1].gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(ours, torch.cat(expected), atol=1e-5, rtol=0)
    ours.sum().backward()
    torch.cat(expected).sum().backward()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters() if ".lora_" in name}
    for name, weight in policy.model.named_parameters():
        if ".lora_" in name:
            torch.testing.assert_close(weight.grad, gradients[name], atol=1e-4, rtol=1e-4)
        else:
            assert weight.grad is None


def test_generation_draws_from_the_adapted_policy(policy: Policy) -> None:
    base = copy.deepcopy(policy)
    adapted(policy)
    prompts = [[5, 9, 11], [7, 8]]
    drawn = respond(policy, prompts, 2, room=6)
    pairs = [(p, r.token_ids) for p, group in zip(prompts, drawn, strict=True) for r in group]
    recorded = torch.tensor([value for group in drawn for r in group for value in r.rollout_logprobs])
    torch.testing.assert_close(response_logprobs(policy.model, pairs, 1.0)[0], recorded, atol=1e-5, rtol=0)
    assert (response_logprobs(base.model, pairs, 1.0)[0] - recorded).abs().max() > 1e-3


def test_the_merged_folder_is_a_model_like_any_other(policy: Policy, tmp_path: Path) -> None:
    adapted(policy)
    save_policy(policy, tmp_path / "merged")
    merged = load_policy(tmp_path / "merged")
    assert merged.model.state_dict().keys() == merged_state(policy.model).keys()
    torch.testing.assert_close(logprobs_of(merged), logprobs_of(policy), atol=1e-5, rtol=0)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    layer = theirs.model.layers[0].mlp.gate_proj
    torch.testing.assert_close(layer.weight, effective_weight(policy.model.model.layers[0].mlp.gate_proj))


def test_a_run_trains_the_adapter_and_resumes_bit_for_bit(make_config, model_folder: Path, tmp_path: Path) -> None:
    def config(name: str) -> Config:
        model = {"path": str(model_folder), **LORA}
        optim = {"lr": 1e-2}
        return make_config(model=model, actor__optim=optim, trainer__default_local_dir=str(tmp_path / name))

    whole = run(config("whole"))
    run(config("parts"), stop_at=2)
    again = run(config("parts"))
    assert whole[-1].final and again[-1].final
    one, other = (load_file(tmp_path / name / "global_step_3" / FILE) for name in ("whole", "parts"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(a, b) for a, b in zip(
        weights(tmp_path / "whole").values(), weights(tmp_path / "parts").values(), strict=True
    ))  # fmt: skip
    base, trained = load_policy(model_folder), load_policy(tmp_path / "whole" / "global_step_3" / "model")
    changed = {
        name.rsplit(".", 2)[-2]
        for name, tensor in trained.model.state_dict().items()
        if not torch.equal(tensor, base.model.state_dict()[name])
    }
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_reference_has_no_adapter(make_config, model_folder: Path) -> None:
    model = {"path": str(model_folder), **LORA}
    started = Run.start(make_config(model=model, actor__use_kl_loss=True))
    assert started.reference is not None
    assert adapter_state(started.policy.model) and not adapter_state(started.reference.model)


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_adapter(make_config, model_folder: Path, tmp_path: Path) -> None:
    def config(name: str) -> Config:
        model = {"path": str(model_folder), **LORA}
        place = str(tmp_path / name)
        return make_config(model=model, trainer__save_freq=1, trainer__default_local_dir=place)

    run(config("whole"))
    paths = os.pathsep.join([str(Path(__file__).parent / "helpers"), *sys.path])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, config("killed").model_dump_json()],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert [step.step for step in run(config("killed"))] == [2, 3]
    one, other = (load_file(tmp_path / name / "global_step_3" / FILE) for name in ("whole", "killed"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_resume_on_other_weights_is_refused(make_config, model_folder: Path, tmp_path: Path) -> None:
    """The folder that `model.path` names may have been trained on since."""
    config = make_config(model={"path": str(model_folder), **LORA}, trainer__default_local_dir=str(tmp_path / "run"))
    run(config, stop_at=2)
    other = load_policy(model_folder)
    with torch.no_grad():
        other.model.model.norm.weight.mul_(1.01)
    save_policy(other, model_folder)
    with pytest.raises(ModelError, match=r"model\.path: got other weights.*model\.norm\.weight differs"):
        Run.start(config)


def test_a_resume_on_weights_that_differ_where_the_adapter_is_is_refused(
    make_config, model_folder: Path, tmp_path: Path
) -> None:
    """So does a folder that another run with LoRA was merged into."""
    config = make_config(model={"path": str(model_folder), **LORA}, trainer__default_local_dir=str(tmp_path / "run"))
    run(config, stop_at=2)
    other = load_policy(model_folder)
    with torch.no_grad():
        other.model.model.layers[0].self_attn.q_proj.weight[0, 0] += 1e-3
    save_policy(other, model_folder)
    with pytest.raises(ModelError, match=r"model\.path: got other weights.*q_proj\.weight differs"):
        Run.start(config)


def test_a_name_that_is_no_projection_is_told(policy: Policy) -> None:
    with pytest.raises(ModelError, match=r"target_modules: got query; need all-linear, or some of q_proj"):
        add_adapter(policy, ModelConfig.model_validate(LORA | {"target_modules": ("q_proj", "query")}), 0)


def test_another_models_adapter_is_refused(policy: Policy, tmp_path: Path) -> None:
    adapted(policy, target_modules=("q_proj",))
    with pytest.raises(ModelError, match="can't be read"):
        load_adapter(policy.model, tmp_path)
    other = copy.deepcopy(policy)
    from dapo.lora import save_adapter

    save_adapter(adapter_state(other.model), tmp_path)
    save_policy(other, tmp_path / "model")
    load_adapter(policy.model, tmp_path)
    fresh = load_policy_with(tmp_path, policy)
    with pytest.raises(ModelError, match="another model"):
        load_adapter(fresh.model, tmp_path)


def load_policy_with(folder: Path, policy: Policy) -> Policy:
    """The same model with an adapter on other projections."""
    save_policy(policy, folder / "model")
    fresh = load_policy(folder / "model")
    add_adapter(fresh, ModelConfig.model_validate(LORA | {"target_modules": ("k_proj",)}), 0)
    return fresh


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"lora_alpha": 8}, "model.lora_alpha"),
        ({"target_modules": ("q_proj",)}, "model.target_modules"),
        ({"lora_rank": 4, "target_modules": ("query",)}, "model.target_modules"),
        ({"lora_rank": 4, "target_modules": ()}, "model.target_modules"),
        ({"lora_rank": 65}, "model.lora_rank"),
        ({"lora_rank": 129, "target_modules": ("q_proj", "up_proj")}, "model.lora_rank"),
    ],
)
def test_settings_that_mean_nothing_are_faults(model: dict[str, object], key: str) -> None:
    assert [fault.key for fault in preflight(Config.model_validate({"model": model}))] == [key]
    for sound in (LORA, {"lora_rank": 64}, {"lora_rank": 128, "target_modules": ("q_proj", "up_proj")}):
        assert not preflight(Config.model_validate({"model": sound}))
