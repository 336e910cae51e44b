"""Rows of .jsonl files (`problem`, `answer`) and of .jsonl or .parquet files in verl's schema.

In either, a prompt may be a dialogue: a list of messages with `role` and `content`, as `prompt` or as `messages`.

A fault names its row as `path:row`, counted from 1 (in a .jsonl file, the line); all faults of a file are told
at once, up to `MAX_FAULTS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo.batch import Fault, Identity, Message, Problem
from dapo.errors import DataError

MAX_FAULTS = 10
"""Faults of one file that are told."""
SUFFIXES = (".jsonl", ".parquet")
ROLES = ("system", "user", "assistant")
_READ = frozenset({"id", "problem", "answer", "data_source", "prompt", "reward_model", "extra_info"})
"""Columns that have a place of their own in `Problem`."""


class RowFault(Exception):
    """A row that can't be used."""

    def __init__(self, column: str, got: str, need: str, do: str) -> None:
        super().__init__(column)
        self.fault = Fault(column, got, need, do)

    def at(self, place: str) -> Fault:
        """The fault with its row's place before the column."""
        return self.fault._replace(key=f"{place}: {self.fault.key}" if self.fault.key else place)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    number: int
    """Counted from 1."""
    problem: Problem


def read_rows(source: str) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        DataError: the file can't be read; or, after its last row, it was empty or had faulty rows.
    """
    path = Path(source)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no file"
        raise DataError(Fault(source, got, "a file", "name one that exists"))
    faults: list[Fault] = []
    known: dict[tuple[str, str], Identity] = {}
    count = 0
    for number, content in _json_lines(path) if path.suffix == ".jsonl" else _parquet_rows(path):
        count += 1
        try:
            columns = _json_object(content) if isinstance(content, str) else content
            problem = _parse(columns, path.stem, number)
            if known.setdefault((problem.data_source, problem.problem_id), problem.identity) != problem.identity:
                problem = _renamed(problem, columns, number)
        except RowFault as fault:
            faults.append(fault.at(f"{source}:{number}"))
            if len(faults) == MAX_FAULTS:
                break
        else:
            yield Row(number, problem)
    if faults:
        raise DataError(*faults)
    if count == 0:
        raise DataError(Fault(source, "an empty file", "at least one row", "check how it was made"))


def _json_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of the lines that are not blank."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin a file with a byte-order mark
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(Fault(str(path), f"no readable text ({error})", "UTF-8", "check it")) from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (row number, columns), with one record batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for columns in batch.to_pylist():
                    number += 1
                    yield number, columns
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(Fault(str(path), f"a file that can't be read ({error})", "parquet", "check it")) from error


def _parse(columns: Mapping[str, Any], default_source: str, number: int) -> Problem:
    """Read either schema: `problem` and `answer`, or verl's `prompt` and `reward_model.ground_truth`.

    Raises:
        RowFault: a value is missing or of another type.
    """
    extra = columns.get("extra_info")
    verl = "reward_model" in columns
    key = "prompt" if verl else "problem"
    key = "messages" if columns.get(key) is None and columns.get("messages") is not None else key
    others = {name: value for name, value in columns.items() if name not in _READ and name != key}
    others |= extra if isinstance(extra, Mapping) else {}
    if verl:
        model = columns["reward_model"]
        keys = (key, "reward_model.ground_truth")
        answer = model.get("ground_truth") if isinstance(model, Mapping) else None
        identity = others.get("index")
    else:
        keys = (key, "answer")
        answer, identity = columns.get("answer"), columns.get("id")
    text, messages = _prompt(columns.get(key), key)
    known = f"the row has {sorted(map(str, columns))}"
    if not isinstance(text, str) or not text.strip():
        raise RowFault(keys[0], f"{text!r:.60}", "a text", f"add it ({known})")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise RowFault(keys[1], f"{answer!r:.60}", "a text or a number", f"add it ({known})")
    return Problem(
        problem_id=str(number) if identity in (None, "") else str(identity),
        data_source=str(columns.get("data_source") or default_source),
        problem=text,
        ground_truth=str(answer).strip(),
        extra=others,
        messages=messages,
    )


def _json_object(line: str) -> Mapping[str, Any]:
    try:
        content = json.loads(line)
        if "\\u" in line:  # an escape may be half of a character, which no tokenizer takes
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RowFault("", f"half a character ({error})", "whole ones", "fix the escape") from error
    except (ValueError, RecursionError) as error:
        raise RowFault("", f"no JSON ({error})", "one object a line", "fix the line") from error
    if not isinstance(content, dict):
        raise RowFault("", f"{content!r:.60}", "an object", "fix the line")
    return content


def _prompt(prompt: object, key: str) -> tuple[object, tuple[Message, ...]]:
    """Return a prompt's text and, if it is a dialogue, its messages; what is no list is returned as it is.

    A single message of the user is a text: rows of either schema are then one problem.

    Raises:
        RowFault: a message has no known role or no text, or the last isn't the user's.
    """
    if not isinstance(prompt, list):
        return prompt, ()
    messages = tuple(_message(item, f"{key}[{place}]", place) for place, item in enumerate(prompt))
    if not messages or messages[-1].role != "user":
        got = f"a dialogue that ends with the {messages[-1].role}'s" if messages else "no"
        raise RowFault(key, f"{got} message", "the last one to be the user's", "end it where an answer is wanted")
    text = "\n\n".join(message.content for message in messages)
    return text, messages if len(messages) > 1 else ()


def _message(item: object, key: str, place: int) -> Message:
    if not isinstance(item, Mapping):
        raise RowFault(key, f"{item!r:.60}", "a message with role and content", "fix it")
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise RowFault(f"{key}.role", f"{role!r:.60}", f"one of {', '.join(ROLES)}", "fix it")
    if role == "system" and place > 0:
        raise RowFault(f"{key}.role", "'system'", "it in the first message only", "move it there")
    if not isinstance(content, str) or not content.strip():
        raise RowFault(f"{key}.content", f"{content!r:.60}", "a text", "fix it, or leave the message out")
    return Message(role, content)


def _renamed(problem: Problem, columns: Mapping[str, Any], number: int) -> Problem:
    """Give a problem whose id is another one's its row as id.

    verl's `extra_info.index` isn't meant as an identity, and may repeat.

    Raises:
        RowFault: the file itself calls it an id.
    """
    if "id" in columns:
        raise RowFault("id", f"{problem.problem_id!r} again with another problem", "unique ids", "rename it")
    return replace(problem, problem_id=f"row-{number}")
