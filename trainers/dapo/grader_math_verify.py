r"""Symbolic answers by the package math-verify: ``\sqrt{8}`` is ``2\sqrt2``.

Runs in a killable child only (`dapo.killable`): sympy computes for ever on a tower of powers. The package's own
time limit is off, because it is an alarm: that fails outside the main thread, and isn't heard in C code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dapo.graders import MAX_STATEMENT, Grade

MEMORY_GB = 4.0
"""Memory of a child in GiB: a tower of powers could take all of the machine's before its time is up."""


def make_math_verify() -> Callable[[str, str], Grade]:
    """Import the package, which takes a while, and return the grader."""
    from math_verify import parse, verify

    # One line for every response without a time limit of its own, or that can't be parsed.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def grade_math_verify(response: str, ground_truth: str) -> Grade:
        # The gold comes first: the package lets an answer be written in more ways than a gold.
        gold = parse(f"\\boxed{{{ground_truth}}}", parsing_timeout=None)
        found = parse(response, parsing_timeout=None)
        correct = bool(found) and bool(verify(gold, found, timeout_seconds=None, raise_on_error=True))
        return Grade(correct, str(found[0])[:MAX_STATEMENT] if found else "")

    return grade_math_verify
