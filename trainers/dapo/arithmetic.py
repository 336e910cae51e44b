"""Generated data in AIME's format: integer answers 0-999, worked solutions, five levels, three disjoint splits.

A problem is a chain such as 47+5-8. Its split is decided by a hash of its canonical form (the signed terms,
sorted), so that no problem, nor a reordering of it, is ever in two splits, whatever the sizes and seeds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from dapo.batch import Fault, Problem
from dapo.errors import DataError

Split = Literal["train", "val", "heldout"]
SOURCES: dict[Split, str] = {"train": "arithmetic", "val": "arithmetic-aime", "heldout": "arithmetic-heldout"}
"""Data source of each split."""
LARGEST = 999
"""Answers and intermediate results lie in 0..LARGEST."""
TEMPLATES = ("Find {}.", "Compute {}.", "What is {}?", "Evaluate {}.")
"""Texts around a chain; a hash of the chain picks one."""
WORDS = ("Find ", "Compute ", "What ", "is ", "Evaluate ", "Answer: ", "; ")
"""Whole words of the task: one token each in the embedded model's tokenizer."""
_TRIES = 10_000
"""Draws in a row without a new problem, after which a split counts as exhausted."""


class Level(NamedTuple):
    """What the problems of one level are made of."""

    steps: int
    """Operations."""
    first: tuple[int, int]
    """Range of the first number."""
    others: tuple[int, int]
    """Range of each number after it."""


LEVELS = {
    1: Level(1, (10, 99), (1, 6)),
    2: Level(2, (10, 99), (1, 6)),
    3: Level(3, (10, 99), (1, 6)),
    4: Level(2, (101, 979), (1, 6)),
    5: Level(2, (10, 99), (5, 19)),
}
"""Easy to hard."""


class Step(NamedTuple):
    """One operation of a worked solution."""

    left: int
    operator: str
    right: int

    @property
    def result(self) -> int:
        """The right result."""
        return self.left + self.right if self.operator == "+" else self.left - self.right


@dataclass(frozen=True)
class Chain:
    """Numbers joined by + and -, worked from left to right."""

    numbers: tuple[int, ...]
    operators: str
    """One of + - between each two numbers."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The operations, each on the result of the one before."""
        steps, left = [], self.numbers[0]
        for operator, right in zip(self.operators, self.numbers[1:], strict=True):
            steps.append(Step(left, operator, right))
            left = steps[-1].result
        return tuple(steps)

    @property
    def answer(self) -> int:
        """The value of the chain."""
        return self.steps[-1].result

    @property
    def text(self) -> str:
        """The chain as written, such as 47+5-8."""
        rest = zip(self.operators, self.numbers[1:], strict=True)
        return str(self.numbers[0]) + "".join(f"{operator}{number}" for operator, number in rest)

    @cached_property
    def canonical(self) -> str:
        """The same for every order of the same signed terms."""
        rest = zip(self.operators, self.numbers[1:], strict=True)
        return "".join(sorted([f"+{self.numbers[0]}", *(f"{operator}{number}" for operator, number in rest)]))

    @cached_property
    def digest(self) -> int:
        """Hash of the canonical form."""
        return int.from_bytes(hashlib.sha256(self.canonical.encode()).digest()[:8], "big")

    @property
    def split(self) -> Split:
        """Where this problem belongs: 80 % train, 10 % val, 10 % heldout."""
        share = self.digest % 10
        return "train" if share < 8 else "val" if share == 8 else "heldout"

    @property
    def question(self) -> str:
        """The problem's text."""
        return TEMPLATES[self.digest // 10 % len(TEMPLATES)].format(self.text)


def solution(chain: Chain) -> str:
    """Return the worked solution, one equation per operation, ending in `Answer: N`."""
    return worked((step, step.result) for step in chain.steps)


def worked(steps: Iterable[tuple[Step, int]]) -> str:
    """Write operations with their results, as a solution does; the last result is the answer."""
    lines = [(f"{left}{operator}{right}={result}; ", result) for (left, operator, right), result in steps]
    return "".join(text for text, _ in lines) + f"Answer: {lines[-1][1]}"


def draw(level: int, split: Split, rng: random.Random) -> Chain:
    """Draw a chain of `level` that belongs to `split`, every result in 0..LARGEST."""
    shape = LEVELS[level]
    while True:
        operators = "".join(rng.choice("+-") for _ in range(shape.steps))
        numbers = [rng.randint(*shape.first), *(rng.randint(*shape.others) for _ in range(shape.steps))]
        chain = Chain(tuple(numbers), operators)
        if chain.split == split and all(0 <= step.result <= LARGEST for step in chain.steps):
            return chain


def problems(split: Split, size: int, seed: int) -> list[Problem]:
    """Return `size` distinct problems of a split, the levels in turn.

    `extra` holds the `level` (1-5) and the worked `solution`.

    Raises:
        DataError: the split has no `size` distinct problems.
    """
    rng = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    found: list[Problem] = []
    for index in range(size):
        level = 1 + index % len(LEVELS)
        for _ in range(_TRIES):
            chain = draw(level, split, rng)
            if chain.canonical not in seen:
                break
        else:
            need = f"at most {index}, all that level {level} has"
            raise DataError(Fault(SOURCES[split], f"size {size}", need, "lower the size"))
        seen.add(chain.canonical)
        extra = {"level": level, "solution": solution(chain)}
        found.append(Problem(chain.canonical, SOURCES[split], chain.question, str(chain.answer), extra))
    return found
