import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dapo.accounting import TokenAccount
from dapo.batch import Cost, EvaluatedSample, StepMetrics
from dapo.checkpoint import Checkpoints, RunState
from dapo.config import Config
from dapo.errors import CheckpointError
from dapo.model import Policy, load_policy
from dapo.trainer import trained_model
from dapo.update import make_optimizer

SAMPLE = EvaluatedSample("aime", "1", 0, "p", "Answer: 4", "4", "42", False, 3)
METRICS = StepMetrics(7, 9, {"val/accuracy": 0.1}, Cost(1.5, 2, 0.25), (SAMPLE,), False)


def state_at(step: int) -> RunState:
    account = TokenAccount(trained=5, masked=4, filtered=3, surplus=2, stale=1)
    return RunState(step, 40 + step, 10, 1, Cost(1e18, 2**40, 0.1, 3.0, 4, 0.5), METRICS, lowered=2, account=account)


@pytest.fixture
def trained(policy: Policy) -> tuple[Policy, torch.optim.Optimizer]:
    """A policy after one optimiser step, so that there is a state to keep."""
    optimizer = make_optimizer(policy, Config().actor.optim)
    torch.autograd.backward(sum(p.square().sum() for p in policy.model.parameters()))
    optimizer.step()
    return policy, optimizer


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run", keep=2)


def test_everything_comes_back(checkpoints: Checkpoints, trained) -> None:
    policy, optimizer = trained
    path = checkpoints.save(state_at(7), policy, optimizer, Config())
    found = checkpoints.latest(Config())
    assert found is not None
    assert found.state == state_at(7)
    assert path.name == "global_step_7"
    loaded = found.load_policy(Config(), "cpu")
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    other = make_optimizer(loaded, Config().actor.optim)
    found.load_optimizer(other)
    for index, values in optimizer.state_dict()["state"].items():
        for key, tensor in values.items():
            assert torch.equal(other.state_dict()["state"][index][key], tensor)


def test_no_pickle_and_a_model_folder_of_its_own(checkpoints: Checkpoints, trained) -> None:
    path = checkpoints.save(state_at(1), *trained, Config())
    assert {file.suffix for file in path.rglob("*") if file.is_file()} == {".json", ".safetensors"}
    assert load_policy(path / "model").config == trained[0].config


def test_only_the_latest_are_kept(checkpoints: Checkpoints, trained) -> None:
    for step in (8, 9, 10, 100):
        checkpoints.save(state_at(step), *trained, Config())
    assert {path.name for path in checkpoints.folder.iterdir()} == {"global_step_10", "global_step_100"}


def test_a_step_saved_twice_has_two_checkpoints(checkpoints: Checkpoints, trained) -> None:
    for drawn in range(12):
        checkpoints.save(replace(state_at(3), prompts_drawn=drawn), *trained, Config())
    found = checkpoints.latest(Config())
    assert found is not None
    assert (found.path.name, found.state.prompts_drawn) == ("global_step_3.11", 11)


