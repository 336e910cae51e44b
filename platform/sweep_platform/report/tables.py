"""A table of the report: text only, as the page escapes whatever stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head; the first cell of a row names it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    bars: tuple[float, ...] = ()
    """One share a row, 0 … 1, drawn as a bar; empty: none are."""


def pairs(rows: Sequence[tuple[str, str]]) -> Table:
    """A table without a head, of names and values; those without a value are left out."""
    return Table((), tuple((name, value) for name, value in rows if value))
