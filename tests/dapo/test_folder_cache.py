import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dapo.errors import ModelError
from dapo.folder_cache import cached_folder

SLOW = """
import sys, time
from pathlib import Path
from dapo.folder_cache import cached_folder

def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    (folder / "half").write_text("half")
    print("half", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "other").write_text("other")

print(cached_folder("thing", build))
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(folder: Path) -> None:
    (folder / "half").write_text("half")
    (folder / "other").write_text("other")


def refuse(folder: Path) -> None:
    raise AssertionError("built again")


def slow(log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SLOW, str(log), str(seconds)], stdout=subprocess.PIPE, text=True)


def visible(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.suffix != ".lock"}


def test_built_once(root: Path) -> None:
    folder = cached_folder("thing", build)
    assert folder == root / "thing"
    assert (folder / "other").read_text() == "other"
    assert cached_folder("thing", refuse) == folder
    assert cached_folder("other thing", build) != folder
    assert visible(root) == {"thing", "other thing"}


def test_two_processes_build_once(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with slow(log, 0.3) as first, slow(log, 0.3) as second:
        replies = [process.communicate()[0].splitlines()[-1] for process in (first, second)]
    assert replies == [str(root / "thing")] * 2
    assert log.read_text() == "built\n"
    assert visible(root) == {"thing"}


def test_a_killed_builder_leaves_nothing_whole(root: Path, tmp_path: Path) -> None:
    with slow(tmp_path / "log", 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert not (root / "thing").exists()
    assert (cached_folder("thing", build) / "other").exists()
    assert visible(root) == {"thing"}


def test_a_builder_that_fails_leaves_nothing(root: Path) -> None:
    def fail(folder: Path) -> None:
        build(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cached_folder("thing", fail)
    assert visible(root) == set()
    cached_folder("thing", build)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "half").write_text("hale"), id="changed"),
        pytest.param(lambda folder: os.truncate(folder / "half", 2), id="cut"),
        pytest.param(lambda folder: (folder / "half").unlink(), id="missing"),
        pytest.param(lambda folder: (folder / "sha256.json").unlink(), id="no sums"),
        pytest.param(lambda folder: (folder / "sha256.json").write_text("["), id="damaged sums"),
    ],
)
def test_a_damaged_folder_is_built_again(damage: Callable[[Path], object], root: Path) -> None:
    damage(cached_folder("thing", build))
    folder = cached_folder("thing", build)
    assert [(folder / name).read_text() for name in ("half", "other")] == ["half", "other"]
    assert cached_folder("thing", refuse) == folder
    assert visible(root) == {"thing"}


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"PLATFORM_CACHE: got .*file.*; need a folder that can be written"):
        cached_folder("thing", build)
