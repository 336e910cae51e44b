r"""verl's grader `math_dapo`, verdict for verdict: for runs that must compare with published ones.

It compares strings: the last `Answer:` line, or else a ``\boxed{...}`` in the last 100 characters, of a
response's last 300. It calls ``4 2`` and ``4km2`` 42, and ``42.``, ``42.0`` and ``0.5`` (for 1/2) wrong; `number`
is right where it isn't. Its one dangerous verdict, that a response without an answer matches the gold
``[INVALID]``, can't occur: such golds are left out of the data (`gradable`).
Source: verl 0.9.1 `utils/reward_score/math_dapo.py`, after EleutherAI's lm-evaluation-harness; both Apache-2.0.
"""

from __future__ import annotations

import re

from dapo.graders import Grade

INVALID = "[INVALID]"
READ_CHARACTERS = 300
BOX_CHARACTERS = 100

_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_SUBSTITUTIONS = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_WORDS = (
    "square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents degrees cm gm "
    "pounds meters meals edges students childrentickets multiples \\text{s} \\text{.}"
).split()
_REMOVED = (
    *_WORDS,
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    '"',
    "\\dots",
)
_PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(.*?)(\$)(.*?)(\$)(.*)", "$\\3$"),
        (r"(\\text\{)(.*?)(\})", "\\2"),
        (r"(\\textbf\{)(.*?)(\})", "\\2"),
        (r"(\\overline\{)(.*?)(\})", "\\2"),
        (r"(\\boxed\{)(.*)(\})", "\\2"),
        (r"(frac)([^{])(.)", "frac{\\2}{\\3}"),
        (r"(sqrt)([^{])", "sqrt{\\2}"),
    )
)


def grade_math_dapo(response: str, ground_truth: str) -> Grade:
    """Grade one response as verl's `math_dapo` does. Never raises."""
    response = response[-READ_CHARACTERS:]
    stated = _ANSWER.findall(response)
    answer = normalize(stated[-1] if stated else INVALID)
    if answer == INVALID and (box := _last_box(response[-BOX_CHARACTERS:])) is not None:
        return Grade(box == ground_truth, box)
    return Grade(answer == normalize(ground_truth), "" if answer == INVALID else answer)


def readable(ground_truth: str) -> bool:
    """Whether only a response that states an answer can match this gold."""
    return normalize(ground_truth) not in ("", INVALID)


def normalize(answer: str) -> str:
    """Take off units, notation and spaces, as verl does."""
    answer = answer.rsplit("=", maxsplit=1)[-1]
    for before, after in _SUBSTITUTIONS:
        answer = answer.replace(before, after)
    for word in _REMOVED:
        answer = answer.replace(word, "")
    for pattern, replacement in _PATTERNS:
        answer = pattern.sub(replacement, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()


def _last_box(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if text[place] == "}" and depth == 0:
            return text[start + len("\\boxed{") : place]
    return None
