"""Generation: the right distribution, and rows that know nothing of each other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dapo.rollout
import pytest
import torch
from dapo.batch import Response
from dapo.errors import NonFinite
from dapo.model import Decoder, DecoderConfig, Policy, response_logprobs, save_policy
from dapo.model_config import RopeScaling
from dapo.rollout import Engine, Rows, Sampling, draw, generate, sample_rows
from dapo.tokenizer import byte_tokenizer
from dapo.warmstart import initialise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    AutoModelForCausalLM,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

PROMPTS = [[2, 3, 4], [5], [6, 7, 8, 9, 10, 11, 3, 2], [4, 4], [5, 9, 2, 3]]
LENGTH = 20


@pytest.fixture
def policy() -> Policy:
    """Twelve tokens, so that a row ends after a dozen on average."""
    tokenizer = byte_tokenizer(())
    config = DecoderConfig(
        model_type="llama",
        vocab_size=12,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(20.0 if "embed" in name else 2.0)
    return Policy(model, tokenizer, config)


def responses(policy: Policy, prompts=PROMPTS, n: int = 6, seed: int = 0, **changes) -> list[list[Response]]:
    options = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_response_length": LENGTH, "max_num_seqs": 512}
    return generate(policy, prompts, n, generator=torch.Generator().manual_seed(seed), **options | changes)


def token_ids(groups: list[list[Response]]) -> list[list[list[int]]]:
    return [[response.token_ids for response in group] for group in groups]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 4},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 12},
        {"rope_scaling": RopeScaling("linear", 4.0)},
        {"rope_scaling": RopeScaling("llama3", 8.0, original_max_position_embeddings=16)},
    ],
    ids=str,
)
def test_greedy_is_that_of_transformers(policy: Policy, changes: dict[str, Any], tmp_path: Path) -> None:
    config = replace(policy.config, **changes)
    model = Decoder(config)
    generator = torch.Generator().manual_seed(4)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4, generator=generator)
    policy = Policy(model, policy.tokenizer, config)
    save_policy(policy, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    found = token_ids(responses(policy, n=2, temperature=0.0))
    for prompt, group in zip(PROMPTS, found, strict=True):
        inputs = torch.tensor([prompt])
        expected = theirs.generate(
            inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=LENGTH
        )[0, len(prompt) :].tolist()
        assert group == [expected, expected]
    assert len({tuple(group[0]) for group in found}) > 2


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_recorded_logprobs_are_those_of_the_trainer(policy: Policy, temperature: float) -> None:
    groups = responses(policy, temperature=temperature)
    pairs = [(prompt, row.token_ids) for prompt, group in zip(PROMPTS, groups, strict=True) for row in group]
    recorded = torch.tensor([value for group in groups for row in group for value in row.rollout_logprobs])
    with torch.no_grad():
        torch.testing.assert_close(recorded, response_logprobs(policy.model, pairs, temperature)[0], atol=1e-5, rtol=0)


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities as transformers' processors make them."""
    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    logits = TemperatureLogitsWarper(sampling.temperature)(ids, logits)
    if sampling.top_k > 0:
        logits = TopKLogitsWarper(sampling.top_k)(ids, logits)
    if sampling.top_p < 1.0:
        logits = TopPLogitsWarper(sampling.top_p)(ids, logits)
    return logits.log_softmax(-1)


