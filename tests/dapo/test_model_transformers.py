"""Models that our decoder doesn't compute: by transformers, with the same numbers at generation and in the update."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dapo.config import Config
from dapo.draws import Sampling
from dapo.errors import ModelError
from dapo.model import Policy, flops_per_token, load_policy, response_logprobs, save_policy
from dapo.model_transformers import ForeignDecoder, ForeignEngine
from dapo.preflight import preflight
from dapo.prepare import prepare
from generation import respond
from safetensors.torch import load_file
from small_policy import small_policy
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training import run
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PhiConfig,
)

TOKENS = small_policy().tokenizer
SHAPE = {"vocab_size": TOKENS.vocab_size, "eos_token_id": TOKENS.eos_id, "pad_token_id": TOKENS.pad_id}
MODERN = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
}
MODELS: dict[str, Any] = {
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=None, **SHAPE),
    "mistral": MistralConfig(**MODERN, **SHAPE, tie_word_embeddings=False, sliding_window=4),
    "gemma2": Gemma2Config(**MODERN, **SHAPE, head_dim=16, sliding_window=4, final_logit_softcapping=0.5),
    "phi": PhiConfig(**{**MODERN, "num_key_value_heads": 4}, **SHAPE),
    "llama with biases": LlamaConfig(**MODERN, **SHAPE, attention_bias=True),
}
PAIRS = [([5, 9, 11, 7], [20, 31, 8]), ([5, 6], [40, 41, 42, 43, 9])]


def folder_of(config: Any, folder: Path) -> Path:
    """A folder as `save_pretrained` leaves it, with a tokenizer; weights large enough that log-probs differ."""
    torch.manual_seed(0)
    config.initializer_range = 0.2
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms too
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    TOKENS.save(folder)
    return folder


@pytest.fixture(params=list(MODELS))
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Policy:
    return load_policy(folder_of(MODELS[request.param], tmp_path / "foreign"))


def test_log_probabilities_are_transformers_own(foreign: Policy) -> None:
    assert isinstance(foreign.model, ForeignDecoder)
    ours, _ = response_logprobs(foreign.model, PAIRS, 1.0)
    expected = []
    for prompt, response in PAIRS:
        logits = foreign.model.theirs(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        expected.append(logits[len(prompt) - 1 : -1].gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(ours, torch.cat(expected), atol=1e-5, rtol=0)
    ours.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in foreign.model.parameters())


def test_shared_prompts_change_nothing(foreign: Policy) -> None:
    pairs = [([5, 9, 11], [20, 31]), ([5, 9, 11], [7]), ([6, 6], [8, 9, 10])]
    apart, _ = response_logprobs(foreign.model, pairs, 1.0)
    shared, _ = response_logprobs(foreign.model, pairs, 1.0, share_prompts=True)
    torch.testing.assert_close(shared, apart, atol=1e-5, rtol=0)


def test_what_was_sampled_has_the_trainers_log_probabilities(foreign: Policy) -> None:
    prompts = [[5, 9, 11], [7, 8, 12, 13, 14], [6]]
    cold = Sampling(0.8, 1.0, -1)
    drawn = respond(foreign, prompts, 3, sampling=cold, room=10, max_num_seqs=4)
    pairs = [(p, r.token_ids) for p, group in zip(prompts, drawn, strict=True) for r in group]
    recorded = torch.tensor([value for group in drawn for r in group for value in r.rollout_logprobs])
    torch.testing.assert_close(response_logprobs(foreign.model, pairs, 0.8)[0], recorded, atol=1e-5, rtol=0)
    again = respond(foreign, prompts, 3, sampling=cold, room=10)
    assert [[r.token_ids for r in group] for group in again] == [[r.token_ids for r in group] for group in drawn]


def test_greedy_generation_is_transformers_own(foreign: Policy) -> None:
    (group,) = respond(foreign, [[5, 9, 11]], 1, sampling=Sampling(0.0, 1.0, -1), room=8)
    assert isinstance(foreign.model, ForeignDecoder)
    theirs = foreign.model.theirs.generate(torch.tensor([[5, 9, 11]]), max_new_tokens=8, do_sample=False)
    assert group[0].token_ids == theirs[0, 3 : 3 + len(group[0].token_ids)].tolist()


def test_a_folder_that_is_saved_is_loaded_again_by_both(foreign: Policy, tmp_path: Path) -> None:
    save_policy(foreign, tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert torch.equal(response_logprobs(again.model, PAIRS, 1.0)[0], response_logprobs(foreign.model, PAIRS, 1.0)[0])
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert flops_per_token(again.config, 10.0) == flops_per_token(foreign.config, 10.0) > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_run_trains_it_and_resumes_bit_for_bit(make_config, tmp_path: Path, name: str) -> None:
    folder = folder_of(MODELS[name], tmp_path / "foreign")

    def config(place: str) -> Config:
        return make_config(model={"path": str(folder)}, trainer__default_local_dir=str(tmp_path / place))

    assert preflight(config("whole")) == []
    whole = run(config("whole"))
    run(config("parts"), stop_at=2)
    assert whole[-1].final and run(config("parts"))[-1].final
    one, other = (
        load_file(tmp_path / place / "global_step_3" / "model" / "model.safetensors") for place in ("whole", "parts")
    )
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    start = load_file(folder / "model.safetensors")
    assert any(not torch.equal(one[key], start[key]) for key in start if key in one)
    assert whole[1].metrics["rollout/logprob_diff_max"] < 1e-4


def test_an_adapter_on_it(make_config, tmp_path: Path) -> None:
    folder = folder_of(MODELS["mistral"], tmp_path / "foreign")
    model = {"path": str(folder), "lora_rank": 4}
    told = run(make_config(model=model, actor__optim={"lr": 1e-2}, trainer__default_local_dir=str(tmp_path / "run")))
    assert told[-1].final
    trained = load_file(tmp_path / "run" / "global_step_3" / "model" / "model.safetensors")
    start = load_file(folder / "model.safetensors")
    assert trained.keys() == start.keys()
    changed = {key.rsplit(".", 2)[-2] for key in start if not torch.equal(trained[key], start[key])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_only_a_plain_head_is_computed_from_hidden_states(foreign: Policy, request: pytest.FixtureRequest) -> None:
    assert isinstance(foreign.model, ForeignDecoder)
    assert foreign.model.plain_head == (request.node.callspec.params["foreign"] not in ("gemma2", "phi"))


def test_flops_are_those_of_a_forward_pass(foreign: Policy) -> None:
    """Torch counts every matrix product that runs, rotary angles too: less than a thousandth."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        foreign.model.logits(foreign.model.hidden_packed(torch.arange(2, 15), torch.tensor([0, 13])))
    assert counter.get_total_flops() == pytest.approx(13 * flops_per_token(foreign.config, 13), rel=1e-3)


