"""Public data sets: files in the published schemas, the cache, and a Hub that answers, lies or is gone."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dapo.config import Config
from dapo.data import load_dataset
from dapo.errors import DataError
from dapo.fetch import FetchedSet, Part, convert, fetch
from dapo.preflight import preflight
from dapo.public_data import INSTRUCTION, OWNERS, SETS, fetched_folder, listed_sets, statement

BEFORE, AFTER = INSTRUCTION


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def verl_row(problem: str, answer: str, index: object = "x") -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{BEFORE}{problem}{AFTER}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file as it is published."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


GSM8K = [
    {"question": "How many?", "answer": "48/2 = <<48/2=24>>24\n48+24 = 72\n#### 72"},
    {"question": "How much?", "answer": "It is 2,000 + 280.\n#### 2,280"},
]


def gsm8k_folder(folder: Path) -> Path:
    write(folder / "main" / "train-00000-of-00001.parquet", GSM8K)
    write(folder / "test-00000-of-00001.parquet", GSM8K[:1])
    return folder


def rows_of(found: FetchedSet, part: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (found.folder / f"{part}.jsonl").read_text("utf-8").splitlines()]


def test_dapo_rows_that_repeat_a_problem_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [verl_row("1+1?", "2", "a"), verl_row("2+2?", "4", "b"), verl_row("3+3?", "6", "c")]
    told: list[tuple[str, int, int]] = []
    source = write(tmp_path / "own.parquet", [*rows * 100, verl_row("1+1?", "3", "d")])
    found = fetch("dapo-math-17k", given=source, progress=lambda *state: told.append(state))
    assert found.parts == {"dapo-math-17k": Part(rows=301, problems=3, conflicts=1)}
    assert rows_of(found, "dapo-math-17k")[1] == {
        "id": "dapo-math-17k-1",
        "problem": f"{BEFORE}2+2?{AFTER}",
        "answer": "4",
    }
    assert told[-1] == ("conversion of dapo-math-17k", 1_791_700, 1_791_700)
    assert found.revision == str(source)  # not the pinned file, and it says so
    dataset = load_dataset("dapo-math-17k", "integer")
    assert [problem.ground_truth for problem in dataset.problems] == ["2", "4", "6"]
    assert {problem.data_source for problem in dataset.problems} == {"dapo-math-17k"}


def test_a_dataset_converts_as_its_stream_does(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.parquet", [verl_row("1+1?", "2"), verl_row("2+2?", "4")]))
    whole = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=str(tmp_path / "hf"))
    stream = datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
    records = list(convert(whole, "verl", path))
    assert records == list(convert(stream, "verl", path))
    assert [record.answer for record in records] == ["2", "4"]


def test_gsm8k_keeps_its_solutions_and_both_splits(tmp_path: Path) -> None:
    found = fetch("gsm8k", given=gsm8k_folder(tmp_path / "gsm8k"))
    assert {name: part.problems for name, part in found.parts.items()} == {"gsm8k": 2, "gsm8k-test": 1}
    assert [row["answer"] for row in rows_of(found, "gsm8k")] == ["72", "2280"]
    assert rows_of(found, "gsm8k")[0]["solution"] == GSM8K[0]["answer"]
    assert load_dataset("gsm8k-test", "integer").problems[0].extra["solution"] == GSM8K[0]["answer"]


def test_aime_2025_is_asked_in_the_words_of_dapo(tmp_path: Path) -> None:
    folder = tmp_path / "aime"
    write(folder / "aime2025-I.jsonl", [{"question": "Find $m+n$. ", "answer": "70"}])
    write(folder / "aime2025-II.jsonl", [{"question": "Find $n$.", "answer": 588}])
    found = fetch("aime-2025", given=folder)
    assert [row["answer"] for row in rows_of(found, "aime-2025")] == ["70", "588"]
    assert rows_of(found, "aime-2025")[0]["problem"] == f"{BEFORE}Find $m+n$.{AFTER}"
    assert statement(rows_of(found, "aime-2025")[0]["problem"]) == statement(" find  $M+n$.\n")


def test_a_name_that_is_not_fetched_is_a_fault_that_says_how(tmp_path: Path) -> None:
    config = Config.model_validate({"data": {"train": "dapo-math-17k", "val": "gsm8k-test"}})
    found = {fault.key: str(fault) for fault in preflight(config)}
    assert "run platform data fetch dapo-math-17k" in found["data.train"]
    assert found["data.val"].endswith("run platform data fetch gsm8k")
    with pytest.raises(DataError, match="run platform data fetch aime-2024"):
        load_dataset("aime-2024", "integer")


def test_what_is_fetched_stays_until_other_files_are_given(tmp_path: Path) -> None:
    first = fetch("gsm8k", given=gsm8k_folder(tmp_path / "gsm8k"))
    assert fetch("gsm8k") == first  # no network is needed
    assert {item.name: item.folder for item in listed_sets()}["gsm8k"] == first.folder
    write(tmp_path / "gsm8k" / "test-00000-of-00001.parquet", GSM8K)
    second = fetch("gsm8k", given=tmp_path / "gsm8k")
    assert second.folder == first.folder
    assert second.parts["gsm8k-test"].problems == 2


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        pytest.param(
            [{"problem": "1+1", "answer": "2"}], r"got a row with \['answer', 'problem'\]", id="other columns"
        ),
        pytest.param([verl_row("1+1", "")], "no problem, or no answer", id="no answer"),
        pytest.param([verl_row("1+1", "2") | {"prompt": []}], r":1: got a row", id="no prompt"),
    ],
)
def test_files_of_another_form_change_nothing(
    tmp_path: Path, rows: list[dict[str, Any]], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = fetch("dapo-math-17k", given=write(tmp_path / "good.parquet", [verl_row("1+1", "2")]))
    assert caplog.messages[-1].endswith("good.parquet is not the file that is pinned; it is taken as given")
    caplog.clear()
    with pytest.raises(DataError, match=told):
        fetch("dapo-math-17k", given=write(tmp_path / "bad.parquet", rows))
    assert "taken as given" not in caplog.text
    assert fetch("dapo-math-17k") == good


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("nosuch", "", "got 'nosuch'; need one of dapo-math-17k, aime-2024"),
        ("gsm8k", "nosuch", "got nothing; need a folder with main/train-00000-of-00001.parquet, main/test"),
        ("gsm8k", "text.parquet", "got one file; need a folder with main/train"),
        ("gsm8k", ".", "a folder without main/train-00000-of-00001.parquet, main/test"),
        ("aime-2024", "text.parquet", "got a file that can't be read"),
        ("aime-2024", "text.csv", "got '.csv'; need one of .parquet, .jsonl"),
        ("aime-2024", "empty.jsonl", "empty.jsonl: got a"),
    ],
)
def test_what_is_given_must_be_the_sets_files(tmp_path: Path, name: str, given: str, told: str) -> None:
    for path in ("text.parquet", "text.csv"):
        (tmp_path / path).write_text("no table")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError) as caught:
        fetch(name, given=tmp_path / given)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_sets_are_pinned() -> None:
    assert all(len(item.revision) == 40 and int(item.revision, 16) for item in SETS.values())
    checksums = [file.sha256 for item in SETS.values() for file in item.files]
    assert all(len(checksum) == 64 for checksum in checksums) and len(set(checksums)) == len(checksums)
    assert OWNERS == {
        "dapo-math-17k": "dapo-math-17k",
        "aime-2024": "aime-2024",
        "aime-2025": "aime-2025",
        "gsm8k": "gsm8k",
        "gsm8k-test": "gsm8k",
    }


class Hub(BaseHTTPRequestHandler):
    """Serves files as the Hub does, from `files`; `asked` notes the requests."""

    files: dict[str, bytes] = {}
    asked: list[str] = []
    silent = threading.Event()

    def do_HEAD(self) -> None:
        self.send(body=False)

    def do_GET(self) -> None:
        self.send(body=True)

    def send(self, *, body: bool) -> None:
        self.asked.append(f"{self.command} {self.path}")
        while self.silent.is_set():
            time.sleep(0.05)
        content = self.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", SETS["aime-2024"].revision)
        self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if body and content is not None:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """A Hub that has AIME 2024, in a file of ours."""
    source = write(tmp_path / "aime.parquet", [verl_row("1+1?", "2"), verl_row("2+2?", "4")] * 32)
    item = SETS["aime-2024"]
    Hub.files = {f"/datasets/{item.repository}/resolve/{item.revision}/{item.files[0].path}": source.read_bytes()}
    Hub.asked = []
    Hub.silent.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Hub.silent.clear()
    server.shutdown()
    thread.join()
    server.server_close()


FETCH = """
import sys
from dataclasses import replace
import dapo.fetch, dapo.public_data
from dapo.errors import DapoError
dapo.fetch.TIMEOUT_S = 1.0
item = dapo.public_data.SETS["aime-2024"]
file = replace(item.files[0], sha256=sys.argv[1] or item.files[0].sha256)
dapo.public_data.SETS["aime-2024"] = replace(item, files=(file,))
try:
    print(dapo.fetch.fetch("aime-2024").revision)
