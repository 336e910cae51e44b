import threading
from fractions import Fraction

import pytest
from dapo.graders import PARSERS, Grade, Parser, grade, parse_integer, parse_number
from growth import growth_exponent
from hypothesis import given
from hypothesis import strategies as st


def grade_integer(response: str, gold: str) -> Grade:
    return grade(parse_integer, response, gold)


RIGHT = {
    "plain": "Answer: 42",
    "bold markdown": "**Answer:** 42",
    "bold label only": "**Answer**: 42",
    "bold answer": "Answer: **42**",
    "trailing period": "Answer: 42.",
    "float .0": "Answer: 42.0",
    "leading zeros": "Answer: 042",
    "boxed far from the end": "We get \\boxed{42}. Let me double check the arithmetic once",
    "boxed with spaces": "Thus \\boxed{ 42 }",
    "boxed text": "\\boxed{\\text{42}}",
    "boxed equation": "Answer: \\boxed{x=42}",
    "boxed and stated alike": "\\boxed{42}\nAnswer: 42",
    "sum of unknowns": "Answer: m+n = 42",
    "sum of numbers": "Answer: 40 + 2 = 42",
    "product in a box": "\\boxed{6*(3+4)=42}",
    "answer on the next line": "The Answer: is below\n42",
    "modulus": "Answer: 42 (mod 1000)",
    "latex modulus": "Answer: $42 \\pmod{1000}$",
    "long tail": "Answer: 42\n" + "The end of the proof. " * 40,
    "double dollar": "Answer: $$42$$",
    "inline latex": "Answer: \\(42\\)",
    "money": "Answer: \\$42",
    "quotes": 'Answer: "42"',
    "degrees": "Answer: $42^\\circ$",
    "a sentence": "So the answer is $42$. I hope the final answer is correct.",
    "gsm8k": "6 * 7 = 42\n#### 42",
    "last statement": "Answer: 41\nNo.\nAnswer: 42",
    "last box": "\\boxed{41}, no: \\boxed{42}",
    "parentheses": "Answer: (42)",
    "latex parentheses": "Answer: $\\left( 42 \\right)$",
    "full-width colon": "Answer：42",
}
WRONG = {
    "percent": "Answer: 42%",
    "space inside": "Answer: 4 2",
    "unit inside": "Answer: 4km2",
    "box contradicts the statement": "\\boxed{41}\nAnswer: 42",
    "statement contradicts the box": "Answer: 41\nso \\boxed{42}",
    "statement that is no number": "\\boxed{42}\nAnswer: 4 2",
    "two answers": "Answer: 42 or 43",
    "list": "Answer: 42, 43",
    "list of solutions": "Answer: n = 42,43,44",
    "decimal": "Answer: 42.5",
    "bare decimal": "Answer: .42",
    "factorial": "Answer: 42!",
    "negative": "Answer: -42",
    "product": "Answer: 42(43)",
    "coefficient": "Answer: 2x=42",
    "two numbers": "Answer: 3 = 42",
    "product that is equal to more": "Answer: 6*7 = 42 = 43",
    "an earlier answer": "Answer: 42\nNo.\nAnswer: 41",
    "denied": "The answer is not 42",
    "never stated": "6 * 7 = 42",
    "unclosed box": "\\boxed{42",
    "empty": "",
}


@pytest.mark.parametrize("response", [pytest.param(text, id=name) for name, text in RIGHT.items()])
def test_right(response: str) -> None:
    assert grade_integer(response, "42") == (True, "42")


@pytest.mark.parametrize("response", [pytest.param(text, id=name) for name, text in WRONG.items()])
def test_wrong(response: str) -> None:
    assert not grade_integer(response, "42").correct


@pytest.mark.parametrize(
    ("response", "gold", "correct"),
    [
        pytest.param("Answer: 73", "073", True, id="gold as printed by the AIME"),
        pytest.param("so \\boxed{1,000}", "1000", True, id="boxed thousands"),
        pytest.param("Answer: 1{,}000", "1,000", True, id="latex thousands"),
        pytest.param("Answer: 1,00", "100", False, id="misplaced comma"),
        pytest.param("Answer: 50%", "50", False, id="percent"),
        pytest.param("Answer: \\$5", "5", True, id="money"),
        pytest.param("Answer: [INVALID]", "[INVALID]", False, id="the placeholder is never right"),
        pytest.param("Answer: 0.5", "0.5", False, id="no integer is no integer"),
        pytest.param("Answer: −3", "-3", True, id="unicode minus"),
        pytest.param("Answer: 0", "-0", True, id="zero has no sign"),
        pytest.param("Answer: " + "9" * 150, "9" * 150, True, id="longer than a machine word"),
    ],
)
def test_golds(response: str, gold: str, correct: bool) -> None:
    assert grade_integer(response, gold).correct is correct


