"""The decoder against transformers: same logits from the same folder, and back."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dapo.model_logprobs
import pytest
import torch
from dapo.errors import ModelError
from dapo.model import (
    Decoder,
    DecoderConfig,
    Policy,
    flops_per_token,
    load_policy,
    response_logprobs,
    save_policy,
)
from dapo.tokenizer import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""Of the heads' frequencies the first is fast, the second between, and the others are slow."""
VARIANTS = {
    "llama, grouped queries": (LlamaForCausalLM, LlamaConfig, {}),
    "llama, tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama, one key head": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1}),
    "llama, as many key heads": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
    "llama, wide heads": (LlamaForCausalLM, LlamaConfig, {"head_dim": 20}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2, tied": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 20}),
    "qwen3, tied, one key head": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"head_dim": 8, "tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "llama, linear rope": (
        LlamaForCausalLM,
        LlamaConfig,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "llama, llama3 rope": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3}),
}
TOKENS = torch.randint(0, 300, (3, 17), generator=torch.Generator().manual_seed(5))


def their_model(variant: str) -> Any:
    """Random weights everywhere, the norms' and biases that transformers starts at 1 and 0 included."""
    model_class, config_class, changes = VARIANTS[variant]
    model = model_class(config_class(**SHAPE | changes))
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.1, generator=generator)
    return model.eval()


def save_theirs(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    byte_tokenizer(()).save(folder)
    return folder


@pytest.fixture(params=VARIANTS)
def theirs(request: pytest.FixtureRequest) -> Any:
    return their_model(request.param)


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    found = model(TOKENS)
    return found if isinstance(found, torch.Tensor) else found.logits


def test_logits_equal_transformers(theirs: Any, tmp_path: Path) -> None:
    policy = load_policy(save_theirs(theirs, tmp_path))
    expected = logits(theirs)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits(policy.model), expected, atol=1e-5, rtol=0)
    with torch.inference_mode():
        torch.testing.assert_close(policy.model(TOKENS[1]), expected[1], atol=1e-5, rtol=0)


def test_what_we_save_transformers_reads(theirs: Any, tmp_path: Path) -> None:
    policy = load_policy(save_theirs(theirs, tmp_path / "theirs"))
    save_policy(policy, tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs)
    assert torch.equal(logits(again), logits(theirs))
    assert load_policy(tmp_path / "ours").config == policy.config


def test_sharded_weights(theirs: Any, tmp_path: Path) -> None:
    folder = save_theirs(theirs, tmp_path, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    torch.testing.assert_close(logits(load_policy(folder).model), logits(theirs), atol=1e-5, rtol=0)


def test_bfloat16_stays_near(tmp_path: Path) -> None:
    theirs = their_model("qwen2")
    policy = load_policy(save_theirs(theirs, tmp_path), dtype="bfloat16")
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(logits(policy.model).float(), logits(theirs), atol=0.15, rtol=0)


def test_a_loaded_model_can_be_trained(model_folder: Path) -> None:
    policy = load_policy(model_folder)
    response_logprobs(policy.model, [([5, 6], [7])], 1.0)[0].sum().backward()
    assert all(weight.grad is not None for weight in policy.model.parameters())


def add_weight(folder: Path, name: str, weight: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: weight}, folder / "model.safetensors")


def test_config_of_transformers_4_and_old_weights(tmp_path: Path) -> None:
    """`rope_theta` at the top, `torch_dtype`, several end tokens, and rotary frequencies among the weights."""
    theirs = their_model("llama, grouped queries")
    folder = save_theirs(theirs, tmp_path)
    change_config(
        folder, rope_parameters=None, rope_theta=500.0, torch_dtype="float16", dtype=None, eos_token_id=[7, 8]
    )
    add_weight(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(6))
    policy = load_policy(folder)
    assert policy.config.eos_token_id == 7
    torch.testing.assert_close(logits(policy.model), logits(theirs), atol=1e-5, rtol=0)


