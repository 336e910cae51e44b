"""Every rollout engine that is installed: the right distribution, and rows that know nothing of each other."""

import copy
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from dapo.batch import Response
from dapo.config import RolloutConfig
from dapo.draws import Sampling
from dapo.engine_base import Rows, Sampled
from dapo.errors import NonFinite
from dapo.model import Policy, response_logprobs, save_policy
from dapo.model_transformers import load_foreign
from dapo.rollout import engine_of
from generation import PLAIN, config_of, respond
from scipy.stats import chisquare
from small_policy import skewed_policy
from warped import warped

PROMPTS = [[2, 3, 4], [5], [6, 7, 8, 9, 10, 11, 3, 2], [4, 4], [5, 9, 2, 3]]
LENGTH = 20
GREEDY = Sampling(0.0, 1.0, -1)
ENGINES = ["builtin", "transformers", *(["vllm"] if find_spec("vllm") else [])]


class Asked:
    """One policy, generated from by one engine."""

    def __init__(self, policy: Policy, name: str) -> None:
        self.policy, self.name = policy, name

    def respond(self, prompts=PROMPTS, n: int = 6, **changes) -> list[list[Response]]:
        return respond(self.policy, prompts, n, **{"room": LENGTH, "longest": 8, "name": self.name} | changes)

    def sample(self, rows: Rows, sampling: Sampling = PLAIN, **rollout: object) -> list[Sampled]:
        config = config_of(8, LENGTH, name=self.name, **rollout)
        return engine_of(self.policy, config).sample(rows, sampling, self.policy.tokenizer.eos_id)

    def scored(self, groups: list[list[Response]], temperature: float) -> torch.Tensor:
        """Log-probabilities by the trainer."""
        pairs = [(prompt, row.token_ids) for prompt, group in zip(PROMPTS, groups, strict=True) for row in group]
        with torch.no_grad():
            return response_logprobs(self.policy.model, pairs, temperature)[0]


