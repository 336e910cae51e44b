"""The calculator: right values, and no expression that takes long or raises anything else."""

import math
import time
from fractions import Fraction

import pytest
from dapo.calculator import MAX_BITS, CalculatorError, calculate
from hypothesis import given
from hypothesis import strategies as st

VALUES = {
    "1+1": "2",
    "2 + 3 * 4 - 5": "9",
    "(2+3)*4": "20",
    "-7 % 3": "2",
    "7 // 2": "3",
    "7 / 2": "3.5",
    "0.1 + 0.2": "0.3",
    "1/3": "1/3 (about 0.333333333333)",
    "-1/8": "-0.125",
    "-1/3 - 2/3": "-1",
    "2^10": "1024",
    "2**-2": "0.25",
    "2**3**2": "512",
    "-2**2": "-4",
    "4**0.5": "2",
    "(-1)**999999999999": "-1",
    "0**0": "1",
    "1e3": "1000",
    "2.5e-1": "0.25",
    "3 × 4 ÷ 6 − 1": "1",
    "sqrt(16/9)": "4/3 (about 1.33333333333)",
    "sqrt(2)": "1.41421356237",
    "abs(-3.5)": "3.5",
    "max(1, 5/2, 2)": "2.5",
    "max(3)": "3",
    "min(4, -1)": "-1",
    "floor(-7/2) + ceil(7/2)": "0",
    "round(2.675, 2)": "2.68",
    "round(7/2)": "4",
    "gcd(12, 18)": "6",
    "  7\n": "7",
}


@pytest.mark.parametrize("expression", VALUES)
def test_values(expression: str) -> None:
    assert calculate(expression) == VALUES[expression]


REFUSED = {
    "": "no arithmetic",
    "x = 1": "no arithmetic",
    "__import__('os')": "no arithmetic",
    "1_000": "no arithmetic",
    "0x1f": "no arithmetic",
    "1if 2else 3": "no arithmetic",
    "5 if 1 else 2": "IfExp is not supported",
    "a + 1": "the name a is not supported",
    "1, 2": "Tuple is not supported",
    "2(3)": "Call is not supported",
    "abs.real": "no arithmetic",
    "pow(2, 3)": "no function pow; use one of abs, ceil",
    "1 +": "can't be read",
    "(" * 100: "can't be read",
    "1 / 0": "division by zero",
    "0 ** -1": "division by zero",
    "1 % 0": "division by zero",
    "(-8) ** 0.5": "not real",
    "sqrt(-1)": "not real",
    "sqrt()": "number of arguments",
    "max()": "number of arguments",
    "gcd(1.5, 2)": "whole numbers",
    "round(1.5, 0.5)": "whole number of places",
    "round(1.5, 10**9)": "whole number of places",
    "1" * 201: "longer than 200",
    "9**9**9": "too large",
    "9**9**9**9": "too large",
    "(1/2)**99999": "too large",
    "1e999": "too large",
    "10**400 * sqrt(2)": "too large",
    f"2**{MAX_BITS}": "too large",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_has_no_value_is_told_at_once(expression: str) -> None:
    start = time.process_time()
    with pytest.raises(CalculatorError, match=REFUSED[expression]):
        calculate(expression)
    assert time.process_time() - start < 2.0


def test_a_product_of_large_numbers_stops_at_the_bound() -> None:
    assert len(calculate("2**4095")) == 1233
    with pytest.raises(CalculatorError, match="too large"):
        calculate("2**4095 * 2")


texts = st.text(max_size=220) | st.lists(
    st.sampled_from([*"0123456789.+-*/%^(), e", "**", "//", "sqrt(", "round(", "max(", "gcd(", "1e30", "9**9"])
).map("".join)


@given(texts)
def test_any_text_has_a_value_or_a_reason_and_soon(text: str) -> None:
    start = time.process_time()
    try:
        assert calculate(text)
    except CalculatorError as error:
        assert str(error)
    assert time.process_time() - start < 2.0


leaves = st.integers(0, 999).map(lambda n: (str(n), Fraction(n))) | st.decimals(0, 99, places=2).map(
    lambda d: (str(d), Fraction(d))
)


def joined(parts: tuple[tuple[str, Fraction], str, tuple[str, Fraction]]) -> tuple[str, Fraction]:
    (left, a), sign, (right, b) = parts
    if sign == "/" and b == 0:
        sign = "+"
    value = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[sign]()
    return f"({left} {sign} {right})", value


trees = st.recursive(
    leaves, lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(joined), max_leaves=8
).filter(lambda pair: len(pair[0]) <= 200)


@given(trees)
def test_arithmetic_is_exact(pair: tuple[str, Fraction]) -> None:
    text, value = pair
    assert Fraction(calculate(text).split(" ")[0]) == value


@given(st.floats(1e-200, 1e300))
def test_roots_are_those_of_floats(number: float) -> None:
    digits = f"{number:.9g}"
    assert float(Fraction(calculate(f"sqrt({digits})").split(" ")[0])) == pytest.approx(math.sqrt(float(digits)))
