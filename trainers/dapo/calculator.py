"""The calculator tool: exact arithmetic with bounds, so that no expression takes longer than a moment.

Whole numbers, fractions and decimals are exact; only roots and fractional powers round. Nothing is executed: the
expression is parsed, and a few kinds of node are computed here.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_BITS = 4096
"""Of a numerator or denominator: about 1,200 digits."""
MAX_EXPONENT = 300
"""Of ten, in a literal such as 1e300; and the most places that are rounded to."""
MAX_DECIMALS = 30
"""A fraction with more decimals than this is written as a fraction."""

Number = Fraction | float
"""Exact, or rounded."""

_ALLOWED = re.compile(r"[0-9A-Za-z+\-*/%(),. ]*")
_BROKEN_NUMBER = re.compile(r"[0-9.](?![eE][+-]?[0-9])[A-Za-z]")
"""Such as 1if or 0x1f, which Python's parser reads with a warning, or as something else."""
_SYNONYMS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", "\n": " ", "\t": " "})


class CalculatorError(Exception):
    """An expression without a value, with the reason in words for the policy."""


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression.

    It may have + - * / // % ** (or ^), parentheses, and the functions abs, ceil, floor, gcd, max, min, round, sqrt.

    Returns:
        An integer, a decimal, or a fraction with its approximate value.

    Raises:
        CalculatorError: it can't be read, has no real value, or one that is too large.
    """
    text = expression.translate(_SYNONYMS).strip()
    if len(text) > MAX_CHARACTERS:
        raise CalculatorError(f"the expression is longer than {MAX_CHARACTERS} characters")
    if not text or _ALLOWED.fullmatch(text) is None or _BROKEN_NUMBER.search(text):
        raise CalculatorError("the expression is no arithmetic")
    try:
        tree = ast.parse(text, mode="eval")
        return _written(_Evaluation(text).value(tree.body))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise CalculatorError("the expression can't be read") from error
    except ZeroDivisionError as error:
        raise CalculatorError("division by zero") from error
    except OverflowError as error:
        raise CalculatorError("a number is too large") from error


class _Evaluation:
    """Computes the nodes of one parsed expression."""

    def __init__(self, text: str) -> None:
        self.text = text

    def value(self, node: ast.expr) -> Number:
        """Return a node's value, within bounds."""
        if isinstance(node, ast.Constant):
            found: Number = _literal(ast.get_source_segment(self.text, node) or "")
        elif isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
            found = _SIGNS[type(node.op)] * self.value(node.operand)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            found = _power(self.value(node.left), self.value(node.right))
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            found = _OPERATORS[type(node.op)](self.value(node.left), self.value(node.right))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            found = _call(node.func.id, [self.value(argument) for argument in node.args])
        else:
            raise CalculatorError(f"{_name(node)} is not supported")
        return _bounded(found)


def _literal(text: str) -> Fraction:
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise OverflowError
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


def _bounded(number: Number) -> Number:
    """Return a number that is small enough to go on with; a float that was rounded from a whole one stays a float.

    Raises:
        OverflowError: it isn't.
    """
    if isinstance(number, Fraction):
        if max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
            raise OverflowError
        return number
    if not math.isfinite(number):
        raise OverflowError
    return number


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if exponent == 0 or base in (0, 1):
            return Fraction(1) if exponent == 0 else base ** int(exponent)
        bits = max(abs(base.numerator), base.denominator).bit_length() - 1
        # At least so many bits has the result; -1 has none, and its powers alternate.
        if abs(exponent) * bits > MAX_BITS:
            raise OverflowError
        return Fraction(base ** int(exponent % 2 if base == -1 else exponent))
    if float(base) < 0:
        raise CalculatorError("a fractional power of a negative number is not real")
    return float(float(base) ** float(exponent))


def _root(number: Number) -> Number:
    if number < 0:
        raise CalculatorError("the root of a negative number is not real")
    if isinstance(number, Fraction):
        over, under = math.isqrt(number.numerator), math.isqrt(number.denominator)
        if (over * over, under * under) == (number.numerator, number.denominator):
            return Fraction(over, under)
    return math.sqrt(number)


def _integers(numbers: tuple[Number, ...]) -> list[int]:
    if not all(isinstance(number, Fraction) and number.denominator == 1 for number in numbers):
        raise CalculatorError("gcd is of whole numbers")
    return [int(number) for number in numbers]


def _rounded(number: Number, places: Number = Fraction(0)) -> Number:
    whole = int(places)
    if places != whole or abs(whole) > MAX_EXPONENT:
        raise CalculatorError("round is to a whole number of places")
    return round(number, whole) if isinstance(number, float) else Fraction(round(number, whole))


_SIGNS: Mapping[type[ast.unaryop], int] = {ast.UAdd: 1, ast.USub: -1}
_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": lambda number: Fraction(math.ceil(number)),
    "floor": lambda number: Fraction(math.floor(number)),
    "gcd": lambda *numbers: Fraction(math.gcd(*_integers(numbers))),
    "max": max,
    "min": min,
    "round": _rounded,
    "sqrt": _root,
}


def _call(name: str, arguments: list[Number]) -> Number:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise CalculatorError(f"there is no function {name}; use one of {', '.join(_FUNCTIONS)}")
    try:
        # `max` of one number would take it for a list of numbers.
        return function(*arguments) if len(arguments) != 1 or name not in ("max", "min") else arguments[0]
    except TypeError as error:
        raise CalculatorError(f"{name} takes another number of arguments") from error


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return f"the name {node.id}"
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        return f"the operator {type(node.op).__name__}"
    return f"{type(node).__name__}"


def _written(number: Number) -> str:
    if isinstance(number, float):
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.12g}"
    if number.denominator == 1:
        return str(number.numerator)
    decimals = _decimals(number.denominator)
    if decimals is not None:
        digits = str(abs(number.numerator) * 10**decimals // number.denominator).rjust(decimals + 1, "0")
        return f"{'-' if number < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}"
    try:
        return f"{number} (about {float(number):.12g})"
    except OverflowError:
        return str(number)


def _decimals(denominator: int) -> int | None:
    """Places of a decimal with this denominator; None where it never ends, or not soon."""
    for places in range(MAX_DECIMALS + 1):
        if 10**places % denominator == 0:
            return places
    return None
