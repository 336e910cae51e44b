"""The trainer's own engine: rows that enter and leave, and how little it holds and reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dapo.engine
import pytest
import torch
from dapo.batch import Response
from dapo.draws import Sampling, draw
from dapo.engine import Engine
from dapo.engine_base import Rows
from dapo.engine_cache import Cache
from dapo.model import Decoder, Policy, response_logprobs, save_policy
from dapo.model_config import RopeScaling
from generation import PLAIN, engine, respond
from small_policy import skewed_policy
from transformers import AutoModelForCausalLM

PROMPTS = [[2, 3, 4], [5], [6, 7, 8, 9, 10, 11, 3, 2], [4, 4], [5, 9, 2, 3]]
LENGTH = 20
GREEDY = Sampling(0.0, 1.0, -1)


@pytest.fixture
def policy() -> Policy:
    return skewed_policy()


def responses(policy: Policy, prompts=PROMPTS, n: int = 6, **changes) -> list[list[Response]]:
    return respond(policy, prompts, n, **{"room": LENGTH} | changes)


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
    found = token_ids(responses(policy, n=2, sampling=GREEDY))
    for prompt, group in zip(PROMPTS, found, strict=True):
        inputs = torch.tensor([prompt])
        expected = theirs.generate(
            inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=LENGTH
        )[0, len(prompt) :].tolist()
        assert group == [expected, expected]
    assert len({tuple(group[0]) for group in found}) > 2


@pytest.mark.parametrize("slots", [512, 24])
@pytest.mark.parametrize("alive_share", [0.0, 0.5, 1.0], ids=["never", "sometimes", "each time"])
def test_an_ended_row_changes_no_other(
    policy: Policy, alive_share: float, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an end token every row runs to the limit; each response must be the start of that row."""
    eos = policy.tokenizer.eos_id
    policy.tokenizer.eos_id = -1
    endless = responses(policy, n=20)
    policy.tokenizer.eos_id = eos
    monkeypatch.setattr(dapo.engine, "ALIVE_SHARE", alive_share)
    ended = 0
    for group, whole in zip(responses(policy, n=20, max_num_seqs=slots), endless, strict=True):
        for row, full in zip(group, whole, strict=True):
            size = full.token_ids.index(eos) + 1 if eos in full.token_ids else LENGTH
            assert row.token_ids == full.token_ids[:size]
            assert row.rollout_logprobs == pytest.approx(full.rollout_logprobs[:size], abs=1e-5)
            ended += row.finished
    assert 0 < ended < 100


def test_responses_come_in_the_order_of_prompts(policy: Policy) -> None:
    """A row's random numbers belong to its place: with n = 2, places 2 and 3 are the second prompt's."""
    groups = token_ids(responses(policy, [PROMPTS[0], PROMPTS[2], PROMPTS[0]], 2, room=6))
    assert [len(group) for group in groups] == [2, 2, 2]
    uniforms = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    for place, prompt in enumerate([PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[2], PROMPTS[0], PROMPTS[0]]):
        row: list[int] = []
        while len(row) < 6 and policy.tokenizer.eos_id not in row:
            with torch.no_grad():
                logits = policy.model(torch.tensor(prompt + row))[-1:]
            row.append(int(draw(logits, uniforms[place, len(row) : len(row) + 1], Sampling(1.0, 1.0, -1))[0]))
        assert groups[place // 2][place % 2] == row


def test_weights_are_left_alone(policy: Policy) -> None:
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    responses(policy)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.model.state_dict().items())
    assert all(weight.requires_grad for weight in policy.model.parameters())


SKEWED = torch.tensor([3, 12, 5, 20, 2, 7, 12, 1, 1, 4]).repeat(3)
"""Limits of the rows of six prompts, five each."""


def sampled(policy: Policy, slots: int, **rollout: object) -> list[list[int]]:
    """Rows without an end token, of lengths that are known."""
    prompts = [*PROMPTS, [7, 7, 7]]
    owners = torch.arange(6).repeat_interleave(5)
    uniforms = torch.rand(30, LENGTH, generator=torch.Generator().manual_seed(0))
    rows = Rows(prompts, owners, uniforms, SKEWED)
    return [row.token_ids for row in engine(policy, max_num_seqs=slots, **rollout).sample(rows, PLAIN, -1)]


