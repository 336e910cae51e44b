"""Conditions and constraints: a small, safe language over the dotted names of a trainer's config.

Comparisons, `and`, `or`, `not`, `in`, `+ - * / // %`, literals, lists and dotted names. The text is parsed
with Python's own parser and walked; nothing is ever called or looked up on an object.
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


def _member(item: Any, items: Any) -> bool:
    """`in` is for lists: 'a' in 'mean' is nobody's wish."""
    if not isinstance(items, list):
        raise TypeError(f"`in` takes a list, as in x in ['a', 'b'], not {items!r}")
    return item in items


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
    ast.In: _member,
    ast.NotIn: lambda a, b: not _member(a, b),
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


def _parts(node: ast.expr) -> list[ast.expr] | None:
    """The sub-expressions of a node; None if the node is not in the language."""
    parts: list[ast.expr] | None = None
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            parts = []
        case ast.BoolOp(values=items) | ast.List(elts=items) | ast.Tuple(elts=items):
            parts = items
        case ast.Compare(left=left, comparators=rest):
            parts = [left, *rest]
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=operand):
            parts = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            parts = [left, right]
    return parts


def _check(node: ast.expr, names: set[str]) -> None:
    """Refuse what is not in the language, and collect the names."""
    if (name := _dotted(node)) is not None:
        if name not in _CONSTANTS:
            names.add(name)
        return
    parts = _parts(node)
    if parts is None:
        raise ExpressionError(f"{GRAMMAR}, not `{ast.unparse(node)}`")
    for part in parts:
        _check(part, names)


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if (name := _dotted(node)) is not None:
        return _CONSTANTS[name] if name in _CONSTANTS else values[name]
    parts = _parts(node) or []
    if isinstance(node, ast.BoolOp):
        every = isinstance(node.op, ast.And)
        return (all if every else any)(_evaluate(part, values) for part in parts)
    return _combine(node, [_evaluate(part, values) for part in parts])


def _combine(node: ast.expr, parts: list[Any]) -> Any:
    """The value of a node from the values of its parts."""
    match node:
        case ast.Constant(value=value):
            result: Any = value
        case ast.UnaryOp(op=ast.Not()):
            result = not parts[0]
        case ast.UnaryOp(op=op):
            result = -_number(parts[0]) if isinstance(op, ast.USub) else _number(parts[0])
        case ast.BinOp(op=op):
            result = _ARITHMETIC[type(op)](_number(parts[0]), _number(parts[1]))
        case ast.Compare(ops=ops):
            result = _compare(parts, ops)
        case _:
            result = parts
    return result


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
