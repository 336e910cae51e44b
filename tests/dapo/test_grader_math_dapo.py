import random
from functools import cache

import pytest
from dapo.grader_math_dapo import grade_math_dapo, normalize
from dapo.grading import gradable
from hypothesis import given, settings
from hypothesis import strategies as st

CASES = {
    "bold": ("**Answer:** 42", "42", False),
    "trailing period": ("Answer: 42.", "42", False),
    "float": ("Answer: 42.0", "42", False),
    "a box far from the end": (
        "We get \\boxed{42}. " + "Let me check it once more. " * 4,
        "42",
        False,
    ),
    "a box near the end": ("so \\boxed{42}", "42", True),
    "a box with spaces": ("Thus \\boxed{ 42 }", "42", False),
    "0.5": ("Answer: 0.5", "1/2", False),
    "shorthand": ("Answer: \\frac34", "\\frac{3}{4}", True),
    "percent": ("Answer: 50%", "50", False),
    "money": ("Answer: \\$5", "5", True),
    "a word in between": ("The Answer: is below\n42", "42", False),
    "modulus": ("Answer: 42 (mod 1000)", "42", False),
    "a long tail": ("Answer: 42\n" + "The end of the proof. " * 20, "42", False),
    "left right": ("Answer: \\left(\\frac{1}{2}\\right)", "(\\frac{1}{2})", False),
    "double dollar": ("Answer: $$42$$", "42", False),
    "a space inside": ("Answer: 4 2", "42", True),
    "a unit inside": ("Answer: 4km2", "42", True),
    "quotes": ('Answer: "42"', "42", True),
    "another box": ("\\boxed{41}\nAnswer: 42", "42", True),
    "thousands in a box": ("so \\boxed{1,000}", "1000", False),
    "an equation in a box": ("Answer: \\boxed{x=42}", "42", False),
    "an unclosed box": ("\\boxed{42", "42", False),
    "nothing": ("", "42", False),
}


@cache
def verl_math_dapo():
    """Import verl's, which takes seconds."""
    from verl.utils.reward_score import math_dapo

    return math_dapo


@pytest.mark.parametrize(("response", "gold", "correct"), [pytest.param(*c, id=n) for n, c in CASES.items()])
def test_verdicts_are_verls_even_where_they_are_wrong(response: str, gold: str, correct: bool) -> None:
    assert grade_math_dapo(response, gold).correct is correct
    assert bool(verl_math_dapo().compute_score(response, gold)["acc"]) is correct


PIECES = [
    *("Answer:", "answer :", "\\boxed{", "}", "$", "$$", "\\$", " ", "\n", "=", "x=", "42", "4 2", "1,000", "{,}", "%"),
    *("\\frac34", "\\frac{3}{4}", "\\sqrt2", "\\text{", "\\text{m}", "\\text{and}", "\\textbf{", "\\overline{", "km"),
    *("square", "units", "degrees", "^\\circ", "\\;", ",\\!", '"', "an ", "a ", ".", ".$", "mbox", "\\ ", "[INVALID]"),
]


def assert_parity(response: str, gold: str) -> None:
    theirs = verl_math_dapo().compute_score(response, gold)
    ours = grade_math_dapo(response, gold)
    assert ours.correct == theirs["acc"]
    assert ours.answer == ("" if theirs["pred"] == "[INVALID]" else theirs["pred"])


def test_verdicts_and_answers_are_verls_on_random_texts() -> None:
    rng = random.Random(0)
    for _ in range(4000):
        response = "".join(rng.choices(PIECES, k=rng.randrange(30)))
        gold = "".join(rng.choices(PIECES, k=rng.randrange(1, 5)))
        assert_parity(response, gold)
        assert_parity(f"{response}\nAnswer: {gold}", gold)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400), st.text(max_size=20))
def test_verdicts_are_verls_on_any_text(response: str, gold: str) -> None:
    assert_parity(response, gold)


def test_a_response_without_an_answer_can_not_be_right() -> None:
    """verl calls it right where the gold is its own placeholder, or what normalises to nothing."""
    assert verl_math_dapo().compute_score("no idea", "[INVALID]")["acc"]
    for gold in ("[INVALID]", "", "$$", " ", "units", "[INVALID] units"):
        assert not gradable("math_dapo", gold)
    assert gradable("math_dapo", "42")


def test_normalising_takes_off_unit_equation_and_commas() -> None:
    assert normalize("x = 1,234\\text{ km}") == "1234"
