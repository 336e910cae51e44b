"""Folders that are expensive to make and cheap to keep: made once per machine, whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from dapo.durable import flush, sha256_of
from dapo.errors import ModelError

_SUMS = "sha256.json"


def cache_root() -> Path:
    """Return where prepared models and fetched data are kept: `PLATFORM_CACHE`, or `~/.cache/sweep-platform`."""
    return Path(os.environ.get("PLATFORM_CACHE") or Path.home() / ".cache" / "sweep-platform")


def whole_folder(name: str) -> Path | None:
    """Return the cached folder `name` if it is there and whole."""
    folder = cache_root() / name
    return folder if _is_whole(folder) else None


def cached_folder(name: str, build: Callable[[Path], None], *, renew: bool = False) -> Path:
    """Return the cached folder `name`, made by `build` if it is missing or damaged.

    Two processes that want it at once make it once: the second waits. A process that dies while making it
    leaves nothing that would be taken for a whole folder.

    Args:
        name: states everything that determines the content, such as a hash.
        build: fills the empty folder that it is given.
        renew: make it again even if it is whole.

    Raises:
        ModelError: the cache is no folder that can be written.
    """
    folder = cache_root() / name
    if not renew and _is_whole(folder):
        return folder
    with _locked(folder.with_name(f"{name}.lock")):
        if not renew and _is_whole(folder):
            return folder
        work = folder.with_name(f".{name}")
        shutil.rmtree(work, ignore_errors=True)  # what a builder left that was killed
        work.mkdir()
        try:
            build(work)
            (work / _SUMS).write_text(json.dumps({path.name: sha256_of(path) for path in work.iterdir()}), "utf-8")
            for path in (*work.iterdir(), work):
                flush(path)
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _is_whole(folder: Path) -> bool:
    """Tell whether every file is there with the content that it was written with."""
    try:
        sums: dict[str, str] = json.loads((folder / _SUMS).read_text("utf-8"))
        return all(sha256_of(folder / name) == value for name, value in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock among processes; the system frees it if this one dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise ModelError(
            f"PLATFORM_CACHE: got {path.parent} ({error.strerror}); need a folder that can be written; set it to one"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
