"""What is evaluated is never trained on."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from dapo.config import Config
from dapo.data import load_dataset
from dapo.errors import CheckpointError, DataError
from dapo.overlap import held_apart
from dapo.preflight import preflight
from dapo.public_data import INSTRUCTION
from dapo.run import Run
from training import run


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"problem": text, "answer": 1}) + "\n" for text in texts))
    return str(path)


def test_shared_problems_are_left_out_of_training_and_told(
    make_config: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = INSTRUCTION
    train = write(tmp_path / "t.jsonl", ["1+1", "2+2", "Find  N.", "4+4", "5+5"])
    val = write(tmp_path / "v.jsonl", ["9+9", "2+2", f"{before}find n.{after}"])
    config = make_config(data__train=train, data__val=val, data__max_prompt_length=1000)
    assert not [fault for fault in preflight(config) if fault.key.startswith("data.")]
    with caplog.at_level(logging.WARNING):
        started = Run.start(config)
    assert [problem.problem for problem in started.train_prompts.problems] == ["1+1", "4+4", "5+5"]
    assert len(started.val_prompts) == 3
    assert "2 problems also stand in data.val and are left out of training: 2, 3" in caplog.text


@pytest.mark.parametrize(
    ("train", "val", "key", "told"),
    [
        (["1+1", "2+2"], ["1+1"], "data.val", "all 1 problems of which stand in data.train"),
        (["1+1"], ["1+1", "2+2"], "data.train", "all 1 problems of which stand in data.val"),
        (["1+1", "2+2"], ["2+2", "1+1"], "data.val", "all 2 problems of which stand in data.train"),
    ],
)
def test_sets_of_which_nothing_is_left_are_refused(
    make_config: Callable[..., Config], tmp_path: Path, train: list[str], val: list[str], key: str, told: str
) -> None:
    paths = [write(tmp_path / "t.jsonl", train), write(tmp_path / "v.jsonl", val)]
    config = make_config(data__train=paths[0], data__val=paths[1])
    (fault,) = preflight(config)
    assert fault.key == key and told in fault.got
    with pytest.raises(DataError, match=told):  # a file that preflight leaves for its size
        Run.start(config)


@pytest.mark.parametrize("source", ["arithmetic", "file"])
def test_the_same_set_for_both_is_refused(
    make_config: Callable[..., Config], train_file: Path, tmp_path: Path, source: str
) -> None:
    name = str(train_file) if source == "file" else source
    (fault,) = preflight(make_config(data__train=name, data__val=name))
    assert fault.key == "data.val" and fault.need.startswith("another set than data.train")


def test_the_generated_sets_share_nothing() -> None:
    names = ("arithmetic", "arithmetic-aime", "arithmetic-heldout")
    train, val, held_out = (load_dataset(name, "integer") for name in names)
    assert held_apart(train, val, Config()) is train
    assert held_apart(train, held_out, Config()) is train


def test_a_run_of_its_own_may_evaluate_on_the_held_out_split() -> None:
    assert preflight(Config.model_validate({"data": {"val": "arithmetic-heldout"}})) == []


def test_a_resumed_run_must_find_the_same_problems(make_config: Callable[..., Config], tmp_path: Path) -> None:
    """`data.val` may change on a resume, but not so that other problems are trained on."""
    train = write(tmp_path / "t.jsonl", [f"{number}+1" for number in range(10)])
    apart = write(tmp_path / "apart.jsonl", ["50+1", "60+1"])
    shared = write(tmp_path / "shared.jsonl", ["50+1", "3+1"])
    folder = str(tmp_path / "run")
    changes = {"data__train": train, "trainer__default_local_dir": folder, "trainer__save_freq": 1}
    run(make_config(data__val=apart, **changes), stop_at=1)
    with pytest.raises(CheckpointError, match=r"data\.train: got other problems than .*global_step_1 was trained on"):
        run(make_config(data__val=shared, **changes))
    assert run(make_config(data__val="arithmetic-aime", **changes))[-1].final
