"""Fetching a public data set: download or take the given files, check, convert, and keep the result in the cache.

Files are read by Hugging Face `datasets`, wherever they come from, and written as `.jsonl` with `id`, `problem`
and `answer` (`dapo.data_files`). `provenance.json` beside them says what was read and what became of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dapo.batch import Fault, Progress
from dapo.durable import sha256_of
from dapo.errors import DataError, FetchError
from dapo.folder_cache import cached_folder
from dapo.public_data import INSTRUCTION, SETS, PublicSet, SourceFile, fetched_folder

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

PROVENANCE = "provenance.json"
TIMEOUT_S = 10.0
"""Seconds that the Hub has to answer at all; then there is no network."""
BATCH = 10_000
"""Rows converted at once."""
READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}
"""Builder of `datasets` by suffix."""

logger = logging.getLogger(__name__)


class Record(NamedTuple):
    """One problem of a published row."""

    problem: str
    answer: str
    extra: Mapping[str, str]
    """Other columns to keep."""


@dataclass(frozen=True, slots=True)
class Part:
    """What became of the rows that go under one data name."""

    rows: int
    """As published."""
    problems: int
    """Distinct ones, which are kept."""
    conflicts: int
    """Rows that repeat a problem with another answer; the first is kept."""


@dataclass(frozen=True, slots=True)
class FetchedSet:
    """A set in the cache."""

    name: str
    folder: Path
    revision: str
    """`openai/gsm8k@<commit>`, or the files that were given in its stead."""
    parts: Mapping[str, Part]
    """By data name."""

    @classmethod
    def read(cls, name: str, folder: Path) -> FetchedSet:
        """Read what `fetch` wrote."""
        told = json.loads((folder / PROVENANCE).read_text("utf-8"))
        return cls(name, folder, told["revision"], {part: Part(**counts) for part, counts in told["parts"].items()})


def fetch(name: str, *, given: Path | None = None, progress: Progress | None = None) -> FetchedSet:
    """Fetch a public set into the cache; one that is there is left as it is, unless files are given.

    Args:
        name: of `dapo.public_data.SETS`.
        given: a file, or a folder with the set's files, that was downloaded by other means. Content that differs
            from the pinned one is taken, and noted.
        progress: called with files and rows done.

    Raises:
        DataError: no such set, or files that aren't this set's.
        FetchError: the Hub can't be reached, or sent something else than what is pinned.
    """
    if name not in SETS:
        raise DataError(Fault("name", repr(name), f"one of {', '.join(SETS)}", "choose one of these"))
    found = fetched_folder(name)
    if given is None and found is not None:
        return FetchedSet.read(name, found)
    what = SETS[name]
    # What is given is looked at before anything in the cache changes.
    files = None if given is None else _given_files(name, what, given)
    build = partial(_build, name, what, files, progress or (lambda *_: None))
    return FetchedSet.read(name, cached_folder(what.folder(name), build, renew=given is not None))


def _build(name: str, what: PublicSet, given: list[Path] | None, progress: Progress, folder: Path) -> None:
    """Fill the folder of a set."""
    paths = _download(name, what, progress) if given is None else given
    checksums = [sha256_of(path) for path in paths]
    differing = [
        str(path) for path, seen, file in zip(paths, checksums, what.files, strict=True) if seen != file.sha256
    ]
    revision = f"{what.repository}@{what.revision}"
    if given is not None and differing:
        revision = ", ".join(differing)
    elif differing:
        raise FetchError(
            f"{name}: got {differing[0]} with another checksum than {revision} has; need the pinned file; "
            "delete it and fetch again"
        )
    counts = {}
    for part in what.parts:
        own = [path for path, file in zip(paths, what.files, strict=True) if file.part == part]
        records = (record for path in own for record in read_records(path, what.form))
        with (folder / f"{part}.jsonl").open("w", encoding="utf-8") as target:
            counts[part] = _write(records, part, target.write, partial(progress, f"conversion of {part}"), what.rows)
    told = {
        "revision": revision,
        "licence": what.licence,
        "fetched_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": dict(zip((file.path for file in what.files), checksums, strict=True)),
        "parts": {part: asdict(count) for part, count in counts.items()},
    }
    (folder / PROVENANCE).write_text(json.dumps(told, indent=1), "utf-8")
    if differing:
        logger.warning("%s: %s is not the file that is pinned; it is taken as given", name, revision)


def _write(
    records: Iterable[Record], part: str, write: Callable[[str], object], told: Callable[[int, int], None], total: int
) -> Part:
    """Write each distinct problem once, in the order of the rows, and count."""
    answers: dict[str, str] = {}
    rows = conflicts = 0
    for rows, (problem, answer, extra) in enumerate(records, 1):
        first = answers.get(problem)
        if first is None:
            answers[problem] = answer
            row = {"id": f"{part}-{len(answers) - 1}", "problem": problem, "answer": answer, **extra}
            write(json.dumps(row, ensure_ascii=False) + "\n")
        conflicts += first not in (None, answer)
        if rows % BATCH == 0:
            told(min(rows, total), total)
    told(total, total)
    return Part(rows, len(answers), conflicts)


def read_records(path: Path, form: str) -> Iterator[Record]:
    """Read a published file, row by row.

    Raises:
        DataError: it can't be read, or isn't of that form; up to the first faulty row.
    """
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs what it then raises
    reader = READERS.get(path.suffix)
    if reader is None:
        raise DataError(Fault(str(path), repr(path.suffix), f"one of {', '.join(READERS)}", "name the original file"))
    try:
        rows = datasets.load_dataset(reader, data_files=str(path), split="train", streaming=True)
        yield from convert(rows, form, str(path))
    except DataError:
        raise
    except Exception as error:  # each format's reader raises its own
        got = f"a file that can't be read ({' '.join(str(error).split())[:200]})"
        raise DataError(Fault(str(path), got, "the original file", "download it again")) from error


def convert(rows: Dataset | IterableDataset, form: str, place: str) -> Iterator[Record]:
    """Turn published rows into records.

    Args:
        rows: of the published schema.
        form: `verl`, `question` or `gsm8k` (see `PublicSet.form`).
        place: the file, for messages.

    Raises:
        DataError: a row lacks something.
    """
    read = {"verl": _from_verl, "question": _from_question, "gsm8k": _from_gsm8k}[form]
    number = 0
    for batch in rows.with_format("arrow").iter(batch_size=BATCH):
        for columns in batch.to_pylist():
            number += 1
            try:
                yield read(columns)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                got = f"a row with {sorted(columns)} ({type(error).__name__}: {error})"
                fault = Fault(f"{place}:{number}", got, f"rows of the form {form!r}", "name the original file")
                raise DataError(fault) from error
    if number == 0:
        raise DataError(Fault(place, "an empty file", "at least one row", "download it again"))


def _from_verl(columns: Mapping[str, Any]) -> Record:
    """A row of DAPO's sets: the prompt stays as it is, instruction included."""
    (message,) = columns["prompt"]
    return _record(message["content"], columns["reward_model"]["ground_truth"])


