"""Problems from the generated and the public sets, from .jsonl and from .parquet in verl's schema, and their order.

Rows with the same problem text are one problem: a training set keeps one of them, so that DAPO's 17k set, in
which each stands about 100 times, is one epoch of 17k; a validation set in which each problem stands r times
(DAPO's AIME 2024: 30 x 32) is evaluated with r times the samples, which is what its rows mean.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dapo.arithmetic import Split, problems
from dapo.batch import Fault, Identity, Problem
from dapo.config import Config
from dapo.data_files import SUFFIXES, read_rows
from dapo.errors import DataError
from dapo.framing import Framing
from dapo.public_data import OWNERS, data_path
from dapo.reward import gradable
from dapo.tool_calls import signatures_of

if TYPE_CHECKING:
    from dapo.tokenizer import Tokenizer

GENERATED: dict[str, tuple[Split, int]] = {
    "arithmetic": ("train", 4096),
    "arithmetic-aime": ("val", 256),
    "arithmetic-heldout": ("heldout", 256),
}
"""Name of each generated set: its split, and its size unless `val_size` says otherwise."""
GENERATED_SEED = 0
"""The generated sets are data: the run's seed orders them, and never changes what is in them."""
MAX_NAMED = 10
"""Problems that are named when some are left out."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Distinct problems, and what was left out to get there."""

    problems: tuple[Problem, ...]
    repeats: int = 1
    """How often each problem stands in the file, when that is the same for all; else 1."""
    duplicates: int = 0
    """Rows that repeat an earlier one."""
    ungradable: tuple[str, ...] = ()
    """Ids of problems whose gold answer the grader can't read."""

    @property
    def copies(self) -> float:
        """Rows of the file for each problem that is used."""
        return 1.0 + self.duplicates / len(self.problems)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Problems with their tokens, ready to generate from."""

    problems: tuple[Problem, ...]
    tokens: tuple[list[int], ...]
    """[P] tokens of each templated prompt."""
    too_long: int = 0
    """Problems left out for their length."""
    offering: tuple[list[int], ...] = ()
    """[P] tokens of each prompt that offers tools, where any does."""
    copies: float = 1.0
    """Rows of the file for each problem."""

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self.problems)

    @property
    def digest(self) -> str:
        """SHA-256 of the problems in their order: a run that resumes must find the same ones."""
        total = hashlib.sha256()
        for problem in self.problems:
            told = "".join(f"\n{role}: {text}" for role, text in problem.messages)
            total.update(hashlib.sha256(f"{problem.problem}{told}".encode()).digest())
        return total.hexdigest()

    def prompt(self, index: int, *, tools: bool = False) -> list[int]:
        """Return the tokens of a prompt, with or without the offer of tools."""
        return self.offering[index] if tools else self.tokens[index]

    def draw(self, position: int, count: int, seed: int) -> list[int]:
        """Return the indices of the `count` prompts that follow the first `position` ones ever drawn.

        Each epoch is another permutation, made from `seed` and the epoch's number; a round may span two
        epochs. The position alone says where a run is, mid-epoch too, so a resumed run draws what it would
        have drawn.
        """
        size, indices, order, epoch = len(self), [], [], -1
        for place in range(position, position + count):
            if place // size != epoch:
                epoch = place // size
                order = list(range(size))
                random.Random(f"data order {seed} {epoch}").shuffle(order)
            indices.append(order[place % size])
        return indices


def load_dataset(source: str, grader: str, size: int | None = None) -> Dataset:
    """Read a set by name or path, drop repeated and ungradable problems, and count them.

    Args:
        source: `arithmetic`, `arithmetic-aime`, `arithmetic-heldout`, a fetched set such as `dapo-math-17k`, or a
            .jsonl or .parquet file.
        grader: the reward's grader, which must be able to read the gold answers.
        size: the first `size` problems only; None takes all.

    Raises:
        DataError: the set isn't fetched, or the file can't be read, has faulty rows (up to ten are told) or no
            usable ones.
    """
    if source in GENERATED:
        split, default = GENERATED[source]
        return Dataset(tuple(problems(split, size or default, GENERATED_SEED)))
    path = data_path(source)
    if Path(path).suffix not in SUFFIXES:
        names = ", ".join([*GENERATED, *OWNERS])
        raise DataError(Fault(source, "no such set", f"{names}, a .jsonl or a .parquet file", "name one of these"))
    found: dict[Identity, Problem] = {}
    counts: Counter[Identity] = Counter()
    for row in read_rows(path):
        first = found.setdefault(row.problem.identity, row.problem)
        counts[row.problem.identity] += 1
        if first.ground_truth != row.problem.ground_truth:
            logger.warning(
                "%s:%d: same problem as %s with the answer %r instead of %r; the first is kept",
                source,
                row.number,
                first.problem_id,
                row.problem.ground_truth,
                first.ground_truth,
            )
    usable = [problem for problem in found.values() if gradable(grader, problem.ground_truth)]
    ungradable = tuple(item.problem_id for item in found.values() if not gradable(grader, item.ground_truth))
    if not usable:
        example = f" (as in {ungradable[0]})" if ungradable else ""
        got = f"{counts.total()} rows and none with an answer that the grader {grader!r} can read{example}"
        raise DataError(Fault(source, got, "at least one", "set reward.grader to one that can, or name another file"))
    repeats = set(counts.values())
    return Dataset(
        tuple(usable[:size]),
        repeats=repeats.pop() if len(repeats) == 1 else 1,
        duplicates=counts.total() - len(counts),
        ungradable=ungradable,
    )


def announce(source: str, dataset: Dataset, grader: str) -> None:
    """Log what was left out of a data set."""
    if dataset.repeats > 1:
        logger.info("%s: each of the %d problems stands %d times", source, len(dataset.problems), dataset.repeats)
    elif dataset.duplicates:
        logger.warning("%s: %d rows repeat an earlier problem and are left out", source, dataset.duplicates)
    if dataset.ungradable:
        logger.warning(
            "%s: %d problems are left out, since the grader %r can't read their answers: %s%s",
            source,
            len(dataset.ungradable),
            grader,
            ", ".join(dataset.ungradable[:MAX_NAMED]),
            ", …" if len(dataset.ungradable) > MAX_NAMED else "",
        )


def tokenize(dataset: Dataset, tokenizer: Tokenizer, config: Config, key: str) -> Prompts:
    """Turn problems into prompts, and check their lengths.

    Args:
        dataset: what to tokenize.
        tokenizer: the policy's.
        config: for `prompt_template`, `max_prompt_length`, `filter_overlong_prompts` and the tools.
        key: the config key that named the data, for messages.

    Raises:
        DataError: a prompt is longer than `max_prompt_length` and `filter_overlong_prompts` is off, or none
            is left; or a prompt can't be rendered.
        ModelError: the chat template fails.
    """
    limit = config.data.max_prompt_length
    tokens = prompt_tokens(dataset, tokenizer, config, tools=False)
    offering = prompt_tokens(dataset, tokenizer, config, tools=True) if config.rollout.multi_turn.enable else []
    fitting = [index for index, ids in enumerate(offering or tokens) if 0 < len(ids) <= limit]
    left_out = len(tokens) - len(fitting)
    if left_out and (not config.data.filter_overlong_prompts or not fitting):
        lengths = list(map(len, offering or tokens))
        longest = lengths.index(max(lengths))
        problem = dataset.problems[longest].problem_id
        need = f"{lengths[longest]} for problem {problem} of {key} ({left_out} of {len(tokens)} are longer)"
        do = "raise it, or set data.filter_overlong_prompts"
        raise DataError(Fault("data.max_prompt_length", str(limit), need, do))
    if left_out:
        logger.warning(
            "%s: %d of %d prompts are longer than %d tokens and are left out",
            key,
            left_out,
            len(tokens),
            limit,
        )
    return Prompts(
        tuple(dataset.problems[index] for index in fitting),
        tuple(tokens[index] for index in fitting),
        left_out,
        tuple(offering[index] for index in fitting if offering),
        dataset.copies,
    )


def prompt_tokens(dataset: Dataset, tokenizer: Tokenizer, config: Config, *, tools: bool) -> list[list[int]]:
    """Return the tokens of every prompt, with the offer of tools or without.

    Raises:
        DataError: a prompt can't be rendered.
        ModelError: the chat template fails.
    """
    framing = Framing(tokenizer, config.data.prompt_template, signatures_of(config.rollout.multi_turn))
    return framing.encode([framing.prompt(problem, tools=tools) for problem in dataset.problems])
