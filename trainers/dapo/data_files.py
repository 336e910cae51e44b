"""Rows of .jsonl files (`problem`, `answer`) and of .jsonl or .parquet files in verl's schema.

A fault names its row as `path:row`, counted from 1 (in a .jsonl file, the line); all faults of a file are told
at once, up to `MAX_FAULTS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo.batch import Fault, Problem
from dapo.errors import DataError

MAX_FAULTS = 10
"""Faults of one file that are told."""
SUFFIXES = (".jsonl", ".parquet")
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
    texts: dict[tuple[str, str], str] = {}
    count = 0
    for number, content in _json_lines(path) if path.suffix == ".jsonl" else _parquet_rows(path):
        count += 1
        try:
            columns = _json_object(content) if isinstance(content, str) else content
            problem = _parse(columns, path.stem, number)
            if texts.setdefault((problem.data_source, problem.problem_id), problem.problem) != problem.problem:
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
        with path.open(encoding="utf-8") as file:
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
    except (OSError, pa.ArrowException) as error:
        raise DataError(Fault(str(path), f"a file that can't be read ({error})", "parquet", "check it")) from error


def _parse(columns: Mapping[str, Any], default_source: str, number: int) -> Problem:
    """Read either schema: `problem` and `answer`, or verl's `prompt` and `reward_model.ground_truth`.

    Raises:
        RowFault: a value is missing or of another type.
    """
    extra = columns.get("extra_info")
    others = {key: value for key, value in columns.items() if key not in _READ}
    others |= extra if isinstance(extra, Mapping) else {}
    if "reward_model" in columns:
        model = columns["reward_model"]
        keys, text = ("prompt", "reward_model.ground_truth"), _prompt_text(columns.get("prompt"))
        answer = model.get("ground_truth") if isinstance(model, Mapping) else None
        identity = others.get("index")
    else:
        keys, text = ("problem", "answer"), columns.get("problem")
        answer, identity = columns.get("answer"), columns.get("id")
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
    )


def _json_object(line: str) -> Mapping[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowFault("", f"no JSON ({error})", "one object a line", "fix the line") from error
    if not isinstance(content, dict):
        raise RowFault("", f"{content!r:.60}", "an object", "fix the line")
    return content


def _prompt_text(prompt: object) -> object:
    """Join the contents of a list of messages; anything else is returned as it is."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        return prompt
    contents = [message.get("content") for message in prompt if isinstance(message, Mapping)]
    return "\n\n".join(map(str, contents)) if contents and all(contents) else None


def _renamed(problem: Problem, columns: Mapping[str, Any], number: int) -> Problem:
    """Give a problem whose id is another one's its row as id.

    verl's `extra_info.index` isn't meant as an identity, and may repeat.

    Raises:
        RowFault: the file itself calls it an id.
    """
    if "id" in columns:
        raise RowFault("id", f"{problem.problem_id!r} again with another problem", "unique ids", "rename it")
    return replace(problem, problem_id=f"row-{number}")