def test_tied_weights_that_were_saved_twice(tmp_path: Path) -> None:
    theirs = their_model("llama, tied")
    folder = save_theirs(theirs, tmp_path)
    add_weight(folder, "lm_head.weight", theirs.lm_head.weight.detach().clone())
    torch.testing.assert_close(logits(load_policy(folder).model), logits(theirs), atol=1e-5, rtol=0)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_everything_unsupported_is_named_at_once(model_folder: Path) -> None:
    wrong = {
        "hidden_act": "gelu",
        "mlp_bias": True,
        "attention_bias": True,
        "use_sliding_window": True,
        "pretraining_tp": 2,
        "quantization_config": {"bits": 4},
        "vocab_size": None,
        "hidden_size": 0,
    }
    change_config(
        model_folder, rope_parameters={"rope_type": "yarn", "factor": 8.0, "partial_rotary_factor": 0.5}, **wrong
    )
    with pytest.raises(ModelError) as caught:
        load_policy(model_folder)
    told = str(caught.value)
    assert told.startswith(str(model_folder / "config.json"))
    for key in ("rope scaling: got 'yarn'", "partial_rotary_factor: got 0.5", *wrong):
        assert key in told


@pytest.mark.parametrize("variant", ["llama, linear rope", "llama, llama3 rope"])
def test_rope_scaling_as_transformers_4_wrote_it(variant: str, tmp_path: Path) -> None:
    theirs = their_model(variant)
    folder = save_theirs(theirs, tmp_path)
    scaling = dict(VARIANTS[variant][2]["rope_parameters"])
    old = {"type": scaling.pop("rope_type"), **scaling} if "linear" in variant else scaling
    change_config(folder, rope_parameters=None, rope_theta=old.pop("rope_theta"), rope_scaling=old)
    torch.testing.assert_close(logits(load_policy(folder).model), logits(theirs), atol=1e-5, rtol=0)


def test_rope_scaling_without_its_numbers_is_refused(model_folder: Path) -> None:
    change_config(model_folder, rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0})
    with pytest.raises(ModelError, match=r"rope scaling lacks: got \['low_freq_factor', 'high_freq_factor', 'orig"):
        load_policy(model_folder)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def only_index(text: str) -> Callable[[Path], object]:
    return lambda folder: (remove("model.safetensors")(folder), write("model.safetensors.index.json", text)(folder))


def no_end_token(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    change_config(folder, eos_token_id=None)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(remove("config.json"), "config.json: can't be read.*need a Hugging Face folder", id="no config"),
        pytest.param(write("config.json", "{"), "config.json: can't be read", id="config cut"),
        pytest.param(write("config.json", "[]"), "config.json: can't be read", id="config is no table"),
        pytest.param(
            write("config.json", '{"model_type": "gpt2"}'),
            "the weights don't fit config.json: got none for",
            id="gpt2",
        ),
        pytest.param(remove("model.safetensors"), "weights can't be read.*need model.safetensors", id="no weights"),
        pytest.param(cut("model.safetensors"), "weights can't be read", id="weights cut"),
        pytest.param(only_index("{}"), "weights can't be read", id="index without map"),
        pytest.param(only_index('{"weight_map": []}'), "weights can't be read", id="index with a list"),
        pytest.param(only_index('{"weight_map": {"a": "b.safetensors"}}'), "weights can't be read", id="shard missing"),
        pytest.param(
            lambda folder: change_config(folder, hidden_size=64), "weights don't fit config.json", id="another shape"
        ),
        pytest.param(
            lambda folder: change_config(folder, num_hidden_layers=3),
            "weights don't fit config.json",
            id="one layer short",
        ),
        pytest.param(
            lambda folder: change_config(folder, vocab_size=100),
            "vocab_size: got 100; need at least",
            id="small vocabulary",
        ),
        pytest.param(remove("tokenizer.json"), "tokenizer.json: can't be read", id="no tokenizer"),
        pytest.param(write("tokenizer.json", "{}"), "tokenizer.json: can't be read", id="tokenizer empty"),
        pytest.param(write("tokenizer_config.json", "{"), "tokenizer_config.json: can't be read", id="settings cut"),
        pytest.param(write("tokenizer_config.json", "[1]"), "tokenizer_config.json: can't be read", id="no settings"),
        pytest.param(no_end_token, "no eos_token in tokenizer_config.json or config.json", id="no end token"),
    ],
)
def test_damaged_folders(damage: Callable[[Path], object], told: str, model_folder: Path) -> None:
    damage(model_folder)
    with pytest.raises(ModelError, match=told) as caught:
        load_policy(model_folder)
    assert str(model_folder) in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(str(tmp_path / "nowhere" / "config.json"))):
        load_policy(tmp_path / "nowhere")


