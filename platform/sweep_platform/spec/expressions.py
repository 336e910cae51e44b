"""Conditions and constraints: a small, safe language over the dotted names of a trainer's config.

Comparisons, `and`, `or`, `not`, `in`, `+ - * / // %`, literals, lists and dotted names. The text is parsed with
Python's own parser and walked; nothing is ever called or looked up on an object.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_LENGTH = 500
"""Longer texts are refused: Python's parser recurses."""
GRAMMAR = "comparisons, and/or/not, in, + - * / // %, literals and dotted names"

_CONSTANTS: dict[str, Any] = {"null": None, "true": True, "false": False}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUAL: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class ExpressionError(ValueError):
    """A text that is not in the language, or values that its operators don't take."""


class _Unknown(Exception):
    """A null took part in an ordering or in arithmetic."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed text; `names` are the dotted names in it."""

    text: str
    names: frozenset[str]
    tree: ast.expr = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Parse `text`.

        Raises:
            ExpressionError: it is not in the language; the message says which part.
        """
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"an expression of at most {MAX_LENGTH} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise ExpressionError(f"an expression that parses ({error.args[0]}); {GRAMMAR}") from error
        names: set[str] = set()
        _check(tree, names)
        return cls(text, frozenset(names), tree)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value under `values` (dotted name -> value).

        None where the answer is unknown because a null is ordered or reckoned with, as in SQL.

        Raises:
            ExpressionError: the operators don't take these values, or a name is missing.
        """
        try:
            return _evaluate(self.tree, values)
        except _Unknown:
            return None
        except KeyError as error:
            raise ExpressionError(f"no value for {error.args[0]}") from error
        except (TypeError, ZeroDivisionError) as error:
            raise ExpressionError(str(error)) from error


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := _dotted(node.value)):
        return f"{head}.{node.attr}"
    return None


def _check(node: ast.expr, names: set[str]) -> None:
    """Refuse what is not in the language, and collect the names."""
    if (name := _dotted(node)) is not None:
        if name not in _CONSTANTS:
            names.add(name)
        return
    children: list[ast.expr]
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            children = []
        case ast.BoolOp(values=children) | ast.List(elts=children) | ast.Tuple(elts=children):
            pass
        case ast.Compare(left=left, ops=ops, comparators=rest):
            children = [left, *rest]
            for op, right in zip(ops, rest, strict=True):
                if isinstance(op, ast.In | ast.NotIn) and not isinstance(right, ast.List | ast.Tuple):
                    raise ExpressionError(f"a list after `in`, as in x in ['a', 'b'], not `{ast.unparse(right)}`")
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=operand):
            children = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            children = [left, right]
        case _:
            raise ExpressionError(f"{GRAMMAR}, not `{ast.unparse(node)}`")
    for child in children:
        _check(child, names)


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if (name := _dotted(node)) is not None:
        return _CONSTANTS[name] if name in _CONSTANTS else values[name]
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate(item, values) for item in items]
        case ast.BoolOp(op=op, values=items):
            every = isinstance(op, ast.And)
            return (all if every else any)(_evaluate(item, values) for item in items)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(op=op, operand=operand):
            value = _number(_evaluate(operand, values))
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(_evaluate(left, values)), _number(_evaluate(right, values)))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            return _compare([_evaluate(item, values) for item in (left, *rest)], ops)
    raise ExpressionError(f"{GRAMMAR}, not `{ast.unparse(node)}`")


def _compare(items: list[Any], ops: list[ast.cmpop]) -> bool:
    """Python's chained comparison: a < b <= c."""
    for left, op, right in zip(items, ops, items[1:], strict=False):
        if type(op) in _ORDER:
            if left is None or right is None:
                raise _Unknown
            holds = _ORDER[type(op)](left, right)
        else:
            holds = _EQUAL[type(op)](left, right)
        if not holds:
            return False
    return True


def _number(value: Any) -> int | float:
    """Arithmetic is for numbers: 'a' * 10**9 is nobody's wish."""
    if value is None:
        raise _Unknown
    if not isinstance(value, int | float):
        raise TypeError(f"arithmetic takes numbers, not {value!r}")
    return value
