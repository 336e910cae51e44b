"""Production runs of the real trainer, with a model of a few weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from dapo.model import save_policy
from shell import Shell
from small_policy import small_policy


@pytest.fixture
def best(platform: Shell) -> Path:
    """A production file whose first update finds no group to keep in its only round."""
    save_policy(small_policy(), "start")
    for name, numbers in (("train", range(8)), ("val", range(8, 10))):
        rows = [{"problem": f"{number}+1", "answer": number + 1} for number in numbers]
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = {
        "model": {"path": "start"},
        "data": {"train": "train.jsonl", "val": "val.jsonl", "train_batch_size": 2, "max_response_length": 4},
        "rollout": {"n": 2},
        "algorithm": {"filter_groups": {"max_num_gen_batches": 1}},
        "trainer": {"total_training_steps": 2, "num_threads": 1},
    }
    path = Path("best.yaml")
    path.write_text(yaml.safe_dump({"trainer": "dapo", "config": config}))
    return path


def test_a_run_that_ran_out_of_rounds_goes_on_with_the_knob_that_its_message_names(platform: Shell, best: Path) -> None:
    reply = platform("train", best)
    assert reply.code == 1 and reply.err.startswith("best failed: SamplingExhausted: "), reply.err
    reply = platform("train", best, "actor.optim.lr=0.1")
    assert reply.code == 2 and reply.err.startswith("override:actor.optim.lr: got 0.1; need ")
    reply = platform("train", best, "algorithm.filter_groups.on_exhausted=train_partial")
    assert reply.code == 0, reply.err
    assert "run best finished after 2 steps" in reply.out
    (change,) = json.loads((platform.home / "runs" / "best" / "run.json").read_text())["changes"]
    assert change["changed"] == {"algorithm.filter_groups.on_exhausted": ["error", "train_partial"]}
