"""`platform model fetch` and `platform warmstart`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dapo.config import Config
from dapo.model import load_policy, save_policy
from shell import Shell
from small_policy import small_policy


@pytest.fixture
def settings() -> list[str]:
    """Overrides of a run with a small model on sums, in the current folder."""
    save_policy(small_policy(), "start")
    for name, numbers in (("train", range(8)), ("val", range(7, 10))):
        rows = [{"problem": f"{number}+1", "answer": number + 1} for number in numbers]
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ["model.path=start", "data.train=train.jsonl", "data.val=val.jsonl", "data.max_response_length=16"]


def test_a_warm_start_by_overrides_writes_a_model_and_says_what_it_learnt(platform: Shell, settings: list[str]) -> None:
    reply = platform("warmstart", *settings, "warmstart.steps=3", "warmstart.share=0.5", "--out", "warm")
    assert (reply.code, reply.err) == (0, "")
    assert "warm start: 100%" in reply.out.splitlines()
    assert "4 problems taught in 3 updates, 0 of them with a solution" in reply.out
    assert "left out for being validation problems too: 1" in reply.out
    assert "val/accuracy: 0.000 ± 0.000 before, 0.000 ± 0.000 after" in reply.out
    assert reply.out.splitlines()[-1] == "next: model.path=warm"
    load_policy("warm")
    assert not platform.home.exists()


def test_a_warm_start_of_a_production_file(platform: Shell, settings: list[str]) -> None:
    config = Config.model_validate({"model": {"path": "start"}, "data": {"train": "train.jsonl", "val": "val.jsonl"}})
    Path("best.yaml").write_text(yaml.safe_dump({"trainer": "dapo", "config": config.model_dump(mode="json")}))
    reply = platform("warmstart", "best.yaml", "data.val_size=1", "warmstart.steps=1", "--out", "warm")
    assert reply.code == 0, reply.err
    assert "7 problems taught in 1 updates" in reply.out


def test_all_faults_of_a_warm_start_at_once_and_nothing_written(platform: Shell, settings: list[str]) -> None:
    Path("warm").mkdir()
    before = sorted(Path.cwd().rglob("*"))
    faulty = ["warmstart.step=3", "warmstart.share=2", "rollout.n=1"]
    reply = platform("warmstart", *settings, *faulty, "--out", "warm")
    assert (reply.code, reply.out) == (2, "")
    assert reply.err.splitlines() == [
        "override:warmstart.share: got 2; need less than or equal to 1; set it to such a value",
        "override:warmstart.step: got unknown key 'step'; need one of ['share', 'epochs', 'steps', 'batch_size', 'lr', "
        "'max_token_len', 'field', 'template']; did you mean steps?",
        "override:rollout.n: got 1; need at least 2: one response has nothing to be compared with, and no advantage; "
        "raise it",
        "--out: got warm, which exists; need a folder to write; name another, or remove it",
    ]
    reply = platform("warmstart", *settings, "warmstart.template=x", "warmstart.lr=0.1", "--out", "w")
    assert reply.err.splitlines() == [
        "override:warmstart.template: got 'x'; need {answer} in template; write where the answer goes"
    ]
    assert sorted(Path.cwd().rglob("*")) == before


def test_faults_that_only_the_trainer_sees_are_bad_input_too(platform: Shell, settings: list[str]) -> None:
    reply = platform("warmstart", *settings, "warmstart.template='it is {answer}'", "--out", "warm")
    assert reply.code == 2
    assert reply.err.startswith("warmstart.template: got 'it is {answer}'; need a template in which the grader")
    assert not Path("warm").exists()


def test_a_trainer_without_warm_start_or_models_says_so(platform: Shell) -> None:
    reply = platform("warmstart", "seed=1", "--trainer", "toybox.trainer", "--out", "warm")
    assert reply.code == 2
    reply = platform("warmstart", "actor.lr=0.1", "--trainer", "toybox.trainer", "--out", "warm")
    assert (reply.code, reply.out) == (2, "")
    assert reply.err.startswith("trainer: got 'toybox.trainer', which has no warm start; need a trainer with warmstart")
    reply = platform("model", "fetch", "smollm2-135m", "--trainer", "toybox.trainer")
    assert (reply.code, reply.out) == (2, "")
    assert reply.err.startswith("--trainer: got 'toybox.trainer', which fetches no models; need a trainer with fetch_")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_says_that_nothing_was_written(
    platform: Shell, settings: list[str], number: signal.Signals
) -> None:
    """The process gets it once it teaches."""
    code = "from sweep_platform.cli import main; main()"
    command = [sys.executable, "-c", code, "warmstart", *settings, "warmstart.steps=100000"]
    process = subprocess.Popen([*command, "--out", "warm"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    with process:
        assert any(line.startswith("warm start: 0%") for line in process.stdout)
        process.send_signal(number)
        told = process.stderr.read()
    assert process.returncode == 130
    assert told.splitlines()[-1] == "interrupted; nothing was written, the same command starts over"
    assert not Path("warm").exists()


def test_a_model_is_fetched_by_name(platform: Shell, tmp_path: Path) -> None:
    """What the hub's cache holds needs no network."""
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    save_policy(small_policy(), snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "v1").write_text(snapshot.name)
    code = "from sweep_platform.cli import main; main()"
    command = [sys.executable, "-c", code, "model", "fetch", "some/model", "--revision", "v1"]
    environment = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        command, env={**environment, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"some/model: in {snapshot}",
        "next: model.path=some/model model.revision=v1",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("nosuch",), 2, "name: got 'nosuch'; need tiny, smollm2-135m, or the id `owner/name` of a model on the hub"),
        (("tiny", "--revision", "v1"), 2, "--revision: got 'v1'; need a model on the hub"),
    ],
)
def test_what_cannot_be_fetched_is_told(platform: Shell, arguments: tuple[str, ...], code: int, told: str) -> None:
    reply = platform("model", "fetch", *arguments)
    assert (reply.code, reply.out) == (code, "")
    assert told in reply.err


def test_a_place_that_cannot_be_written_is_told_before_the_work(platform: Shell, settings: list[str]) -> None:
    Path("file").write_text("")
    reply = platform("warmstart", *settings, "warmstart.steps=0", "nosuch.key=3", "--out", "file/warm")
    assert (reply.code, reply.out) == (2, "")
    assert [line.split("; need")[0] for line in reply.err.splitlines()] == [
        "override:warmstart.steps: got 0",
        "override:nosuch: got unknown key 'nosuch'",
        "--out: got file/warm (Not a directory)",
    ]


def test_a_warm_start_says_that_it_teaches_no_adapter(
    platform: Shell, settings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    reply = platform("warmstart", *settings, "model.lora_rank=2", "warmstart.steps=1", "--out", "warm")
    assert reply.code == 0
    assert any(told.startswith("model.lora_rank: the warm start teaches all weights") for told in caplog.messages)