@pytest.mark.parametrize("slots", [1, 4, 7, 29])
def test_each_prompt_is_read_once_the_longest_first(
    policy: Policy, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    read = Engine.read

    def counted(self, cache, prompts, owner, places):
        seen.extend(prompts)
        return read(self, cache, prompts, owner, places)

    monkeypatch.setattr(Engine, "read", counted)
    assert [len(row) for row in sampled(policy, slots)] == SKEWED.tolist()
    assert sorted(seen) == sorted([*PROMPTS, [7, 7, 7]])
    assert [len(prompt) for prompt in seen] == sorted(map(len, seen), reverse=True)


@pytest.mark.parametrize(("limit", "reads"), [(1, 6), (6, 4), (10, 3), (8192, 1)])
def test_prompts_are_read_up_to_so_many_tokens_at_once(policy: Policy, limit: int, reads: int, monkeypatch) -> None:
    expected = sampled(policy, 512)
    sizes: list[list[int]] = []
    read = Engine.read

    def counted(self, cache, prompts, owner, places):
        sizes.append([len(prompt) for prompt in prompts])
        return read(self, cache, prompts, owner, places)

    monkeypatch.setattr(Engine, "read", counted)
    assert sampled(policy, 512, max_num_batched_tokens=limit) == expected
    assert len(sizes) == reads
    assert all(len(size) == 1 or sum(size) <= limit for size in sizes)


@pytest.mark.parametrize("slots", [2, 5, 11])
def test_slots_are_filled_again_and_the_cache_stays_as_it_is(policy, slots: int, monkeypatch) -> None:
    """Waves would take as many steps as the longest row of each; the cache is as large as one row's greatest length."""
    steps, moves, advance, make_room = [], [], Engine.advance, Cache.make_room

    def advanced(self, cache, token, tables):
        assert cache.keys[0].shape[1] <= slots
        assert cache.keys[0].shape[0] == max(map(len, PROMPTS)) + LENGTH
        steps.append(len(token))
        return advance(self, cache, token, tables)

    def moved(self, alive):
        moves.append(self.column == self.columns)
        make_room(self, alive)

    monkeypatch.setattr(Engine, "advance", advanced)
    monkeypatch.setattr(Cache, "make_room", moved)
    sampled(policy, slots)
    waves = sum(int(SKEWED[first : first + slots].max()) for first in range(0, len(SKEWED), slots))
    assert len(steps) < 0.75 * waves
    assert any(moves) or slots == 11


def test_bfloat16_generates_nearly_what_is_trained(policy: Policy) -> None:
    """Its log-probabilities are its own: of what it drew from, a little off the trainer's."""
    assert {part.dtype for part in engine(policy, dtype="bfloat16").weights.layers[0].qkv.unbind()} == {torch.bfloat16}
    groups = responses(policy, dtype="bfloat16")
    pairs = [(prompt, row.token_ids) for prompt, group in zip(PROMPTS, groups, strict=True) for row in group]
    recorded = torch.tensor([value for group in groups for row in group for value in row.rollout_logprobs])
    with torch.no_grad():
        apart = (recorded - response_logprobs(policy.model, pairs, 1.0)[0]).abs()
    assert 1e-4 < apart.mean() < 0.05
    assert next(policy.model.parameters()).dtype == torch.float32


def test_a_model_in_bfloat16_may_generate_in_float32(policy: Policy) -> None:
    rounded = skewed_policy()
    rounded.model.to(torch.bfloat16)
    wide = Policy(Decoder(policy.config), policy.tokenizer, policy.config)
    wide.model.load_state_dict({name: weight.float() for name, weight in rounded.model.state_dict().items()})
    assert token_ids(responses(rounded, dtype="float32")) == token_ids(responses(wide))
    assert token_ids(responses(rounded)) != token_ids(responses(wide))