def _from_question(columns: Mapping[str, Any]) -> Record:
    """A row with a bare question, which is asked in the words of DAPO's sets."""
    before, after = INSTRUCTION
    return _record(before + columns["question"].strip() + after, columns["answer"])


def _from_gsm8k(columns: Mapping[str, Any]) -> Record:
    """A row whose answer is a worked solution that ends in `#### number`."""
    solution = columns["answer"]
    _, mark, answer = solution.rpartition("####")
    if not mark:
        raise ValueError("no #### in the answer")
    return _record(columns["question"], answer.strip().replace(",", ""), solution=solution)


def _record(problem: str, answer: object, **extra: str) -> Record:
    if not problem.strip() or not str(answer).strip() or answer is None:
        raise ValueError("no problem, or no answer")
    return Record(problem, str(answer).strip(), extra)


def _given_files(name: str, what: PublicSet, given: Path) -> list[Path]:
    """Find a set's files in what the user names.

    Raises:
        DataError: not all are there.
    """
    wanted = ", ".join(file.path for file in what.files)
    if given.is_file() and len(what.files) == 1:
        return [given]
    if not given.is_dir():
        got = "one file" if given.is_file() else "nothing"
        need = f"a folder with {wanted} of {what.repository}" if given.is_file() or len(what.files) > 1 else wanted
        raise DataError(Fault(f"--from {given}", got, need, "name it"))
    found = [_in_folder(given, file) for file in what.files]
    missing = [file.path for file, path in zip(what.files, found, strict=True) if path is None]
    if missing:
        got = f"a folder without {', '.join(missing)}"
        raise DataError(Fault(f"--from {given}", got, f"{wanted} of {what.repository}", "download them into it"))
    return [path for path in found if path is not None]


def _in_folder(folder: Path, file: SourceFile) -> Path | None:
    """A file as in its repository, or with the folder's other files."""
    places = (folder / file.path, folder / Path(file.path).name)
    return next((path for path in places if path.is_file()), None)


def _download(name: str, what: PublicSet, progress: Progress) -> list[Path]:
    """Download a set's files, or find them in the Hub's own cache.

    Raises:
        FetchError: the Hub doesn't answer, or refuses.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    place = {"repo_id": what.repository, "repo_type": "dataset", "revision": what.revision}
    paths = []
    for number, file in enumerate(what.files):
        progress(f"download of {name}", number, len(what.files))
        found = try_to_load_from_cache(filename=file.path, **place)
        if not isinstance(found, str):
            url = hf_hub_url(filename=file.path, **place)
            try:
                # One request, without the repeats that would make a minute of having no network.
                get_hf_file_metadata(url, timeout=TIMEOUT_S)
                found = hf_hub_download(what.repository, file.path, repo_type="dataset", revision=what.revision)
            except Exception as error:  # of the network, of HTTP, of the disk: all mean that there is no file
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise FetchError(
                    f"{name}: can't be fetched from {url} ({reason}); need a network, or the files; "
                    f"download them elsewhere and run platform data fetch {name} --from PATH"
                ) from error
        paths.append(Path(found))
    progress(f"download of {name}", len(what.files), len(what.files))
    return paths