def test_each_prompt_is_read_once(foreign: Policy) -> None:
    """As it is counted."""
    seen: list[int] = []
    hook = foreign.model.theirs.get_input_embeddings().register_forward_pre_hook(
        lambda _, ids: seen.append(len(ids[0]))
    )
    respond(foreign, [[5, 9, 11], [6]], 5, room=2)
    hook.remove()
    assert seen[0] == 2


def test_a_model_that_generates_otherwise_than_it_scores_is_refused(tmp_path: Path, monkeypatch) -> None:
    folder = folder_of(MODELS["mistral"], tmp_path / "foreign")
    advance = ForeignEngine.advance

    def late(self, cache, token):
        cache.positions = cache.positions + 3
        return advance(self, cache, token)

    monkeypatch.setattr(ForeignEngine, "advance", late)
    with pytest.raises(ModelError, match="off scoring"):
        load_policy(folder)


def test_a_family_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=1, bos_token_id=None, **SHAPE)
    with pytest.raises(ModelError, match="transformers can't load it"):
        load_policy(folder_of(config, tmp_path / "mamba"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"model_type": "nosuch"}, id="unknown family"),
        pytest.param({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}, id="code of its own"),
        pytest.param({"n_head": 5}, id="heads that don't divide"),
    ],
)
def test_what_transformers_does_not_know_is_told_before_the_run(tmp_path: Path, make_config, change) -> None:
    folder = folder_of(MODELS["gpt2"], tmp_path / "foreign")
    prepare(make_config(model={"path": str(folder)}))
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(ModelError, match="transformers can't load it"):
        prepare(make_config(model={"path": str(folder)}))


def test_an_adapter_on_another_familys_names(make_config, tmp_path: Path) -> None:
    path = str(folder_of(MODELS["gpt2"], tmp_path / "foreign"))
    start = load_file(Path(path) / "model.safetensors")
    for targets, expected in {"all-linear": {"c_attn", "c_proj", "c_fc"}, ("c_attn",): {"c_attn"}}.items():
        place = tmp_path / f"run-{len(expected)}"
        config = make_config(
            model={"path": path, "lora_rank": 4, "target_modules": targets}, trainer__default_local_dir=str(place)
        )
        assert preflight(config) == []
        run(config)
        trained = load_file(place / "global_step_3" / "model" / "model.safetensors")
        assert {key.rsplit(".", 2)[-2] for key in start if not torch.equal(trained[key], start[key])} == expected
    wrong = make_config(model={"path": path, "lora_rank": 4, "target_modules": ("q_proj",)})
    with pytest.raises(
        ModelError, match=r"target_modules: got q_proj; need all-linear, or some of c_attn, c_fc, c_proj"
    ):
        run(wrong)


def test_what_nobody_computes_is_told(tmp_path: Path, make_config) -> None:
    folder = folder_of(MODELS["gpt2"], tmp_path / "broken")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"model_type": "nosuch"}))
    with pytest.raises(ModelError, match="transformers can't load it"):
        load_policy(folder)
    (folder / "config.json").write_text(json.dumps(raw))
    config = make_config(
        model={"path": str(folder), "enable_gradient_checkpointing": True}, actor__use_prefix_grouper=True
    )
    keys = ["model.enable_gradient_checkpointing", "actor.use_prefix_grouper"]
    assert [fault.key for fault in preflight(config)] == keys


def test_lengths_beyond_the_models_positions_are_told(tmp_path: Path, make_config, caplog) -> None:
    """A learnt position that isn't there ends a run in the middle of a batch."""
    short = GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=70, bos_token_id=None, **SHAPE)
    model = {"path": str(folder_of(short, tmp_path / "short"))}
    fitting = make_config(model=model, data__max_prompt_length=62, data__max_response_length=8)
    assert preflight(fitting) == []
    assert preflight(fitting) == []
    assert [record.message.endswith("slower than by our own decoder") for record in caplog.records] == [True], "once"
    (fault,) = preflight(make_config(model=model, data__max_prompt_length=63, data__max_response_length=8))
    assert (fault.key, fault.need) == ("data.max_response_length", "at most 70 together, the model's positions")
