"""Conversations: what is sampled, what is read, when they end, and that they know nothing of each other."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import generation
import pytest
import torch
from dapo.accounting import RolloutStats, forward_flops, generation_flops
from dapo.batch import Problem, Response, RolloutGroup, Score, Turns
from dapo.config import Config, RewardConfig
from dapo.config_multi_turn import MultiTurnConfig
from dapo.draws import Sampling, draw
from dapo.framing import Framing
from dapo.model import Policy, flops_per_token, response_logprobs
from dapo.multi_turn import converse
from dapo.reward import Scorer
from dapo.tool_calls import Call, read_calls
from dapo.tools import Toolbox, ToolResult
from tool_policy import example, tool_policy

ROOM = 80
PLAIN = Sampling(1.0, 1.0, -1)
GREEDY = Sampling(0.0, 1.0, -1)


class Parrot(Toolbox):
    """Says the same to every call."""

    def __init__(self, text: str) -> None:
        super().__init__(MultiTurnConfig())
        self.text = text
        self.asked: list[Call] = []

    def answer(self, calls: Sequence[Call]) -> list[ToolResult]:
        self.asked += calls
        return [ToolResult(self.text) for _ in calls]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tool_policy()


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> list[list[int]]:
    return [example(policy.tokenizer, number)[0] for number in range(6)]


def respond(
    policy: Policy,
    prompts: list[list[int]],
    n: int = 4,
    *,
    offered: Sequence[bool] | None = None,
    sampling: Sampling = PLAIN,
    room: int = ROOM,
    waves: int = 512,
    toolbox: Toolbox | None = None,
    seed: int = 0,
    **settings: object,
) -> list[list[Response]]:
    multi_turn = {"enable": True, **settings}
    tree = {"data": {"max_response_length": room}, "rollout": {"multi_turn": multi_turn, "max_num_seqs": waves}}
    config = Config.model_validate(tree)
    return converse(
        policy,
        prompts,
        [True] * len(prompts) if offered is None else offered,
        n,
        sampling=sampling,
        config=config,
        toolbox=toolbox or Toolbox(config.rollout.multi_turn),
        generator=torch.Generator().manual_seed(seed),
    )


def flat(groups: list[list[Response]]) -> list[Response]:
    return [response for group in groups for response in group]


def turns_of(response: Response) -> Turns:
    assert response.turns is not None
    return response.turns


def parts(response: Response) -> list[tuple[bool, list[int]]]:
    """Runs of tokens, each with whether the policy sampled it."""
    pairs = zip(response.mask, response.token_ids, strict=True)
    return [(sampled, [token for _, token in run]) for sampled, run in groupby(pairs, key=lambda pair: pair[0])]


def test_it_calls_reads_and_answers(policy: Policy, prompts) -> None:
    responses = [group[0] for group in respond(policy, prompts, 1, sampling=GREEDY)]
    good = [response for response in responses if turns_of(response).calls == 1 and not turns_of(response).failures]
    assert len(good) >= 3
    for response in good:
        (_, said), (_, read), (_, answer) = parts(response)
        text = policy.tokenizer.decode(said)
        assert text.startswith('<tool_call>{"name": "calculator"')
        value = text.partition('"expression": "')[2][0]
        assert policy.tokenizer.decode(read) == f"<tool_response>{value}</tool_response>\n"
        assert said[-1] == answer[-1] == policy.tokenizer.eos_id
        assert response.text == policy.tokenizer.decode(response.token_ids)
        assert response.statement == policy.tokenizer.decode(answer)
        assert (turns_of(response).count, response.finished) == (2, True)


def test_the_first_turn_is_that_of_plain_generation(policy: Policy, prompts) -> None:
    plain = generation.respond(policy, prompts, 3, room=ROOM)
    offered = [index % 2 == 0 for index in range(len(prompts))]
    found = respond(policy, prompts, 3, offered=offered)
    for tools, group, others in zip(offered, found, plain, strict=True):
        for response, other in zip(group, others, strict=True):
            if tools:
                assert parts(response)[0][1] == other.token_ids
            else:
                assert response == other
                assert response.turns is None
    assert sum(turns_of(response).calls for group in found[::2] for response in group) > 3
    assert respond(policy, prompts, 3, offered=[False] * len(prompts)) == plain


def test_each_token_is_what_was_sampled_given_all_before_it(policy: Policy, prompts) -> None:
    """The trainer's log-probs over the whole sequence are those of generation, also behind a tool's answer."""
    groups = respond(policy, prompts, 8)
    pairs = [(prompt, response) for prompt, group in zip(prompts, groups, strict=True) for response in group]
    sequences = [(prompt, response.token_ids) for prompt, response in pairs]
    with torch.no_grad():
        logprobs, _ = response_logprobs(policy.model, sequences, 1.0)
    recorded = torch.tensor([value for _, response in pairs for value in response.rollout_logprobs])
    mask = torch.tensor([sampled for _, response in pairs for sampled in response.mask])
    torch.testing.assert_close(recorded[mask], logprobs[mask], atol=1e-4, rtol=1e-4)
    assert not recorded[~mask].any()
    assert int((~mask).sum()) > 100
    encode, decode = policy.tokenizer.encode, policy.tokenizer.decode
    drifted = [
        response
        for _, response in pairs
        if turns_of(response).calls
        and any(sampled and encode(decode(run)) != run[:-1] for sampled, run in parts(response)[:1])
    ]
    responses = [response for _, response in pairs]
    assert drifted or any(encode(decode(response.token_ids)) != response.token_ids for response in responses)


def test_what_a_tool_says_conditions_what_follows(policy: Policy, prompts) -> None:
    """The same turn before, another answer: the policy reads it."""
    one, other = (respond(policy, prompts, 1, sampling=GREEDY, toolbox=Parrot(text)) for text in ("3", "again"))
    changed = 0
    for left, right in zip(flat(one), flat(other), strict=True):
        assert parts(left)[0] == parts(right)[0]
        changed += len(parts(left)) > 2 and parts(left)[2] != parts(right)[2]
    assert changed >= 3


def test_the_last_turns_call_is_not_answered(policy: Policy, prompts) -> None:
    for limit in (1, 2):
        toolbox = Parrot("again")
        responses = flat(respond(policy, prompts, 1, sampling=GREEDY, max_turns=limit, room=240, toolbox=toolbox))
        assert max(turns_of(response).count for response in responses) == limit
        most = [response for response in responses if turns_of(response).count == limit and response.finished]
        called = [response for response in most if read_calls(policy.tokenizer.decode(parts(response)[-1][1]))]
        assert called, "a call in the last turn"
        for response in called:
            assert turns_of(response).calls == limit - 1
            assert response.statement == "", "a call is no answer"
            assert parts(response)[-1][0], "nothing is read behind the last turn"
        assert len(toolbox.asked) == sum(turns_of(response).calls for response in responses)


def whole(policy: Policy, prompts: list[list[int]]) -> tuple[list[int], Response]:
    """A prompt whose greedy response has two turns, and that response."""
    for prompt in prompts:
        response = respond(policy, [prompt], 1, sampling=GREEDY)[0][0]
        if turns_of(response).count == 2 and response.finished:
            return prompt, response
    raise AssertionError("the policy never calls")


def test_the_limit_counts_every_token_and_an_answer_without_room_is_left_out(policy: Policy, prompts) -> None:
    prompt, response = whole(policy, prompts)
    first, read, last = (len(run) for _, run in parts(response))
    for room in (first - 1, first, first + read, first + read + 1, first + read + last - 1, first + read + last):
        found = respond(policy, [prompt], 1, sampling=GREEDY, room=room)[0][0]
        assert len(found.token_ids) <= room
        assert found.token_ids == response.token_ids[: len(found.token_ids)]
        fits = room > first + read
        assert len(found.token_ids) == (room if fits or room < first else first)
        assert found.finished == (room == first + read + last)
        assert turns_of(found).count == (2 if fits else 1)
        assert len(found.mask) == len(found.rollout_logprobs) == len(found.token_ids)


def test_rows_know_nothing_of_each_other(policy: Policy, prompts) -> None:
    together = flat(respond(policy, prompts, 3))
    assert {turns_of(response).count for response in together} >= {1, 2}
    assert flat(respond(policy, prompts, 3)) == together
    assert flat(respond(policy, prompts, 3, seed=1)) != together
    tokens = [response.token_ids for response in together]
    for waves in (1, 4, 7):
        assert [response.token_ids for response in flat(respond(policy, prompts, 3, waves=waves))] == tokens
    some = flat(respond(policy, prompts[:2], 3))
    assert [response.token_ids for response in some] == tokens[:6]


def test_a_tokens_random_number_is_that_of_its_place(policy: Policy, prompts) -> None:
    """A turn behind an answer draws on from where the answer ends: by hand, with the trainer's own forward pass."""
    uniforms = torch.rand(len(prompts) * 8, ROOM, generator=torch.Generator().manual_seed(0))
    checked = otherwise = 0
    for place, response in enumerate(flat(respond(policy, prompts, 8))):
        start = sum(len(run) for _, run in parts(response)[:2])
        with torch.no_grad():
            logits = policy.model(torch.tensor(prompts[place // 8] + response.token_ids))
        for at in range(start, len(response.token_ids)):
            if response.mask[at]:
                row = logits[len(prompts[0]) + at - 1 : len(prompts[0]) + at]
                assert int(draw(row, uniforms[place, at : at + 1], PLAIN)[0]) == response.token_ids[at]
                checked += 1
                otherwise += (
                    int(draw(row, uniforms[place, at - start : at - start + 1], PLAIN)[0]) != (response.token_ids[at])
                )
    assert checked > 50
    assert otherwise > 0, "with other numbers there would be other tokens"


def test_failures_are_answered_in_words_and_counted(policy: Policy, prompts) -> None:
    """Only Python is there, and the policy asks for a calculator."""
    responses = flat(respond(policy, prompts, 1, sampling=GREEDY, room=200, tools=["python"]))
    failed = [response for response in responses if turns_of(response).failures]
    assert failed
    assert all(turns_of(response).failures == turns_of(response).calls for response in failed)
    assert "error: there is no tool 'calculator'; use one of python" in failed[0].text


def test_an_answer_that_a_tool_gives_is_not_the_policys(policy: Policy, prompts) -> None:
    """The tool says 42 and the policy's last turn is cut before it can: wrong, though the text has it."""
    prompt, response = whole(policy, prompts)
    first = len(parts(response)[0][1])
    text = "Answer: 42. The answer is 42. \\boxed{42}"
    frame = Framing(policy.tokenizer, None, Toolbox(MultiTurnConfig()).signatures)
    read = len(frame.answers([text], MultiTurnConfig()))
    found = respond(policy, [prompt], 1, sampling=GREEDY, room=first + read + 1, toolbox=Parrot(text))[0][0]
    assert text in found.text
    assert turns_of(found).count == 2
    problem = Problem("1", "s", "6*7", "42")
    for grader in ("integer", "number", "math_dapo"):
        assert Scorer(RewardConfig(grader=grader), ROOM).score_all([(problem, found)])[0].acc == 0.0
        said = Response([1], [0.0], True, "", Turns([True], 1, "So: \\boxed{42}\nAnswer: 42"))
        assert Scorer(RewardConfig(grader=grader), ROOM).score_all([(problem, said)])[0].acc == 1.0


def response_of(mask: list[bool], **turns: int) -> Response:
    return Response([5] * len(mask), [-1.0] * len(mask), True, "", Turns(mask, last_text="", **{"count": 1, **turns}))


def test_flops_of_turns_by_hand(policy: Policy) -> None:
    """3 prompt tokens; turns of 2, 4 and 1 tokens with answers of 3 and 2 between: each later one reads all again."""
    flops = partial(flops_per_token, policy.config)
    mask = [True] * 2 + [False] * 3 + [True] * 4 + [False] * 2 + [True]
    expected = sum(flops(place) for place in range(1, 4))  # the prompt
    expected += flops(4)  # the first turn's first token; its last one is drawn only
    expected += sum(flops(place) for place in range(1, 9))  # prompt, first turn and answer
    expected += sum(flops(place) for place in range(9, 12))
    expected += sum(flops(place) for place in range(1, 15))
    assert generation_flops(3, [response_of(mask)], flops) == pytest.approx(expected)
    single = Response([5] * 4, [0.0] * 4, True, "")
    once = forward_flops(0, 3, flops) + forward_flops(3, 3, flops)
    assert generation_flops(3, [single], flops) == pytest.approx(once)


def test_metrics_by_hand() -> None:
    stats = RolloutStats()
    responses = [
        response_of([True, True, False, False, False, True], count=2, calls=2, failures=1),
        response_of([True, True]),
        Response([5] * 4, [0.0] * 4, False, ""),
    ]
    stats.add([RolloutGroup(Problem("1", "s", "", ""), [1], responses, [Score(0.0, 0.0, 0.0, "")] * 3)])
    found = stats.metrics()
    assert stats.tokens == 3 + 2 + 4
    assert found["response_length/mean"] == 4.0
    assert found["response_length/max"] == 6.0
    assert {name: value for name, value in found.items() if name.startswith("multi_turn/")} == {
        "multi_turn/offered": pytest.approx(2 / 3),
        "multi_turn/turns_mean": 1.5,
        "multi_turn/calls_mean": 1.0,
        "multi_turn/call_share": 0.5,
        "multi_turn/failure_share": 0.5,
        "multi_turn/tool_token_share": 3 / 8,
    }
    stats = RolloutStats()
    stats.add([RolloutGroup(Problem("1", "s", "", ""), [1], responses[2:], [Score(0.0, 0.0, 0.0, "")])])
    assert not any(name.startswith("multi_turn/") for name in stats.metrics())