@pytest.mark.parametrize(
    "name",
    ["model/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "model/config.json"],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_passed_over_aloud(
    checkpoints: Checkpoints, trained, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    checkpoints.save(state_at(1), *trained, Config())
    file = checkpoints.save(state_at(2), *trained, Config()) / name
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.unlink()
    with caplog.at_level(logging.WARNING):
        found = checkpoints.latest(Config())
    assert found is not None
    assert found.state.step == 1
    assert "global_step_2: damaged" in caplog.text


def test_when_all_are_damaged_the_run_is_not_silently_restarted(checkpoints: Checkpoints, trained) -> None:
    path = checkpoints.save(state_at(1), *trained, Config())
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="1 damaged checkpoints"):
        checkpoints.latest(Config())


def test_an_unfinished_write_is_no_checkpoint_and_is_cleared_away(checkpoints: Checkpoints, trained) -> None:
    left = checkpoints.folder / ".unfinished-123"
    (left / "model").mkdir(parents=True)
    assert checkpoints.latest(Config()) is None
    checkpoints.save(state_at(1), *trained, Config())
    assert not left.exists()


def test_another_experiment_is_refused_with_every_difference(checkpoints: Checkpoints, trained) -> None:
    checkpoints.save(state_at(1), *trained, Config())
    other = Config.model_validate({"rollout": {"n": 4}, "actor": {"optim": {"lr": 1.0}}, "trainer": {"seed": 5}})
    with pytest.raises(CheckpointError) as caught:
        checkpoints.latest(other)
    for text in (
        "rollout.n: got 4; need 8",
        "actor.optim.lr: got 1.0; need 0.0001",
        "trainer.seed: got 5; need 0",
    ):
        assert text in str(caught.value)


def test_what_helps_a_run_on_may_change(checkpoints: Checkpoints, trained, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints.save(state_at(1), *trained, Config())
    changes = {
        "trainer": {"total_training_steps": 99, "save_freq": 1, "num_threads": 3},
        "algorithm": {"filter_groups": {"max_num_gen_batches": 50, "on_exhausted": "train_partial"}},
    }
    assert checkpoints.latest(Config.model_validate(changes)) is not None
    assert "algorithm.filter_groups.max_num_gen_batches: resumed with 50, was 10" in caplog.text
    assert "save_freq" not in caplog.text


def test_lost_seconds_are_known_from_the_note(checkpoints: Checkpoints) -> None:
    """FLOPs and tokens of steps that are done again count once; their time was really spent."""
    saved = Cost(flops=10.0, tokens=5, device_seconds=2.0, evaluation_device_seconds=1.0)
    assert checkpoints.with_lost_seconds(saved) == saved
    checkpoints.note_progress(9, Cost(99.0, 99, 7.5, 9.0, 9, 3.0))
    assert checkpoints.with_lost_seconds(saved) == replace(saved, device_seconds=7.5, evaluation_device_seconds=3.0)
    (checkpoints.folder / "progress.json").write_text("{")
    assert checkpoints.with_lost_seconds(saved) == saved


def test_a_new_run_sets_the_old_one_aside(checkpoints: Checkpoints, trained, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints.save(state_at(30), *trained, Config())
    checkpoints.set_aside()
    assert checkpoints.latest(Config()) is None
    assert (checkpoints.folder / "superseded-1" / "global_step_30" / "state.json").is_file()
    assert "superseded-1" in caplog.text


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, trained) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="default_local_dir"):
        Checkpoints(tmp_path / "file" / "run", 1).save(state_at(1), *trained, Config())


def test_another_format_is_refused(checkpoints: Checkpoints, trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.checkpoint.FORMAT", 99)
    path = checkpoints.save(state_at(1), *trained, Config())
    assert json.loads((path / "state.json").read_text())["format"] == 99
    monkeypatch.undo()
    with pytest.raises(CheckpointError):
        checkpoints.latest(Config())


def test_a_checkpoint_of_before_carried_groups_can_be_used(checkpoints: Checkpoints, trained) -> None:
    """Its state lacks the newer counts, which start at nothing."""
    path = checkpoints.save(replace(state_at(1), lowered=0, account=TokenAccount()), *trained, Config())
    content = json.loads((path / "state.json").read_text())
    for key in ("carried", "lowered", "account"):
        del content["state"][key]
    (path / "state.json").write_text(json.dumps(content))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["state.json"] = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    found = checkpoints.latest(Config())
    assert found is not None
    assert found.state == replace(state_at(1), lowered=0, account=TokenAccount())


def test_the_newest_model_is_found_without_reading_it(checkpoints: Checkpoints, trained) -> None:
    assert trained_model(checkpoints.folder) is None
    for step in (7, 10):
        newest = checkpoints.save(state_at(step), *trained, Config())
    assert trained_model(checkpoints.folder) == newest / "model"
    (newest / "model" / "config.json").unlink()
    assert trained_model(checkpoints.folder) == checkpoints.folder / "global_step_7" / "model"
