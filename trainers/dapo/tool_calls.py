"""How the policy is told of tools, and how its calls are read: the Hermes format, which Qwen's models know too.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. One that can't be read is no silence: it has an
answer like any other, which says what is wrong with it, so that the policy can do better in its next turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dapo.config_multi_turn import MultiTurnConfig, ToolName

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Signature(NamedTuple):
    """A tool as the policy sees it: a function of one text."""

    name: str
    description: str
    parameter: str
    """Name of its one argument."""
    meaning: str
    """What that argument is."""

    def schema(self) -> dict[str, object]:
        """The function in OpenAI's form."""
        properties = {self.parameter: {"type": "string", "description": self.meaning}}
        parameters = {"type": "object", "properties": properties, "required": [self.parameter]}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


SIGNATURES: Mapping[ToolName, Signature] = {
    "calculator": Signature(
        "calculator",
        "Compute an arithmetic expression exactly. It may have + - * / // % **, parentheses, and the functions abs, "
        "ceil, floor, gcd, max, min, round and sqrt.",
        "expression",
        "such as (3 + 4) * 2 / 7",
    ),
    "python": Signature(
        "python",
        "Run a Python 3 program with the standard library, without files or network, and return what it prints. The "
        "value of a last line that is an expression is printed too.",
        "code",
        "the program",
    ),
}


def signatures_of(config: MultiTurnConfig) -> list[Signature]:
    """Return the tools that a run offers, in the order of the config."""
    return [SIGNATURES[name] for name in config.tools]


class Call(NamedTuple):
    """A call as it was written."""

    name: str
    arguments: Mapping[str, object]
    fault: str = ""
    """What makes it unreadable, in words for the policy."""


def instructions(signatures: Sequence[Signature]) -> str:
    """The text that offers tools to a chat model, as Qwen2.5's chat template words it."""
    schemas = "\n".join(json.dumps(signature.schema()) for signature in signatures)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{schemas}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        f"{OPENING}{CLOSING} XML tags:\n"
        f'{OPENING}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSING}'
    )


def short_instructions(signatures: Sequence[Signature]) -> str:
    """The same for a model without chat template, in few tokens."""
    names = ", ".join(f"{signature.name}({signature.parameter})" for signature in signatures)
    first = signatures[0]
    example = json.dumps({"name": first.name, "arguments": {first.parameter: "..."}})
    return f"Tools: {names}. Use: {OPENING}{example}{CLOSING}"


def read_calls(text: str) -> list[Call]:
    """Return the calls of one turn, in order. Never raises; time is linear in the text's length."""
    return [_read(inside) for _, inside in _parts(text) if inside is not None]


def without_calls(text: str) -> str:
    """Return what a turn says beside its calls."""
    return "".join(outside for outside, _ in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield (text before a call, text within it); the last one has no call. One that is never closed is none."""
    place = 0
    while True:
        start = text.find(OPENING, place)
        end = text.find(CLOSING, start + len(OPENING)) if start >= 0 else -1
        if end < 0:
            yield text[place:], None
            return
        yield text[place:start], text[start + len(OPENING) : end]
        place = end + len(CLOSING)


def _read(inside: str) -> Call:
    need = 'need {"name": ..., "arguments": {...}}'
    try:
        content = json.loads(inside)
    except (ValueError, RecursionError):
        return Call("", {}, f"the call is no JSON; {need}")
    name = content.get("name") if isinstance(content, dict) else None
    arguments = content.get("arguments") if isinstance(content, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Call("", {}, f"the call has no name or no arguments; {need}")
    return Call(name, arguments)
