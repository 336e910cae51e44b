"""Problems from the generated sets, from .jsonl and from .parquet in verl's schema, and their order.

A row is named `path:line` (counted from 1; in a parquet file, the row). Rows with the same problem text are
one problem: a training set keeps one of them, so that DAPO's 17k set, in which each stands about 100 times,
is one epoch of 17k; a validation set in which each problem stands r times (DAPO's AIME 2024: 30 x 32) is
evaluated with r times the samples, which is what its rows mean.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.arithmetic import Split, problems
from dapo.batch import Problem
from dapo.config import Config
from dapo.errors import DataError
from dapo.reward import gradable

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
MAX_FAULTS = 10
"""Faults of one file that are told."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file, as read."""

    number: int
    """Counted from 1."""
    problem: Problem


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


@dataclass(frozen=True, slots=True)
class Prompts:
    """Problems with their tokens, ready to generate from."""

    problems: tuple[Problem, ...]
    tokens: tuple[list[int], ...]
    """[P] tokens of each templated prompt."""
    too_long: int = 0
    """Problems left out for their length."""

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self.problems)

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
        source: `arithmetic`, `arithmetic-aime`, `arithmetic-heldout`, or a .jsonl or .parquet file.
        grader: the reward's grader, which must be able to read the gold answers.
        size: the first `size` problems only; None takes all.

    Raises:
        DataError: the file can't be read, has faulty rows (up to ten are told) or no usable ones.
    """
    if source in GENERATED:
        split, default = GENERATED[source]
        return Dataset(tuple(problems(split, size or default, GENERATED_SEED)))
    found: dict[str, Problem] = {}
    counts: dict[str, int] = {}
    for row in read_rows(source):
        key = row.problem.problem
        if key in found and found[key].ground_truth != row.problem.ground_truth and counts[key] == 1:
            logger.warning(
                "%s:%d: same problem as %s with another answer (%r, first %r); the first is kept",
                source,
                row.number,
                found[key].problem_id,
                row.problem.ground_truth,
                found[key].ground_truth,
            )
        found.setdefault(key, row.problem)
        counts[key] = counts.get(key, 0) + 1
    usable = [problem for problem in found.values() if gradable(grader, problem.ground_truth)]
    ungradable = tuple(
        problem.problem_id for problem in found.values() if not gradable(grader, problem.ground_truth)
    )
    if not usable:
        rows = sum(counts.values())
        raise DataError(
            f"{source}: got {rows} rows and none with an answer that the grader {grader!r} can read"
            f"{f' (as in {ungradable[0]})' if ungradable else ''}; need at least one; change grader or file"
        )
    repeats = set(counts.values())
    return Dataset(
        tuple(usable[:size]),
        repeats=repeats.pop() if len(repeats) == 1 else 1,
        duplicates=sum(counts.values()) - len(counts),
        ungradable=ungradable,
    )


def announce(source: str, dataset: Dataset, grader: str) -> None:
    """Log what was left out of a data set."""
    if dataset.repeats > 1:
        logger.info(
            "%s: each of the %d problems stands %d times", source, len(dataset.problems), dataset.repeats
        )
    elif dataset.duplicates:
        logger.warning("%s: %d rows repeat an earlier problem and are left out", source, dataset.duplicates)
    if dataset.ungradable:
        logger.warning(
            "%s: %d problems are left out, since the grader %r can't read their answers: %s%s",
            source,
            len(dataset.ungradable),
            grader,
            ", ".join(dataset.ungradable[:MAX_FAULTS]),
            ", …" if len(dataset.ungradable) > MAX_FAULTS else "",
        )


def tokenize(dataset: Dataset, tokenizer: Tokenizer, config: Config, key: str) -> Prompts:
    """Turn problems into prompts, and check their lengths.

    Args:
        dataset: what to tokenize.
        tokenizer: the policy's.
        config: for `prompt_template`, `max_prompt_length` and `filter_overlong_prompts`.
        key: the config key that named the data, for messages.

    Raises:
        DataError: a prompt is longer than `max_prompt_length` and `filter_overlong_prompts` is off, or none
            is left.
    """
    limit = config.data.max_prompt_length
    texts = [tokenizer.prompt(problem.problem, config.data.prompt_template) for problem in dataset.problems]
    tokens = tokenizer.encode_batch(texts)
    fitting = [index for index, ids in enumerate(tokens) if 0 < len(ids) <= limit]
    left_out = len(tokens) - len(fitting)
    if left_out and (not config.data.filter_overlong_prompts or not fitting):
        longest = max(range(len(tokens)), key=lambda index: len(tokens[index]))
        raise DataError(
            f"data.max_prompt_length: got {limit}; need {len(tokens[longest])} for problem "
            f"{dataset.problems[longest].problem_id} of {key} ({left_out} of {len(tokens)} are longer); "
            "raise it, or set data.filter_overlong_prompts"
        )
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
    )


def read_rows(source: str) -> Iterator[Row]:
    """Yield the rows of a .jsonl or .parquet file.

    Raises:
        DataError: at the end of the file, with up to ten of its faults; or at once if it can't be read at
            all.
    """
    path = Path(source)
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(
            f"{source}: got no such set; need one of {sorted(GENERATED)}, a .jsonl or a .parquet file; fix it"
        )
    if not path.is_file():
        raise DataError(
            f"{source}: got {'a folder' if path.is_dir() else 'no file'}; need a file; correct the path"
        )
    faults: list[str] = []
    seen: dict[str, str] = {}
    count = 0
    for number, content in _jsonl_objects(path) if path.suffix == ".jsonl" else _parquet_objects(path):
        count += 1
        row = content if isinstance(content, str) else _parse(content, path.stem, number)
        if isinstance(row, Problem) and seen.setdefault(row.problem_id, row.problem) != row.problem:
            row = f"id: got {row.problem_id!r} again with another problem; need unique ids; rename it"
        if isinstance(row, Problem):
            yield Row(number, row)
        elif len(faults) < MAX_FAULTS:
            faults.append(f"{source}:{number}: {row}")
    if faults:
        raise DataError("\n".join(faults))
    if count == 0:
        raise DataError(f"{source}: got an empty file; need at least one row; check how it was made")


def _jsonl_objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line, object), or (line, fault) for a line that is no JSON."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield number, f"got no JSON ({error}); need one object a line; fix the line"
                    continue
                yield (
                    number,
                    content
                    if isinstance(content, dict)
                    else f"got {content!r:.60}; need an object; fix the line",
                )
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: got a file that can't be read ({error}); need UTF-8 text; check it"
        ) from error


def _parquet_objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (row, columns as a dict), a record batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for content in batch.to_pylist():
                    number += 1
                    yield number, content
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: got a file that can't be read ({error}); need parquet; check it") from error


def _parse(content: Mapping[str, Any], default_source: str, number: int) -> Problem | str:
    """Read either schema: `problem` and `answer`, or verl's `prompt` and `reward_model.ground_truth`."""
    verl = "reward_model" in content
    extra = content.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    if verl:
        model = content["reward_model"]
        text = _prompt_text(content.get("prompt"))
        answer = model.get("ground_truth") if isinstance(model, Mapping) else None
        names = ("prompt", "reward_model.ground_truth")
        identity = extra.get("index")
    else:
        text, answer, names = content.get("problem"), content.get("answer"), ("problem", "answer")
        identity = content.get("id")
    columns = f"the row has {sorted(map(str, content))}"
    if not isinstance(text, str) or not text.strip():
        return f"{names[0]}: got {text!r:.60}; need a text; add it ({columns})"
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        return f"{names[1]}: got {answer!r:.60}; need a text or a number; add it ({columns})"
    return Problem(
        problem_id=str(identity) if identity not in (None, "") else str(number),
        data_source=str(content.get("data_source") or default_source),
        problem=text,
        ground_truth=str(answer).strip(),
        extra=extra,
    )


def _prompt_text(prompt: object) -> object:
    """Join the contents of a list of messages; anything else is returned as it is."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        return prompt
    contents = [message.get("content") for message in prompt if isinstance(message, Mapping)]
    return "\n\n".join(map(str, contents)) if contents and all(contents) else None
