"""A decoder small enough that a whole training run takes a second, and groups made by hand."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dapo.batch import Problem, Response, RolloutGroup, Score
from dapo.config import Config
from dapo.model import Policy, save_policy
from nested import put_all
from small_policy import small_policy

MakeGroup = Callable[..., RolloutGroup]
MakeConfig = Callable[..., Config]


HELPERS = Path(__file__).parent / "helpers"


@pytest.fixture(autouse=True)
def importable_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Custom reward functions are named by import path."""
    monkeypatch.syspath_prepend(str(HELPERS))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Results are bitwise repeatable on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy() -> Policy:
    return small_policy()


@pytest.fixture
def model_folder(policy: Policy, tmp_path: Path) -> Path:
    save_policy(policy, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    """Ten problems, so that a run goes through several epochs."""
    rows = [{"problem": f"{number}+1", "answer": number + 1} for number in range(10)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path / "train.jsonl"


@pytest.fixture
def make_config(model_folder: Path, train_file: Path) -> MakeConfig:
    """Return a config of a very short run; `algorithm__filter_groups__metric="acc"` sets a nested key.

    The reward is one that an untrained model gets now and then (see `helpers/dapo_test_rewards.py`).
    """

    def make(**changes: object) -> Config:
        tree: dict[str, Any] = {
            "model": {"path": str(model_folder)},
            "data": {
                "train": str(train_file),
                "train_batch_size": 4,
                "max_response_length": 8,
                "val_size": 6,
            },
            "rollout": {"n": 4, "val_kwargs": {"n": 2}},
            "actor": {"optim": {"lr": 1e-2}},
            "reward": {"grader": "custom", "custom_reward_function": "dapo_test_rewards:letters"},
            "trainer": {
                "total_training_steps": 3,
                "num_threads": 1,
                "device": "cpu",
                "save_freq": 0,
                "test_freq": 0,
            },
        }
        return Config.model_validate(put_all(tree, changes))

    return make


@pytest.fixture
def make_group() -> MakeGroup:
    def make(
        accuracies: Sequence[float],
        *,
        lengths: Sequence[int] | None = None,
        rewards: Sequence[float] | None = None,
        extra: Sequence[dict[str, float]] | None = None,
        finished: Sequence[bool] | None = None,
    ) -> RolloutGroup:
        size = len(accuracies)
        sizes = lengths or [2] * size
        rewards = rewards or accuracies
        return RolloutGroup(
            Problem("p", "set", "1+1", "2"),
            [5, 6, 7],
            [
                Response([8] * length, [-1.0] * length, done, "")
                for length, done in zip(sizes, finished or [True] * size, strict=True)
            ],
            [
                Score(acc=acc, score=acc, seq_reward=reward, answer="", extra=more)
                for acc, reward, more in zip(accuracies, rewards, extra or [{}] * size, strict=True)
            ],
        )

    return make
