"""The commands on public data sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Shell


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in the form of AIME 2025, and an empty cache."""
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "aime"
    source.mkdir()
    for name, answer in (("aime2025-I.jsonl", "70"), ("aime2025-II.jsonl", "588")):
        rows = [{"question": f"What is {answer}?", "answer": answer}] * 2
        (source / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return source


def test_a_set_is_listed_fetched_and_used(platform: Shell, folder: Path, tmp_path: Path) -> None:
    reply = platform("data", "list")
    rows = {line.split("│")[1].strip(): line for line in reply.out.splitlines() if "│" in line}
    assert list(rows) == ["dapo-math-17k", "aime-2024", "aime-2025", "gsm8k"]
    assert "opencompass/AIME2025@a6ad95f611d7" in rows["aime-2025"]
    assert "mit" in rows["aime-2025"] and "│ no" in rows["aime-2025"]
    reply = platform("data", "fetch", "aime-2025", "--from", folder)
    assert reply.code == 0
    assert "conversion of aime-2025: 100%" in reply.out
    assert "aime-2025: 2 problems; 2 of 4 rows repeat one and are left out" in reply.out
    assert str(tmp_path / "cache") in platform("data", "list").out
    spec = ["validate", Path(__file__).parents[2] / "sweeps" / "aime.yaml", "data.max_prompt_length=1000"]
    limit = "config.actor.ppo_max_token_len_per_gpu=2000"
    assert platform(*spec, limit, "data.val=aime-2025").code == 0
    reply = platform(*spec, limit, "data.val=gsm8k-test")
    assert reply.code == 2
    assert reply.err.startswith("override:data.val: got 'gsm8k-test', a set that isn't fetched; need it in the cache")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nosuch"], "name: got 'nosuch'; need one of dapo-math-17k"),
        (["gsm8k", "--from", "toy.yaml"], "--from toy.yaml: got one file; need a folder with main/train"),
        (["gsm8k", "--trainer", "toybox.trainer"], "--trainer: got 'toybox.trainer', which has no public data sets;"),
    ],
)
def test_bad_input(platform: Shell, folder: Path, arguments: list[str], told: str) -> None:
    reply = platform("data", "fetch", *arguments)
    assert (reply.code, reply.out) == (2, "")
    assert reply.err.startswith(told)
    assert reply.err.count("\n") == 1


def test_no_network_is_one_line_and_code_1(folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-c", "from sweep_platform.cli import main; main()", "data", "fetch", "aime-2024"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith("aime-2024: can't be fetched from http://127.0.0.1:9/datasets/")
    assert result.stderr.count("\n") == 1
