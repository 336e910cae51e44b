"""The domains of searched parameters: a list of choices, a range of floats, a range of integers.

Each maps the unit interval and, where finite, the integers 0..size-1 onto its values, and gives every value
one canonical form, so that equal candidates have equal hashes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

Scalar = bool | int | float | str | None
DIGITS = 12
"""Significant digits of a canonical float: enough for any knob, and the same on every machine."""


def tidy(value: float) -> float:
    """Round to the canonical number of significant digits."""
    return float(f"{value:.{DIGITS}g}")


class _Domain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    when: str | None = None
    """Condition on other parameters; where it doesn't hold the base value stands."""


class Choice(_Domain):
    """One of a list of values."""

    kind: ClassVar[str] = "choice"

    choice: tuple[Annotated[Any, Field()], ...] = Field(min_length=1)
    """The values; strings, numbers, true/false or null, all different."""

    @model_validator(mode="after")
    def _distinct_scalars(self) -> Self:
        for value in self.choice:
            if not isinstance(value, bool | int | float | str | None):
                raise ValueError(f"need strings, numbers, true, false or null, not {value!r}; name each value")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"need finite numbers, not {value!r}; take it out")
        if len(set(self.choice)) < len(self.choice):
            raise ValueError("need values that all differ (1, 1.0 and true are equal); take the double out")
        return self

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.choice)

    def nth(self, index: int) -> Scalar:
        """The value at `index`."""
        value: Scalar = self.choice[index]
        return value

    def at(self, u: float) -> Scalar:
        """The value at `u` in [0, 1)."""
        return self.nth(min(int(u * self.size), self.size - 1))

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the choices; true is not 1."""
        return any(item == value and isinstance(item, bool) == isinstance(value, bool) for item in self.choice)

    def canonical(self, value: Any) -> Scalar:
        """The choice that equals `value`."""
        return self.nth(self.choice.index(value))

    def samples(self) -> tuple[Any, ...]:
        """Values that stand for the domain when a field's type is checked: all of them."""
        return self.choice

    def __str__(self) -> str:
        return f"one of {list(self.choice)}"


class FloatRange(_Domain):
    """A range of numbers, both ends included."""

    kind: ClassVar[str] = "float"

    bounds: tuple[float, float] = Field(alias="float")
    """Lowest and highest value."""
    log: bool = False
    """Spread evenly in the logarithm."""
    step: float | None = Field(default=None, gt=0)
    """Distance between values; null is continuous."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_range(self.bounds, self.log, self.step)
        if self.log and self.step is not None:
            raise ValueError("need log or step, not both; take one out")
        return self

    @property
    def size(self) -> int | None:
        """Number of values; None when continuous."""
        low, high = self.bounds
        if low == high:
            return 1
        return None if self.step is None else int((high - low) / self.step + 1e-9) + 1

    @property
    def top(self) -> float:
        """The highest value that a step reaches."""
        return self.bounds[1] if self.step is None else tidy(self.bounds[0] + ((self.size or 1) - 1) * self.step)

    def nth(self, index: int) -> float:
        """The value `index` steps above the lowest."""
        return tidy(self.bounds[0] + index * (self.step or 0.0))

    def at(self, u: float) -> float:
        """The value at `u` in [0, 1)."""
        if self.size is not None:
            return self.nth(min(int(u * self.size), self.size - 1))
        low, high = self.bounds
        if self.log:
            return self.canonical(math.exp(math.log(low) + u * (math.log(high) - math.log(low))))
        return self.canonical(low + u * (high - low))

    def contains(self, value: Any) -> bool:
        """Whether `value` is a number in the range, on a step where there is one."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        on_step = self.step is None or math.isclose(self.canonical(value), value, rel_tol=1e-9, abs_tol=1e-12)
        return self.bounds[0] <= value <= self.bounds[1] and on_step

    def canonical(self, value: Any) -> float:
        """`value` on its step, rounded, inside the bounds."""
        if self.step is not None:
            value = self.nth(round((value - self.bounds[0]) / self.step))
        return min(max(tidy(value), self.bounds[0]), self.bounds[1])

    def samples(self) -> tuple[Any, ...]:
        """Values that stand for the domain when a field's type is checked."""
        return self.bounds

    def __str__(self) -> str:
        step = "" if self.step is None else f" in steps of {self.step:g}"
        return f"a number from {self.bounds[0]:g} to {self.bounds[1]:g}{step}"


class IntRange(_Domain):
    """A range of integers, both ends included."""

    kind: ClassVar[str] = "int"

    bounds: tuple[int, int] = Field(alias="int")
    """Lowest and highest value."""
    log: bool = False
    """Spread evenly in the logarithm."""
    step: int = Field(default=1, ge=1)
    """Distance between values."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_range(self.bounds, self.log, self.step)
        if self.log and self.step != 1:
            raise ValueError("need log or step, not both; take one out")
        return self

    @property
    def size(self) -> int:
        """Number of values."""
        return (self.bounds[1] - self.bounds[0]) // self.step + 1

    @property
    def top(self) -> int:
        """The highest value that a step reaches."""
        return self.nth(self.size - 1)

    def nth(self, index: int) -> int:
        """The value `index` steps above the lowest."""
        return self.bounds[0] + index * self.step

    def at(self, u: float) -> int:
        """The value at `u` in [0, 1)."""
        if not self.log:
            return self.nth(min(int(u * self.size), self.size - 1))
        low, high = math.log(self.bounds[0] - 0.5), math.log(self.bounds[1] + 0.5)
        return min(max(round(math.exp(low + u * (high - low))), self.bounds[0]), self.bounds[1])

    def contains(self, value: Any) -> bool:
        """Whether `value` is an integer of the range."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            return False
        return self.bounds[0] <= value <= self.bounds[1] and (value - self.bounds[0]) % self.step == 0

    def canonical(self, value: Any) -> int:
        """`value` as an int."""
        return int(value)

    def samples(self) -> tuple[Any, ...]:
        """Values that stand for the domain when a field's type is checked."""
        return self.bounds

    def __str__(self) -> str:
        step = "" if self.step == 1 else f" in steps of {self.step}"
        return f"an integer from {self.bounds[0]} to {self.bounds[1]}{step}"


def _check_range(bounds: tuple[float, float], log: bool, step: float | None) -> None:
    low, high = bounds
    if low > high:
        raise ValueError(f"need the lower bound first; write [{high:g}, {low:g}]")
    if log and low <= 0:
        raise ValueError(f"need a lower bound above 0 with log, not {low:g}; raise it, or take log out")
    if step is not None and high > low and step > high - low:
        raise ValueError(f"need a step within the range, not {step:g}; make it smaller")


DOMAINS: Mapping[str, type[Choice] | type[FloatRange] | type[IntRange]] = {
    domain.kind: domain for domain in (Choice, FloatRange, IntRange)
}


def _kind(value: Any) -> str | None:
    """Which domain is meant: the one key that says so."""
    if isinstance(value, _Domain):
        return str(getattr(value, "kind", None))
    if not isinstance(value, Mapping):
        return None
    kinds = [kind for kind in DOMAINS if kind in value]
    return kinds[0] if len(kinds) == 1 else None


_ONE_OF = "need one of choice: [a, b], float: [low, high], int: [low, high]; write exactly one of them"

Domain = Annotated[
    Annotated[Choice, Tag("choice")] | Annotated[FloatRange, Tag("float")] | Annotated[IntRange, Tag("int")],
    Discriminator(
        _kind,
        custom_error_type="domain",
        custom_error_message=_ONE_OF,
    ),
]
