"""Replays: exact where a run was recorded, deterministic elsewhere, and resumable."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import pytest
from dapo.batch import StepMetrics
from hearing import heard
from recorded.limits import BASE
from recorded.replay import CHECKPOINT
from recorded.table import TABLE, Run, recorded_runs
from recorded.trainer import Config, train
from sweep_platform.spec.paths import put


def config_of(run: Run, seed: int | None = None, val: str = "arithmetic-aime", **trainer: Any) -> Config:
    tree = BASE.model_dump(mode="json")
    tree["data"]["val"] = val
    for path, value in run.params.items():
        put(tree, path, value)
    tree["trainer"] |= {"total_training_steps": 40, "seed": run.seed if seed is None else seed, **trainer}
    return Config.model_validate(tree)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_recorded_run_is_replayed_as_it_was(number: int) -> None:
    run = recorded_runs()[number]
    steps = heard(train, config_of(run, test_freq=5))
    table = pq.read_table(TABLE).to_pylist()
    rows = [row for row in table if row["run"] == number % len(recorded_runs())]
    assert [step.step for step in steps] == [row["step"] for row in rows] == list(range(41))
    seconds = accumulate((row["device_seconds"] for row in rows), max)
    for step, row, second in zip(steps, rows, seconds, strict=True):
        assert (step.cost.flops, step.cost.tokens, step.cost.device_seconds) == (row["flops"], row["tokens"], second)
        assert step.metrics["perf/peak_memory_gb"] == row["perf/peak_memory_gb"]
        assert step.metrics.get("filter/yield") == row["filter/yield"]
        if step.step in (5, 10, 15, 20, 30, 40):
            assert step.metrics["val/accuracy"] == row["accuracy"]
            assert step.metrics["val/accuracy_se"] == row["accuracy_se"]
    assert [step.step for step in steps if "val/accuracy" in step.metrics] == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert [step.final for step in steps] == [False] * 40 + [True]


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    run = recorded_runs()[0]
    for seed in (0, 11):
        long, short = heard(train, config_of(run, seed)), heard(train, config_of(run, seed, total_training_steps=10))
        assert [step.cost for step in short] == [step.cost for step in long[:11]]
        assert short[-1].final
        assert short[-1].metrics["val/accuracy"] == long[10].metrics["val/accuracy"]


def test_seeds_pick_the_recorded_run_and_others_are_drawn() -> None:
    one, other = recorded_runs()[:2]
    assert one.params == other.params
    assert (one.seed, other.seed) == (0, 1)
    finals = [heard(train, config_of(one, seed))[-1].metrics["val/accuracy"] for seed in (0, 1, 2, 3, 2)]
    assert finals[0] == one.curve["accuracy"][40]
    assert finals[1] == other.curve["accuracy"][40]
    assert len(set(finals)) == 4
    assert finals[2] == finals[4]


def test_other_problems_are_another_draw_about_the_same_mean() -> None:
    run = recorded_runs()[0]
    recorded, held_out = (
        [heard(train, config_of(run, seed, val=val))[-1].metrics["val/accuracy"] for seed in range(12)]
        for val in ("arithmetic-aime", "arithmetic-heldout")
    )
    assert len({*recorded, *held_out}) == 24
    assert mean(held_out) == pytest.approx(mean(recorded), abs=0.03)


def test_the_first_report_is_before_the_first_update_unless_it_is_not_wanted() -> None:
    run = recorded_runs()[0]
    assert heard(train, config_of(run))[0].step == 0
    assert heard(train, config_of(run, val_before_train=False))[0].step == 1


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("stop_at", [0, 3, 7, 20])
def test_a_run_that_was_stopped_goes_on_the_same(tmp_path: Path, seed: int, stop_at: int) -> None:
    run = recorded_runs()[0]
    whole = heard(train, config_of(run, seed))
    config = config_of(run, seed, default_local_dir=str(tmp_path / "run"))
    first = heard(train, config, stop_at)
    rest = heard(train, config)
    assert first[-1] == rest[0] == whole[stop_at]
    assert first + rest[1:] == whole
    assert heard(train, config) == whole[-1:], "a finished run tells its end again"
    assert len(heard(train, config_of(run, seed, default_local_dir=str(tmp_path / "run"), resume_mode="disable"))) == 41


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    run = recorded_runs()[0]
    config = config_of(run, 5, default_local_dir=str(tmp_path), save_freq=4)

    class Killed(Exception):
        pass

    def killing(step: StepMetrics) -> bool:
        if step.step == 10:
            raise Killed
        return True

    with pytest.raises(Killed):
        train(config, killing)
    assert (tmp_path / CHECKPOINT).read_text() == "8"
    assert heard(train, config) == heard(train, config_of(run, 5))[8:]