@pytest.fixture(scope="module", params=ENGINES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """An engine for the whole module, since some take long to start."""
    policy = skewed_policy(head_dim=32)  # vLLM has no smaller ones
    if request.param == "transformers":
        folder = tmp_path_factory.mktemp("model")
        save_policy(policy, folder)
        policy.model = load_foreign(folder, policy.config.to_dict(), "float32", "cpu")
    yield Asked(policy, "vllm" if request.param == "vllm" else "builtin")
    if policy.served is not None:
        policy.served.close()


@pytest.fixture
def asked(shared: Asked) -> Iterator[Asked]:
    """Its weights are as they were after each test."""
    before = copy.deepcopy(shared.policy.model.state_dict())
    yield shared
    shared.policy.model.load_state_dict(before)


def token_ids(groups: list[list[Response]]) -> list[list[list[int]]]:
    return [[response.token_ids for response in group] for group in groups]


def recorded(groups: list[list[Response]]) -> torch.Tensor:
    return torch.tensor([value for group in groups for row in group for value in row.rollout_logprobs])


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_recorded_logprobs_are_those_of_the_trainer(asked: Asked, temperature: float) -> None:
    groups = asked.respond(sampling=Sampling(temperature, 1.0, -1))
    # The temperature divides the logits, and so multiplies their rounding.
    torch.testing.assert_close(recorded(groups), asked.scored(groups, temperature), atol=2e-5 / temperature, rtol=0)


def test_what_is_sampled_follows_the_weights(asked: Asked) -> None:
    before = asked.respond()
    with torch.no_grad():
        for weight in asked.policy.model.parameters():
            weight.mul_(0.7)
    groups = asked.respond()
    torch.testing.assert_close(recorded(groups), asked.scored(groups, 1.0), atol=2e-5, rtol=0)
    assert (asked.scored(before, 1.0) - recorded(before)).abs().max() > 0.1


SAMPLINGS = [
    pytest.param(Sampling(1.0, 1.0, -1), id="plain"),
    pytest.param(Sampling(0.7, 1.0, -1), id="cold"),
    pytest.param(Sampling(1.0, 0.7, -1), id="nucleus"),
    pytest.param(Sampling(1.0, 1.0, 5), id="top 5"),
    pytest.param(Sampling(1.3, 0.8, 6), id="nucleus of the top 6"),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_first_tokens_follow_the_distribution(asked: Asked, sampling: Sampling) -> None:
    """Three prompts at once, so that a mix-up of rows would show; and the log-probability is that of the draw."""
    count = 2000
    groups = asked.respond(PROMPTS[:3], count, room=1, sampling=sampling)
    for prompt, group in zip(PROMPTS[:3], groups, strict=True):
        with torch.no_grad():
            hidden = asked.policy.model.hidden_packed(torch.tensor(prompt), torch.tensor([0, len(prompt)]))
            table = warped(asked.policy.model.logits(hidden[-1:]), sampling)[0]
        drawn = torch.tensor([response.token_ids[0] for response in group])
        frequency = drawn.bincount(minlength=12).double()
        expected = table.exp().double() * count
        assert not frequency[expected == 0].any()
        used = expected > 0
        if used.sum() > 1:
            expected = expected[used] / expected[used].sum() * count
            assert chisquare(frequency[used].numpy(), expected.numpy()).pvalue > 1e-3
        table_of_drawn = torch.tensor([response.rollout_logprobs[0] for response in group])
        torch.testing.assert_close(table_of_drawn, table[drawn], atol=1e-5, rtol=0)


def test_a_seed_decides(asked: Asked) -> None:
    assert asked.respond(seed=3) == asked.respond(seed=3)
    assert token_ids(asked.respond(seed=3)) != token_ids(asked.respond(seed=4))


def test_a_group_holds_different_responses(asked: Asked) -> None:
    for group in token_ids(asked.respond()):
        assert len({tuple(row) for row in group}) > 1


def test_responses_end_with_the_end_token_or_at_the_limit(asked: Asked) -> None:
    rows = [row for group in asked.respond(n=30) for row in group]
    eos = asked.policy.tokenizer.eos_id
    for row in rows:
        assert len(row.token_ids) == len(row.rollout_logprobs)
        assert row.token_ids.count(eos) == row.finished
        assert row.token_ids[-1] == eos if row.finished else len(row.token_ids) == LENGTH
        assert row.text == asked.policy.tokenizer.decode(row.token_ids)
    assert 0 < sum(row.finished for row in rows) < len(rows)
    assert len({len(row.token_ids) for row in rows}) > 10


@pytest.mark.parametrize("max_num_seqs", [1, 7, 29])
def test_how_many_are_decoded_at_once_changes_nothing(asked: Asked, max_num_seqs: int) -> None:
    assert token_ids(asked.respond(max_num_seqs=max_num_seqs)) == token_ids(asked.respond())


def test_prompts_of_other_lengths_change_nothing(asked: Asked) -> None:
    together = token_ids(asked.respond(n=1, sampling=GREEDY))
    assert together == [token_ids(asked.respond([prompt], 1, sampling=GREEDY))[0] for prompt in PROMPTS]
    backwards = token_ids(asked.respond(PROMPTS[::-1], 1, sampling=GREEDY))
    assert backwards == together[::-1]


@pytest.mark.parametrize("max_num_seqs", [512, 3])
def test_each_row_has_its_own_limit_and_random_numbers(asked: Asked, max_num_seqs: int) -> None:
    """It is the start of what it would be without the limit, in whatever place and company."""
    owners = torch.arange(len(PROMPTS)).repeat_interleave(3)
    uniforms = torch.rand(len(owners), LENGTH, generator=torch.Generator().manual_seed(0))
    limits = 1 + torch.arange(len(owners)) % LENGTH
    whole = asked.sample(Rows(PROMPTS, owners, uniforms, torch.full_like(limits, LENGTH)))
    found = asked.sample(Rows(PROMPTS, owners, uniforms, limits), max_num_seqs=max_num_seqs)
    for row, full, limit in zip(found, whole, limits.tolist(), strict=True):
        assert row.token_ids == full.token_ids[:limit]
        assert row.logprobs == pytest.approx(full.logprobs[:limit], abs=1e-5)
    last = asked.sample(Rows(PROMPTS[-1:], torch.zeros(3, dtype=torch.long), uniforms[-3:], limits[-3:]))
    assert [row.token_ids for row in last] == [row.token_ids for row in found[-3:]]


def test_greedy_has_no_log_probabilities(asked: Asked) -> None:
    assert not recorded(asked.respond(n=1, sampling=GREEDY)).any()


def test_one_token_and_no_prompts(asked: Asked) -> None:
    assert {len(row.token_ids) for group in asked.respond(room=1) for row in group} == {1}
    assert asked.respond([]) == []


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_broken_weights_are_told(asked: Asked, sampling: Sampling, number: float) -> None:
    weights = dict(asked.policy.model.named_parameters())
    name = next(name for name in weights if "down_proj" in name)
    with torch.no_grad():
        weights[name][3, 5] = number
    with pytest.raises(NonFinite, match="generation: got NaN or infinite"):
        asked.respond(sampling=sampling)


def test_broken_output_weights_are_told(asked: Asked) -> None:
    with torch.no_grad():
        asked.policy.model.head_weight[3, 5] = float("nan")
    with pytest.raises(NonFinite, match="generation: got NaN or infinite"):
        asked.respond()


def test_settings_are_those_of_the_config() -> None:
    assert RolloutConfig().name == "builtin"
    assert set(ENGINES) - {"transformers"} <= {"builtin", "vllm"}