except DapoError as error:
    sys.exit(str(error))
"""


def fetch_from(endpoint: str, tmp_path: Path, checksum: str = "") -> subprocess.CompletedProcess[str]:
    """Fetch AIME 2024 in a process of its own, since the Hub's address is read once."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", FETCH, checksum]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_download_from_the_hub_once(hub: str, tmp_path: Path) -> None:
    checksum = hashlib.sha256((tmp_path / "aime.parquet").read_bytes()).hexdigest()
    result = fetch_from(hub, tmp_path, checksum)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"BytedTsinghua-SIA/AIME-2024@{SETS['aime-2024'].revision}"
    asked = len(Hub.asked)
    assert fetch_from(hub, tmp_path, checksum).returncode == 0
    assert asked > 0 and len(Hub.asked) == asked


def test_content_that_is_not_the_pinned_one_is_refused(hub: str, tmp_path: Path) -> None:
    result = fetch_from(hub, tmp_path)
    assert result.returncode == 1
    assert "with another checksum than BytedTsinghua-SIA/AIME-2024@aa49075e" in result.stderr
    assert fetched_folder("aime-2024") is None


@pytest.mark.parametrize("trouble", ["refused", "silent", "missing"])
def test_without_the_hub_one_line_says_so_at_once(hub: str, tmp_path: Path, trouble: str) -> None:
    endpoint = "http://127.0.0.1:9" if trouble == "refused" else hub
    if trouble == "silent":
        Hub.silent.set()
    if trouble == "missing":
        Hub.files = {}
    start = time.monotonic()
    result = fetch_from(endpoint, tmp_path)
    assert time.monotonic() - start < 20
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"aime-2024: can't be fetched from {endpoint}/datasets/BytedTsinghua-SIA/AIME-2024/resolve/")
    assert line.endswith("run platform data fetch aime-2024 --from PATH")