@pytest.mark.parametrize(
    ("gold", "gradable"),
    [("42", True), ("007", True), ("2,000", True), ("3.0", True), ("1.25", False), ("1/2", False)],
)
def test_gradable_golds(gold: str, gradable: bool) -> None:
    assert (parse_integer(gold) is not None) is gradable


@pytest.mark.parametrize(
    ("response", "gold", "correct"),
    [
        ("Answer: 0.5", "1/2", True),
        ("Answer: \\frac34", "\\frac{3}{4}", True),
        ("Answer: \\left(\\frac{1}{2}\\right)", "(\\frac{1}{2})", True),
        ("\\boxed{\\dfrac{2}{4}}", "0.5", True),
        ("so $x = -\\tfrac12$: Answer: $-0.50$.", "-1/2", True),
        ("the answer is .125. I am sure.", "1/8", True),
        ("Answer: 1,250.5", "1250.5", True),
        ("Answer: 84/2", "42", True),
        ("Answer: 042", "42", True),
        ("\\boxed{0.5}\nAnswer: \\frac{1}{2}", "0.5", True),
        ("\\boxed{0.4}\nAnswer: 0.5", "0.5", False),
        ("Answer: 0.33", "1/3", False),
        ("Answer: 1/0", "1/0", False),
        ("Answer: 50%", "1/2", False),
        ("Answer: 1 1/2", "3/2", False),
        ("Answer: 0.5 0", "1/2", False),
        ("Answer: 1/2/3", "1/6", False),
        ("Answer: 1.2.3", "1.2", False),
        ("Answer: \\frac{x}{2}", "1/2", False),
        ("Answer: \\frac345", "3/45", False),
        ("Answer: 1\\frac12", "11/2", False),
        ("Answer: \\frac{-1}{2}", "-1/2", True),
    ],
)
def test_numbers(response: str, gold: str, correct: bool) -> None:
    assert grade(parse_number, response, gold).correct is correct


@pytest.mark.parametrize("parse", [pytest.param(parse, id=name) for name, parse in PARSERS.items()])
@pytest.mark.parametrize("response", [*RIGHT.values(), *WRONG.values()])
def test_graders_agree_on_integers(parse: Parser, response: str) -> None:
    assert grade(parse, response, "42").correct is (response in RIGHT.values())


FRAGMENTS = st.sampled_from(
    [
        "answer",
        "Answer:",
        "is",
        "####",
        "\\boxed{",
        "}",
        "{",
        "$",
        "\\",
        "(",
        ")",
        "mod",
        "4",
        "42",
        ",",
        ".",
        " ",
        "\n",
        "-",
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=60).map("".join), st.text(max_size=8))
def test_never_raises_and_is_only_right_on_a_number(response: str, gold: str) -> None:
    for parse in PARSERS.values():
        found = grade(parse, response, gold)
        if found.correct:
            assert found.answer == parse(gold)


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_read_back(value: Fraction) -> None:
    sign = "-" if value < 0 else ""
    for text in (str(value), f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"):
        assert grade(parse_number, f"Answer: ${text}$", str(value)) == (True, str(value))


@given(st.integers(-(10**12), 10**12))
def test_every_integer_is_read_back(value: int) -> None:
    for text in (f"Answer: {value}", f"\\boxed{{{value:,}}}", f"the answer is ${value}$."):
        assert grade_integer(text, str(value)) == (True, str(value))


@pytest.mark.parametrize(
    "unit",
    [
        "answer:",
        "answer is 1x ",
        "\\boxed{",
        "(",
        "Answer: 9",
        "{,}",
        "answer ",
        "\\text{",
        "(mod ",
        "####1",
        "\\frac{1}{",
        "1/",
        ".1",
        "\n",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """A quadratic pattern would take minutes on 200,000 characters."""

    def work(size: int) -> None:
        for parse in PARSERS.values():
            grade(parse, unit * (size // len(unit)), "1")

    assert growth_exponent(work, 25_000, 200_000) < 1.5


def test_works_off_the_main_thread() -> None:
    """Graders that set an alarm fail there, and public trainers scored every answer 0."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(grade_integer("Answer: 42", "42").correct))
    thread.start()
    thread.join()
    assert found == [True]