@cache
def decoder() -> Decoder:
    """Weights large enough that log-probabilities differ."""
    config = DecoderConfig(
        model_type="qwen2",
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    model = Decoder(config)
    generator = torch.Generator().manual_seed(2)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    return model


Pair = tuple[list[int], list[int]]
tokens = st.integers(0, 39)
pairs = st.tuples(st.lists(tokens, min_size=1, max_size=9), st.lists(tokens, min_size=1, max_size=12))


def reference(model: Decoder, pair: Pair, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies from the logits of one sequence, in float64."""
    prompt, response = pair
    with torch.no_grad():
        rows = model(torch.tensor(prompt + response))[len(prompt) - 1 : -1].double() / temperature
    table = rows.log_softmax(-1)
    return table[torch.arange(len(response)), torch.tensor(response)], -(table.exp() * table).sum(-1)


@settings(max_examples=40, deadline=None)
@given(st.lists(pairs, min_size=1, max_size=7), st.sampled_from([0.5, 1.0, 1.7]))
def test_packed_sequences_score_as_if_alone(sequences: Sequence[Pair], temperature: float) -> None:
    with torch.no_grad():
        logprobs, entropy = response_logprobs(decoder(), sequences, temperature)
    expected = [reference(decoder(), pair, temperature) for pair in sequences]
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), torch.cat([each[0] for each in expected]), atol=2e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), torch.cat([each[1] for each in expected]), atol=2e-5, rtol=0)


def gradients(sequences: Sequence[Pair]) -> list[torch.Tensor]:
    model = decoder()
    model.zero_grad()
    logprobs, entropy = response_logprobs(model, sequences, 0.9)
    torch.autograd.backward(logprobs.sum() + 0.5 * entropy.sum())
    return [logprobs.detach(), entropy.detach(), *(weight.grad.clone() for weight in model.parameters())]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [([1, 2, 3], [4, 5, 6, 7, 8]), ([9], [10, 11]), ([12] * 6, [13])]
    whole = gradients(sequences)
    monkeypatch.setattr(dapo.model_logprobs, "CHUNK_ELEMENTS", 40 * 3)
    torch.testing.assert_close(gradients(sequences), whole, atol=1e-5, rtol=1e-5)


def test_gradients_of_packed_sequences_add_up() -> None:
    sequences = [([1, 2, 3], [4, 5, 6, 7, 8]), ([9], [10, 11]), ([12] * 6, [13])]
    alone = [gradients([pair])[2:] for pair in sequences]
    summed = [torch.stack(each).sum(0) for each in zip(*alone, strict=True)]
    torch.testing.assert_close(gradients(sequences)[2:], summed, atol=1e-4, rtol=1e-4)


def test_flops_by_hand() -> None:
    """hidden 8, 2 heads and 1 key head of 4, intermediate 10, 3 layers, vocabulary 50."""
    config = DecoderConfig("llama", 50, 8, 10, 3, 2, 1, 4)
    layer = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 10
    assert flops_per_token(config, 0) == 2 * (3 * layer + 8 * 50)
    assert flops_per_token(config, 7) - flops_per_token(config, 0) == 3 * 2 * (2 * 2 * 4 * 7)


def test_flops_are_those_of_a_forward_pass(policy: Policy) -> None:
    """torch counts every matrix product that runs; its plain attention computes all pairs, causal or not."""
    length = 13
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        policy.model(torch.arange(length))
    assert counter.get_total_flops() == length * flops_per_token(policy.config, length)
