"""From what `model.path` says to a folder: a model by name, a folder, or an id of the Hugging Face hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dapo.batch import Fault, Progress
from dapo.errors import DataError, ModelError
from dapo.folder_cache import cache_root
from dapo.named_models import NAMED_SHAPES
from dapo.smollm2 import FOLDER, fetch_smollm2

KINDS = f"{', '.join(NAMED_SHAPES)}, a Hugging Face folder, or the id `owner/name` of a model on the hub"
"""What `model.path` may be."""
PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
"""Files of a repository that are downloaded: never pickled weights, and never code."""
NESTED = "*/*"
"""Files that aren't: those of its folders, which hold the model in other forms."""
PROBE_S = 10.0
"""Seconds that the hub has to answer at all; then there is no network."""
_ID = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?<![.-])")


def is_hub_id(path: str) -> bool:
    """Tell whether `path` reads as `owner/name`, and is nothing that is here."""
    return _ID.fullmatch(path) is not None and not Path(path).exists()


def resolve_model(path: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """Return the folder that `model.path` stands for, made or downloaded first where it is missing.

    What was downloaded of an id is used from then on, without a network: all trials of a sweep start from the
    same weights. Another revision is downloaded when it is asked for.

    Args:
        path: a name, a folder or an id, as `KINDS` says. A path that is none of them is returned as it is.
        revision: branch, tag or commit; of an id only.
        progress: called while something is made or downloaded.

    Raises:
        ModelError: it can't be made or downloaded.
    """
    if path == "tiny":
        from dapo.warmstart import tiny_path

        return tiny_path(progress)
    if path == "smollm2-135m":
        return fetch_smollm2(progress)
    if is_hub_id(path):
        return _in_hub_cache(path, revision) or _downloaded(path, revision, progress)
    return Path(path)


def fetch(name: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of a model by name or id, made or downloaded first where it is missing.

    Raises:
        DataError: neither a name nor an id, or a revision of something that has none.
        ModelError: it can't be made or downloaded.
    """
    faults = []
    if name not in NAMED_SHAPES and not is_hub_id(name):
        got = f"{name!r}, which is here already" if Path(name).exists() else repr(name)
        need = f"{', '.join(NAMED_SHAPES)}, or the id `owner/name` of a model on the hub"
        faults.append(Fault("name", got, need, "correct it; a folder is named as model.path as it is"))
    elif revision is not None and name in NAMED_SHAPES:
        faults.append(Fault("--revision", repr(revision), "a model on the hub: no other has revisions", "leave it out"))
    if faults:
        raise DataError(*faults)
    return resolve_model(name, revision, progress)


def find_model(path: str, revision: str | None = None) -> Path | None:
    """Return the folder that `model.path` stands for if it is here already; asks nobody, and makes nothing."""
    if path in NAMED_SHAPES:
        folder = cache_root() / FOLDER
        return folder if path == "smollm2-135m" and folder.is_dir() else None
    return _in_hub_cache(path, revision) if is_hub_id(path) else Path(path)


def lacking(folder: Path) -> list[str]:
    """Return the names of files that a model's folder needs and lacks."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return missing
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [*missing, "model.safetensors"]
    return missing + sorted(str(name) for name in shards if not (folder / str(name)).is_file())


def _in_hub_cache(repository: str, revision: str | None) -> Path | None:
    """Return what was downloaded of a repository, if it is whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=PATTERNS, ignore_patterns=NESTED, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    return None if lacking(Path(folder)) else Path(folder)


def _downloaded(repository: str, revision: str | None, progress: Progress | None) -> Path:
    """Download a repository's model into the hub's own cache.

    Raises:
        ModelError: no network, no such repository or revision, or no model in it that can be read.
    """
    from huggingface_hub import HfApi, snapshot_download

    told = progress or (lambda *_: None)
    named = repository if revision is None else f"{repository} at {revision}"
    told(f"download of {named}", 0, 1)
    try:
        # One request, without the repeats that would make a minute of having no network.
        HfApi().model_info(repository, revision=revision, timeout=PROBE_S)
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=PATTERNS, ignore_patterns=NESTED))
    except Exception as error:  # of the network, of HTTP, of the disk: all mean that there is no model
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(
            f"model.path: got {named!r}, no folder here, and the hub sends nothing ({reason}); need {KINDS}; "
            "correct it, or download it where there is a network and name its folder"
        ) from error
    if missing := lacking(folder):
        raise ModelError(
            f"model.path: got {named!r}, without {', '.join(missing)}; need weights as safetensors and a "
            "tokenizer.json; name another model, or convert it and name the folder"
        )
    told(f"download of {named}", 1, 1)
    return folder
