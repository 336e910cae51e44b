"""Dialogues, offers of tools and answers of tools as the policy's tokens, by its chat template or in plain text.

A response is never rendered again: what was sampled stays as it was sampled, and only what stands between two turns
is made here. That is found by rendering a dialogue whose tool answers are marks, with and without them; the rest
between and around the marks is the template's framing. What a tool answered is put in between as plain text, so that
it can't bring special tokens with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dapo.batch import Fault, Message, Problem
from dapo.config_multi_turn import MultiTurnConfig
from dapo.errors import DataError, ModelError
from dapo.tool_calls import Signature, instructions, short_instructions

if TYPE_CHECKING:
    from dapo.tokenizer import Tokenizer

_SAID, _RESULT = "assistant-said-4f1c", "tool-result-9b7e"
"""Marks that no template changes."""
_CUT = "...(truncated)..."
RESPONSE_OPENING, RESPONSE_CLOSING = "<tool_response>", "</tool_response>"


class Framing:
    """How one run's prompts and tool answers become tokens."""

    def __init__(self, tokenizer: Tokenizer, prompt_template: str | None, signatures: Sequence[Signature] = ()) -> None:
        """Use the model's chat template, if it has one and `prompt_template` (text around a problem) isn't given.

        Args:
            tokenizer: the policy's.
            prompt_template: `data.prompt_template`.
            signatures: the tools that may be offered.
        """
        self._tokenizer = tokenizer
        self._template = prompt_template
        self._signatures = signatures
        self._chat = tokenizer.chat_template is not None and prompt_template is None
        self._pieces: dict[int, list[list[int]]] = {}
        self._cut = tokenizer.encode_plain(_CUT)

    def prompt(self, problem: Problem, *, tools: bool = False) -> str:
        """Return a prompt's text, with the offer of tools if wanted.

        Raises:
            ModelError: the chat template fails.
            DataError: a dialogue where `data.prompt_template` is set.
        """
        if self._template is not None and problem.messages:
            got = f"a template, and problem {problem.problem_id}, which is a dialogue"
            raise DataError(Fault("data.prompt_template", got, "problems of one text", "leave the template out"))
        if self._chat:
            return self._chat_prompt(problem, tools)
        offer = f"{short_instructions(self._signatures)}\n" if tools else ""
        if problem.messages:
            return offer + "".join(f"{role.title()}: {text}\n" for role, text in problem.messages) + "Assistant:"
        return offer + self._tokenizer.prompt(problem.problem, self._template)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of prompts that `prompt` made.

        What the tokenizer begins every text with stands before those that went through no chat template, as
        transformers' tokenizers have it; what they put after a text would end it, and isn't there.
        """
        opening = [] if self._chat else self._tokenizer.opening
        rows = self._tokenizer.encode_batch(prompts)
        return [ids if ids[: len(opening)] == opening else [*opening, *ids] for ids in rows]

    def _chat_prompt(self, problem: Problem, tools: bool) -> str:
        messages = list(problem.messages) or [Message("user", problem.problem)]
        if tools:
            offer = instructions(self._signatures)
            if messages[0].role == "system":
                messages[0] = Message("system", f"{messages[0].content}\n\n{offer}")
            else:
                messages.insert(0, Message("system", offer))
        return self._tokenizer.chat([message._asdict() for message in messages])

    def answers(self, texts: Sequence[str], config: MultiTurnConfig) -> list[int]:
        """Return the tokens between a turn that ended with the end token and the next: what its calls were answered.

        Args:
            texts: one answer per call, at least one.
            config: how long an answer may be, and where it is cut.

        Raises:
            ModelError: the chat template has no place for them.
        """
        first, *rest = self._frame(len(texts))
        tokens = list(first)
        for text, piece in zip(texts, rest, strict=True):
            tokens += self._shortened(self._tokenizer.encode_plain(text), config)
            tokens += piece
        return tokens

    def _frame(self, count: int) -> list[list[int]]:
        """The tokens before, between and after so many answers."""
        if count not in self._pieces:
            texts = _chat_frame(self._tokenizer, count) if self._chat else _plain_frame(count)
            self._pieces[count] = [self._tokenizer.encode(text) if text else [] for text in texts]
        return self._pieces[count]

    def _shortened(self, tokens: list[int], config: MultiTurnConfig) -> list[int]:
        limit, side = config.max_tool_response_length, config.tool_response_truncate_side
        if len(tokens) <= limit:
            return tokens
        mark = self._cut if len(self._cut) < limit else []
        room = limit - len(mark)
        head = {"left": 0, "middle": room - room // 2, "right": room}[side]
        return tokens[:head] + mark + tokens[len(tokens) - (room - head) :]


def _plain_frame(count: int) -> list[str]:
    between = f"{RESPONSE_CLOSING}\n{RESPONSE_OPENING}"
    return [RESPONSE_OPENING, *[between] * (count - 1), f"{RESPONSE_CLOSING}\n"]


def _chat_frame(tokenizer: Tokenizer, count: int) -> list[str]:
    """Let the template frame answers as those of a tool, or else as a user's message, where it knows no tools.

    Raises:
        ModelError: neither can be done.
    """
    reasons = []
    as_tool = {"role": "tool", "content": _RESULT}
    as_user = {"role": "user", "content": f"{RESPONSE_OPENING}\n{_RESULT}\n{RESPONSE_CLOSING}"}
    for message in (as_tool, as_user):
        messages = [message] * count
        if message is as_user:  # users and assistants take turns
            messages = [{"role": "user", "content": "\n".join([as_user["content"]] * count)}]
        try:
            return _rendered_frame(tokenizer, messages, count)
        except ModelError as error:
            reasons.append(str(error))
    raise ModelError("; ".join(dict.fromkeys(reasons)))


def _rendered_frame(tokenizer: Tokenizer, messages: Sequence[dict[str, str]], count: int) -> list[str]:
    """Return the template's text from the end token of an assistant's turn to the next turn, split at the answers.

    Raises:
        ModelError: the turn before doesn't end with the end token, or is changed by what follows, or answers get lost.
    """
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
    closed = tokenizer.chat(before, answer=False)
    end_token = tokenizer.special_tokens["eos_token"]
    said = closed.rfind(_SAID)
    end = closed.find(end_token, said) if said >= 0 else -1
    if end < 0:
        raise ModelError(f"chat_template: closes no assistant's turn with {end_token}, which ends a response")
    turn = closed[: end + len(end_token)]
    whole = tokenizer.chat([*before, *messages])
    if not whole.startswith(turn):
        raise ModelError("chat_template: renders an assistant's turn in another way when a tool's answer follows")
    pieces = whole[len(turn) :].split(_RESULT)
    if len(pieces) != count + 1:
        raise ModelError("chat_template: leaves out what a tool answered")
    return pieces
