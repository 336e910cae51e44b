"""`trainer.total_epochs`: the number of updates follows from the data."""

from pathlib import Path

import pytest
from dapo.config import Config
from dapo.errors import CheckpointError
from dapo.plan import describe_plan
from dapo.preflight import preflight
from pydantic import ValidationError
from training import run


def planned(prompts: int, *, epochs: int | None, batch: int = 32, warmup: int = 0, steps: int | None = None) -> int:
    config = Config.model_validate(
        {
            "data": {"train_batch_size": batch},
            "actor": {"dynamic_bsz_warmup_steps": warmup},
            "trainer": {"total_epochs": epochs, "total_training_steps": steps},
        }
    )
    return config.planned_updates(prompts)


@pytest.mark.parametrize(
    ("prompts", "epochs", "batch", "expected"),
    [
        (100, 2, 4, 50),
        (10, 1, 4, 2),  # as in verl, an update that would not be full is left out
        (10, 2, 4, 5),  # what the first epoch leaves over starts the second's first batch
        (10, 1, 32, 1),  # a set smaller than a batch is drawn several times
        (1_790_000, 3, 512, 10_488),
    ],
)
def test_updates_are_the_full_batches_in_the_epochs(prompts: int, epochs: int, batch: int, expected: int) -> None:
    assert planned(prompts, epochs=epochs, batch=batch) == expected


@pytest.mark.parametrize("warmup", [0, 1, 3, 5, 50])
@pytest.mark.parametrize("prompts", [1, 9, 30, 77])
def test_a_growing_batch_takes_more_updates_for_the_same_prompts(prompts: int, warmup: int) -> None:
    """As many as add up to no more than the set, and one more would."""
    config = Config.model_validate(
        {
            "data": {"train_batch_size": 8},
            "actor": {"dynamic_bsz_warmup_steps": warmup},
            "trainer": {"total_epochs": 1},
        }
    )
    updates = config.planned_updates(prompts)
    drawn = [sum(map(config.train_batch_size_at, range(1, count + 1))) for count in (updates, updates + 1)]
    assert drawn[0] <= prompts < drawn[1] or (updates == 1 and prompts < drawn[0])


def test_steps_are_as_they_were() -> None:
    assert planned(7, epochs=None, steps=12) == 12
    assert planned(7, epochs=None) == Config().planned_updates(7) == Config().trainer.total_training_steps == 30


def test_one_of_both() -> None:
    with pytest.raises(ValidationError, match="one length, where total_training_steps: 3 and total_epochs: 2 are two"):
        planned(7, epochs=2, steps=3)
    whole = Config.model_validate({"trainer": {"total_epochs": 2}})
    assert whole.trainer.total_training_steps is None
    assert Config.model_validate(whole.model_dump(mode="json")) == whole


def test_a_run_of_two_epochs(make_config, tmp_path: Path) -> None:
    """Ten prompts, batches of four, about half of the groups filtered: five updates draw more than two epochs."""
    folder = str(tmp_path / "run")
    length = {"trainer__total_training_steps": None, "trainer__total_epochs": 2, "trainer__default_local_dir": folder}
    config = make_config(**length)
    assert describe_plan(config, 10).startswith("plan: 5 updates of 4 prompts x 4 responses, 2.00 epochs of 10 prompts")
    told = run(config)
    assert [(step.step, step.total_steps, step.final) for step in told] == [(n, 5, n == 5) for n in range(6)]
    last = told[-1].metrics
    assert (last["actor/updates_planned"], last["data/epochs_planned"]) == (5.0, 2.0)
    assert last["data/epoch"] > 2.0
    longer = run(make_config(**length | {"trainer__total_epochs": 3}))
    assert [(step.step, step.total_steps) for step in longer] == [(5, 7), (6, 7), (7, 7)]
    with pytest.raises(CheckpointError, match=r"trainer.total_epochs: got 2 updates; need at least 7"):
        run(make_config(**length | {"trainer__total_epochs": 1}))


@pytest.mark.parametrize(("epochs", "clean"), [(1, False), (2, True)])
def test_a_batch_that_is_never_whole_is_told_before_the_run(train_file: Path, epochs: int, clean: bool) -> None:
    config = Config.model_validate(
        {
            "data": {"train": str(train_file), "train_batch_size": 4},
            "actor": {"dynamic_bsz_warmup_steps": 5},
            "trainer": {"total_epochs": epochs},
        }
    )
    faults = [fault.key for fault in preflight(config)]
    assert faults == ([] if clean else ["actor.dynamic_bsz_warmup_steps"])
