r"""Reading the stated answer of a response, strictly.

Graders read the last answer that the response states, as ``\boxed{...}``, ``Answer: ...``, ``the answer is ...``
or ``#### ...``, and compare it with the gold answer: `integer` as integers (AIME's rule), `number` as exact
numbers, so that ``0.5``, ``1/2`` and ``\frac12`` are one. What is stated must be such a number and nothing else
once notation is taken off (bold, dollars, quotes, parentheses, a closing period, ``x =``, ``(mod 1000)``):
``4 2``, ``50%`` and ``4km2`` state none. A box and an ``Answer:`` that disagree state nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

MAX_STATEMENT = 200
"""Characters of a statement that are read: the bound that keeps grading linear in the response."""

MAX_MARKERS = 32
"""Stated answers that are considered, from the last one back."""

_MARKER = re.compile(
    r"\banswer\b[*_ \t]{0,8}(?:(?P<strong>[:：=])|is\b[ \t]{0,8}(?P<colon>[:：]?))|(?P<hashes>####)",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")
_DIGIT = re.compile("[0-9]")
_SENTENCE_END = re.compile(r"\.\s+(?=[^0-9\s])")
_REMARK = re.compile(
    r"\s*\(\s*\\?p?mod\b[^()]*\)$|\s*\\pmod\s*(?:\{[^{}]*\}|\w+)$|\s\([^()0-9]*\)$|\^\s*(?:\\circ|\{\s*\\circ\s*\})$|°$"
)
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit)\s*\{(?P<inside>[^{}]*)\}")
_EQUATION = re.compile(r"^(?:[A-Za-z][A-Za-z_+\- ]*|[0-9(][0-9(). ]*[-+*/×·^][-+*/×·^0-9(). ]*)=(?P<right>[^=]*)$")
"""A name, or a sum that is carried out, and what it is equal to; `3 = 4` is neither."""
_PARENTHESES = re.compile(r"^(?:\\left)?\((?P<inside>[^()]*?)(?:\\right)?\)$")
_WHOLE = r"(?P<digits>[0-9]+|[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3})+)"
_INTEGER = re.compile(rf"(?P<sign>[-+−]?)\s?{_WHOLE}(?:\.0*)?")
_DECIMAL = re.compile(rf"(?P<sign>[-+−]?)\s?{_WHOLE}?\.(?P<part>[0-9]+)")
_FRACTION = re.compile(
    r"(?P<sign>[-+−]?)\s?(?:(?P<over>[0-9]+)\s?/\s?(?P<under>[0-9]+)"
    r"|\\[dt]?frac\s?(?P<latex_over>\{\s?-?[0-9]+\s?\}|[0-9])\s?(?P<latex_under>\{\s?[0-9]+\s?\}|[0-9]))"
)
_MINUS = ("-", "−")
_AROUND = " \t\r\n*_`\"'“”‘’$"
_AFTER = _AROUND + ".,;:\\"


class Grade(NamedTuple):
    """A verdict, and what it is about."""

    correct: bool
    answer: str
    """The answer that was read: canonical where it is an integer, as stated otherwise, or an empty string."""


class Answer(NamedTuple):
    """One stated answer."""

    text: str
    """As stated, without notation."""
    value: str | None
    """Canonical, or None if it is no such number."""


Parser = Callable[[str], str | None]
"""Takes an answer as stated or as printed in the data; gives its canonical form, or None if it has none."""


def parse_integer(text: str) -> str | None:
    """Return an integer's canonical digits (``073`` and ``73.0`` give ``73``), or None."""
    match = _INTEGER.fullmatch(_strip_notation(text[:MAX_STATEMENT]))
    if match is None:
        return None
    digits = re.sub(r"[^0-9]", "", match["digits"]).lstrip("0") or "0"
    return f"-{digits}" if match["sign"] in _MINUS and digits != "0" else digits


def parse_number(text: str) -> str | None:
    """Return a decimal's or fraction's lowest terms (``0.50`` and ``2/4`` give ``1/2``), or None."""
    if (integer := parse_integer(text)) is not None:
        return integer
    plain = _strip_notation(text[:MAX_STATEMENT])
    if (match := _DECIMAL.fullmatch(plain)) is not None:
        whole = re.sub(r"[^0-9]", "", match["digits"] or "0")
        value = Fraction(f"{whole}.{match['part']}")
    elif (match := _FRACTION.fullmatch(plain)) is not None:
        over, under = (int((match[name] or match[f"latex_{name}"]).strip("{ }")) for name in ("over", "under"))
        if under == 0:
            return None
        value = Fraction(over, under)
    else:
        return None
    return str(-value if match["sign"] in _MINUS else value)


PARSERS: Mapping[str, Parser] = {"integer": parse_integer, "number": parse_number}
"""What each grader can read, by its name."""


def grade(parse: Parser, response: str, ground_truth: str) -> Grade:
    """Grade one response. Never raises; time is linear in the response's length.

    Args:
        parse: How answers are read: one of `PARSERS`.
        response: What the model said.
        ground_truth: The gold answer; one that `parse` can't read is never matched.
    """
    gold = parse(ground_truth)
    statement, box = _last_statement(parse, response), _last_box(parse, response)
    if statement is not None and box is not None and _contradict(statement, box):
        return Grade(False, "")
    stated = statement or box
    if stated is None:
        return Grade(False, "")
    return Grade(gold is not None and stated.value == gold, stated.value or stated.text)


def _contradict(one: Answer, other: Answer) -> bool:
    return one.value is not None and other.value is not None and one.value != other.value


def _read(parse: Parser, text: str) -> Answer:
    return Answer(_strip_notation(text[:MAX_STATEMENT]), parse(text))


def _last_statement(parse: Parser, response: str) -> Answer | None:
    """The last marked answer; `answer is` counts only where a number follows, as it begins prose too."""
    for match in reversed(deque(_MARKER.finditer(response), MAX_MARKERS)):
        rest = response[match.end() : match.end() + MAX_STATEMENT]
        for line in _lines_with_content(rest):
            if (box := _last_box(parse, line)) is not None:
                return box
            answer = _read(parse, _SENTENCE_END.split(line, maxsplit=1)[0])
            if answer.value is not None or match["strong"] or match["colon"] or match["hashes"]:
                return answer
            break
    return None


def _lines_with_content(rest: str) -> Iterator[str]:
    """The rest of the marker's line, and the next line with text, if there is a digit in one of them."""
    lines = [line for line in rest.split("\n") if line.strip(_AFTER)]
    return (line for line in lines[:2] if _DIGIT.search(line))


def _last_box(parse: Parser, response: str) -> Answer | None:
    boxes = deque(_BOX.finditer(response), 1)
    if not boxes:
        return None
    start, depth = boxes[-1].end(), 1
    for end in range(start, min(len(response), start + MAX_STATEMENT)):
        depth += (response[end] == "{") - (response[end] == "}")
        if depth == 0:
            return _read(parse, response[start:end])
    return None


def _strip_notation(text: str) -> str:
    """Take off what may stand around an answer without changing it, until nothing more comes off."""
    while True:
        before = text
        text = text.rstrip(_AFTER).lstrip(_AROUND)
        for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("\\$", "")):
            text = text.removeprefix(opening).removesuffix(closing)
        text = _WRAPPED.sub(lambda match: match["inside"], _REMARK.sub("", text))
        text = _PARENTHESES.sub(lambda match: match["inside"], text)
        if (equation := _EQUATION.match(text)) is not None:
            text = equation["right"]
        if text == before:
            return text