SAMPLINGS = [
    pytest.param(Sampling(1.0, 1.0, -1), id="plain"),
    pytest.param(Sampling(0.7, 1.0, -1), id="cold"),
    pytest.param(Sampling(1.0, 0.7, -1), id="nucleus"),
    pytest.param(Sampling(1.0, 1.0, 5), id="top 5"),
    pytest.param(Sampling(1.3, 0.8, 6), id="nucleus of the top 6"),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_first_tokens_follow_the_distribution(policy: Policy, sampling: Sampling) -> None:
    """Three prompts at once, so that a mix-up of rows would show."""
    count = 4000
    groups = responses(policy, PROMPTS[:3], count, max_response_length=1, max_num_seqs=8192,
                       temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)  # fmt: skip
    for prompt, group in zip(PROMPTS[:3], groups, strict=True):
        with torch.no_grad():
            table = warped(policy.model(torch.tensor(prompt))[-1:], sampling)[0]
        drawn = torch.tensor([response.token_ids[0] for response in group])
        frequency = drawn.bincount(minlength=12).double()
        expected = table.exp().double() * count
        assert not frequency[expected == 0].any()
        used = expected > 0
        if used.sum() > 1:
            expected = expected[used] / expected[used].sum() * count
            assert chisquare(frequency[used].numpy(), expected.numpy()).pvalue > 1e-3
        recorded = torch.tensor([response.rollout_logprobs[0] for response in group])
        torch.testing.assert_close(recorded, table[drawn], atol=1e-5, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 70, 300]),
    st.floats(0.3, 3.0),
    st.sampled_from([-1, 0, 1, 3, 65, 500]),
    st.floats(0.05, 1.0),
)
def test_truncation_is_that_of_transformers(
    seed: int, vocabulary: int, spread: float, top_k: int, top_p: float
) -> None:
    """An even grid of uniforms meets every token that has more than a grid step of mass, and no other."""
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
    sampling = Sampling(0.8, top_p, top_k)
    expected = warped(logits, sampling)[0]
    steps = 3000
    uniforms = (torch.arange(steps) + 0.5) / steps
    drawn, logprobs = draw(logits.expand(steps, -1), uniforms, sampling)
    torch.testing.assert_close(logprobs, expected[drawn], atol=1e-4, rtol=0)
    sure = (expected.exp() > 1.5 / steps).nonzero().flatten().tolist()
    assert set(sure) <= set(drawn.tolist())


def test_the_ends_of_the_unit_interval_draw_tokens_with_mass() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]]).expand(2, -1)
    drawn, logprobs = draw(logits, torch.tensor([0.0, 1.0 - 2**-24]), Sampling(1.0, 1.0, -1))
    assert drawn.tolist() == [1, 3]
    torch.testing.assert_close(logprobs, torch.log_softmax(torch.tensor([0.0, 1.0]), 0))


def test_a_seed_decides(policy: Policy) -> None:
    assert responses(policy, seed=3) == responses(policy, seed=3)
    assert responses(policy, seed=3) != responses(policy, seed=4)


def test_a_group_holds_different_responses(policy: Policy) -> None:
    for group in token_ids(responses(policy)):
        assert len({tuple(row) for row in group}) > 1


def test_responses_end_with_the_end_token_or_at_the_limit(policy: Policy) -> None:
    rows = [row for group in responses(policy, n=30) for row in group]
    eos = policy.tokenizer.eos_id
    for row in rows:
        assert len(row.token_ids) == len(row.rollout_logprobs)
        assert row.token_ids.count(eos) == row.finished
        assert row.token_ids[-1] == eos if row.finished else len(row.token_ids) == LENGTH
        assert row.text == policy.tokenizer.decode(row.token_ids)
    assert 0 < sum(row.finished for row in rows) < len(rows)
    assert len({len(row.token_ids) for row in rows}) > 10


