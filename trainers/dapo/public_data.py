"""Public data sets by name: where each comes from, and where it lies once `dapo.fetch` has fetched it.

Revisions are commits and files have checksums, so that a name means the same problems for everybody, for ever.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dapo.batch import Fault
from dapo.errors import DataError
from dapo.folder_cache import cache_root, whole_folder

FORMAT = 1
"""Of the fetched files; another number makes a new folder."""
INSTRUCTION = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n",
    '\n\nRemember to put your answer on its own line after "Answer:".',
)
"""What stands before and after each problem of DAPO's own sets, as published."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One published file."""

    path: str
    """In its repository."""
    sha256: str
    part: str
    """The data name that its rows go under."""


@dataclass(frozen=True, slots=True)
class PublicSet:
    """One set on the Hugging Face Hub."""

    repository: str
    revision: str
    """A commit."""
    licence: str
    """As its card states it."""
    size: str
    """Of the download."""
    rows: int
    """As published, repeated ones included."""
    form: Literal["verl", "question", "gsm8k"]
    """How a row is read: verl's schema; `question` and `answer`; or these with the solution in the answer."""
    files: tuple[SourceFile, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names to use as `data.train` and `data.val`, in the order of the files."""
        return tuple(dict.fromkeys(file.part for file in self.files))

    def folder(self, name: str) -> str:
        """Name of its folder in the cache: what determines the content is in it."""
        text = f"{FORMAT} {self!r}"
        return f"data-{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


SETS: dict[str, PublicSet] = {
    "dapo-math-17k": PublicSet(
        repository="BytedTsinghua-SIA/DAPO-Math-17k",
        revision="65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        licence="apache-2.0",
        size="299 MB",
        rows=1_791_700,
        form="verl",
        files=(
            SourceFile(
                "data/dapo-math-17k.parquet",
                "534375d6bb8630d22ab46a56e11f2ffec1d288d8f7d04099bc82d68948705941",
                "dapo-math-17k",
            ),
        ),
    ),
    "aime-2024": PublicSet(
        repository="BytedTsinghua-SIA/AIME-2024",
        revision="aa49075e24ad594b79fdf0bdcefa735c2181be67",
        licence="see its card",
        size="< 1 MB",
        rows=960,
        form="verl",
        files=(
            SourceFile(
                "data/aime-2024.parquet",
                "12154e38a716d12db5731f9a022ae69a610c4f7d0e0dcc04e902887a686877e7",
                "aime-2024",
            ),
        ),
    ),
    "aime-2025": PublicSet(
        repository="opencompass/AIME2025",
        revision="a6ad95f611d72cf628a80b58bd0432ef6638f958",
        licence="mit",
        size="< 1 MB",
        rows=30,
        form="question",
        files=(
            SourceFile(
                "aime2025-I.jsonl", "b91b3c96f05d9635d2a0692b124ebe023c1ff59cb19c074275e6c4b349d0659e", "aime-2025"
            ),
            SourceFile(
                "aime2025-II.jsonl", "16a2dcfbbf9db1b11f8a69a3ba5e4cac73e3641b19a37e2307e9c12240bbed5e", "aime-2025"
            ),
        ),
    ),
    "gsm8k": PublicSet(
        repository="openai/gsm8k",
        revision="740312add88f781978c0658806c59bc2815b9866",
        licence="mit",
        size="3 MB",
        rows=8792,
        form="gsm8k",
        files=(
            SourceFile(
                "main/train-00000-of-00001.parquet",
                "ea82612ea9582142387730c793eb67d3b12849002bc0b7fa6f8efafa7351419d",
                "gsm8k",
            ),
            SourceFile(
                "main/test-00000-of-00001.parquet",
                "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59",
                "gsm8k-test",
            ),
        ),
    ),
}
"""By the name that is fetched."""
OWNERS = {part: name for name, item in SETS.items() for part in item.parts}
"""By the name that data goes under: the name that is fetched for it."""


@dataclass(frozen=True, slots=True)
class ListedSet:
    """What a user may want to know of a set before fetching it."""

    name: str
    parts: tuple[str, ...]
    """Names to use as `data.train` and `data.val`."""
    source: str
    licence: str
    size: str
    """Of the download."""
    folder: Path | None
    """Where it lies; None if it hasn't been fetched."""


def listed_sets() -> list[ListedSet]:
    """Return all public sets."""
    return [
        ListedSet(
            name=name,
            parts=item.parts,
            source=f"huggingface.co/datasets/{item.repository}@{item.revision[:12]}",
            licence=item.licence,
            size=f"{item.size}, {item.rows:,} rows",
            folder=fetched_folder(name),
        )
        for name, item in SETS.items()
    ]


def data_path(source: str) -> str:
    """Return the file of a public set's part; any other source is returned as it is.

    Raises:
        DataError: it hasn't been fetched.
    """
    owner = OWNERS.get(source)
    if owner is None:
        return source
    name = SETS[owner].folder(owner)
    folder = whole_folder(name)
    if folder is None:
        need = f"it in the cache, {cache_root() / name}"
        raise DataError(Fault(source, "a set that isn't fetched", need, f"run platform data fetch {owner}"))
    return str(folder / f"{source}.jsonl")


def statement(problem: str) -> str:
    """Return a problem without DAPO's instruction, case and spacing: what tells whether two are the same."""
    before, after = INSTRUCTION
    bare = problem.strip().removeprefix(before.strip()).removesuffix(after.strip())
    return " ".join(bare.split()).casefold()


def fetched_folder(name: str) -> Path | None:
    """Return the folder of a public set that has been fetched and is whole, or None."""
    return whole_folder(SETS[name].folder(name))
