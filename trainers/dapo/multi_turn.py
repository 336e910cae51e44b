"""Responses in several turns: the policy calls tools, reads their answers, and goes on.

All rows that are still talking sample one turn together; the tools then answer all their calls at once, and the
answers become context of the next turn. A token's random number is that of its place in the response, so the same
seed gives the same responses, and a row's turns never change another row.

A response ends with a turn without a call, with its `max_turns`-th turn, or at `max_response_length`, which counts
every token, answers included; one that would fill it up is left out, and the response counts as cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dapo.batch import Response, Turns
from dapo.config import Config
from dapo.draws import Sampling
from dapo.engine_base import Rows
from dapo.exchange import pack_responses, unpack_responses
from dapo.framing import Framing
from dapo.model import Policy
from dapo.parallel import interleaved
from dapo.rollout import engine_of, sample_rows
from dapo.tool_calls import Call, read_calls, without_calls
from dapo.tools import Toolbox


def converse(
    policy: Policy,
    prompts: Sequence[list[int]],
    offered: Sequence[bool],
    n: int,
    *,
    sampling: Sampling,
    config: Config,
    toolbox: Toolbox | None,
    generator: torch.Generator,
) -> list[list[Response]]:
    """Sample `n` responses to each prompt, with tools where they were offered.

    Of several processes each samples a share, and all return all. Each response has its own random numbers, drawn up
    front, so that one response's length never changes another.

    Args:
        policy: model and tokenizer.
        prompts: token ids, each at least one.
        offered: whether each prompt offers tools; if not, its responses have one turn.
        n: responses per prompt.
        sampling: what to draw from.
        config: `rollout.multi_turn` and limits.
        toolbox: answers calls; None where nothing is offered.
        generator: source of randomness, on the CPU.

    Raises:
        NonFinite: the model's numbers are NaN or infinite.
        ModelError: the chat template has no place for what a tool answers.
        DapoError: a tool can't be started.
    """
    if not prompts:
        return []
    world, replicas = policy.world, policy.world.replicas
    uniforms = torch.rand(len(prompts), n, config.data.max_response_length, generator=generator)
    mine = replicas.mine(range(len(prompts)))
    talk = _Conversations(policy, sampling, config, toolbox, uniforms[mine].flatten(0, 1))
    found = talk.hold([prompts[place] for place in mine], [offered[place] for place in mine]) if mine else []
    groups = [found[start : start + n] for start in range(0, len(found), n)]
    if world.size == 1:
        return groups
    parts = world.gather(pack_responses(groups) if world.tp.rank == 0 else b"")
    return interleaved([unpack_responses(part) for part in parts if part])


class _Conversation:
    """A response in progress."""

    def __init__(self, prompt: list[int], response: Response) -> None:
        """Begin with the first turn."""
        self.prompt = prompt
        self.response = response
        self.turns = response.turns = Turns([True] * len(response.token_ids), 1, response.text)
        self.start = 0
        """Where the last turn begins."""

    @property
    def length(self) -> int:
        return len(self.response.token_ids)

    @property
    def last_turn(self) -> list[int]:
        return self.response.token_ids[self.start :]

    def add_turn(self, turn: Response) -> None:
        """Append what the policy sampled."""
        self.start = self.length
        self._add(turn.token_ids, turn.rollout_logprobs, sampled=True)
        self.response.finished = turn.finished
        self.turns.count += 1

    def add_answers(self, tokens: list[int]) -> None:
        """Append what it reads before its next turn."""
        self._add(tokens, [0.0] * len(tokens), sampled=False)

    def _add(self, tokens: list[int], logprobs: list[float], *, sampled: bool) -> None:
        self.response.token_ids += tokens
        self.response.rollout_logprobs += logprobs
        self.turns.mask += [sampled] * len(tokens)


class _Conversations:
    """A batch of responses in progress, and what they share."""

    def __init__(
        self, policy: Policy, sampling: Sampling, config: Config, toolbox: Toolbox | None, uniforms: torch.Tensor
    ) -> None:
        self.tokenizer = policy.tokenizer
        self.engine = engine_of(policy, config)
        self.sampling = sampling
        self.toolbox = toolbox
        self.uniforms = uniforms
        """[N, R] by place in the batch and place in the response."""
        self.settings = config.rollout.multi_turn
        self.framing = Framing(policy.tokenizer, config.data.prompt_template, toolbox.signatures if toolbox else ())

    def hold(self, prompts: Sequence[list[int]], offered: Sequence[bool]) -> list[Response]:
        """Sample the responses to these prompts, equally many each, to their ends."""
        total, room = self.uniforms.shape
        owners = torch.arange(len(prompts)).repeat_interleave(total // len(prompts))
        flat = self.sample(Rows(prompts, owners, self.uniforms, torch.full((total,), room)))
        if self.toolbox is not None:
            begun = enumerate(owners.tolist())
            self.go_on({place: _Conversation(prompts[owner], flat[place]) for place, owner in begun if offered[owner]})
        return flat

    def sample(self, rows: Rows) -> list[Response]:
        """Sample one turn of each row."""
        return sample_rows(self.engine, self.tokenizer, rows, self.sampling)

    def go_on(self, talking: dict[int, _Conversation]) -> None:
        """Continue conversations, by their places in the batch, from their first turns to their ends."""
        live = self._answered(talking)
        while live:
            turns = self.sample(self._next_turns(live))
            for conversation, turn in zip(live.values(), turns, strict=True):
                conversation.add_turn(turn)
            live = self._answered(live)
        for conversation in talking.values():
            conversation.turns.last_text = without_calls(self.tokenizer.decode(conversation.last_turn))
            conversation.response.text = self.tokenizer.decode(conversation.response.token_ids)

    def _next_turns(self, live: dict[int, _Conversation]) -> Rows:
        room = self.uniforms.shape[1]
        contexts = [one.prompt + one.response.token_ids for one in live.values()]
        used = torch.tensor([one.length for one in live.values()])
        places = (used.unsqueeze(1) + torch.arange(room)).clamp_max(room - 1)
        uniforms = self.uniforms[list(live)].gather(1, places)
        return Rows(contexts, torch.arange(len(live)), uniforms, room - used)

    def _answered(self, talking: dict[int, _Conversation]) -> dict[int, _Conversation]:
        """Answer the calls in the last turns, all at once, and return the conversations that go on."""
        if self.toolbox is None:
            return {}
        asked = {place: calls for place, one in talking.items() if (calls := self._calls(one))}
        results = iter(self.toolbox.answer([call for calls in asked.values() for call in calls]))
        live = {}
        for place, calls in asked.items():
            conversation, found = talking[place], [next(results) for _ in calls]
            conversation.turns.calls += len(found)
            conversation.turns.failures += sum(result.failed for result in found)
            tokens = self.framing.answers([result.text for result in found], self.settings)
            if conversation.length + len(tokens) < self.uniforms.shape[1]:
                conversation.add_answers(tokens)
                live[place] = conversation
            else:
                conversation.response.finished = False
        return live

    def _calls(self, conversation: _Conversation) -> list[Call]:
        """The calls to answer: none in a turn that was cut, nor in the last one."""
        if not conversation.response.finished or conversation.turns.count >= self.settings.max_turns:
            return []
        said = self.tokenizer.decode(conversation.last_turn, special=True)
        return read_calls(said)[: self.settings.max_parallel_calls]