@pytest.mark.parametrize("compact_below", [0.0, 0.5, 1.1], ids=["never", "sometimes", "each time"])
def test_an_ended_row_changes_no_other(policy: Policy, compact_below: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an end token every row runs to the limit; each response must be the start of that row."""
    eos = policy.tokenizer.eos_id
    policy.tokenizer.eos_id = -1
    endless = responses(policy, n=20)
    policy.tokenizer.eos_id = eos
    monkeypatch.setattr(dapo.rollout, "COMPACT_BELOW", compact_below)
    ended = 0
    for group, whole in zip(responses(policy, n=20), endless, strict=True):
        for row, full in zip(group, whole, strict=True):
            size = full.token_ids.index(eos) + 1 if eos in full.token_ids else LENGTH
            assert row.token_ids == full.token_ids[:size]
            assert row.rollout_logprobs == pytest.approx(full.rollout_logprobs[:size], abs=1e-5)
            ended += row.finished
    assert 0 < ended < 100


@pytest.mark.parametrize("max_num_seqs", [1, 4, 7, 29])
def test_waves_change_nothing(policy: Policy, max_num_seqs: int) -> None:
    assert token_ids(responses(policy, max_num_seqs=max_num_seqs)) == token_ids(responses(policy))


def test_prompts_of_other_lengths_change_nothing(policy: Policy) -> None:
    together = token_ids(responses(policy, n=1, temperature=0.0))
    assert together == [token_ids(responses(policy, [prompt], 1, temperature=0.0))[0] for prompt in PROMPTS]
    backwards = token_ids(responses(policy, PROMPTS[::-1], 1, temperature=0.0))
    assert backwards == together[::-1]


def test_responses_come_in_the_order_of_prompts(policy: Policy) -> None:
    """A row's random numbers belong to its place: with n = 2, places 2 and 3 are the second prompt's."""
    groups = token_ids(responses(policy, [PROMPTS[0], PROMPTS[2], PROMPTS[0]], 2, max_response_length=6))
    assert [len(group) for group in groups] == [2, 2, 2]
    uniforms = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    for place, prompt in enumerate([PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[2], PROMPTS[0], PROMPTS[0]]):
        row: list[int] = []
        while len(row) < 6 and policy.tokenizer.eos_id not in row:
            with torch.no_grad():
                logits = policy.model(torch.tensor(prompt + row))[-1:]
            row.append(int(draw(logits, uniforms[place, len(row) : len(row) + 1], Sampling(1.0, 1.0, -1))[0]))
        assert groups[place // 2][place % 2] == row


@pytest.mark.parametrize("max_num_seqs", [512, 3])
def test_each_row_has_its_own_limit(policy: Policy, max_num_seqs: int) -> None:
    """And its own random numbers: it is the start of what it would be without the limit."""
    owners = torch.arange(len(PROMPTS)).repeat_interleave(3)
    uniforms = torch.rand(len(owners), LENGTH, generator=torch.Generator().manual_seed(0))
    limits = 1 + torch.arange(len(owners)) % LENGTH
    rows = Rows(PROMPTS, owners, uniforms, limits)
    found = sample_rows(Engine(policy.model), policy.tokenizer, rows, Sampling(1.0, 1.0, -1), max_num_seqs)
    whole = [row for group in responses(policy, n=3) for row in group]
    for row, full, limit in zip(found, whole, limits.tolist(), strict=True):
        assert row.token_ids == full.token_ids[:limit]
        assert len(row.rollout_logprobs) == len(row.token_ids)
        assert row.finished == (full.finished and len(full.token_ids) <= limit)
        assert row.text == policy.tokenizer.decode(row.token_ids)
    assert {row.finished for row in found} == {True, False}


def test_one_token_and_no_prompts(policy: Policy) -> None:
    assert {len(row.token_ids) for group in responses(policy, max_response_length=1) for row in group} == {1}
    assert responses(policy, []) == []


def test_weights_are_left_alone(policy: Policy) -> None:
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    responses(policy)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.model.state_dict().items())
    assert all(weight.requires_grad for weight in policy.model.parameters())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_broken_weights_are_told(policy: Policy, temperature: float, number: float) -> None:
    with torch.no_grad():
        policy.model.model.layers[1].mlp.down_proj.weight[3, 5] = number
    with pytest.raises(NonFinite, match="generation: got NaN or infinite"):
        responses(policy, temperature=temperature)


def test_broken_output_weights_are_told(policy: Policy) -> None:
    with torch.no_grad():
        policy.model.lm_head.weight[3, 5] = float("nan")
    with pytest.raises(NonFinite, match="generation: got NaN or infinite"):
        responses(policy)
