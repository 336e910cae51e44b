"""What the simulator refuses: whatever its table can't tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hearing import heard
from recorded.limits import BASE, METRICS, NAMED, RANGES, NotRecorded, knobs, unrecorded
from recorded.table import recorded_runs
from recorded.trainer import Config, preflight, train, unreported
from sweep_platform.spec import load_spec
from sweep_platform.spec.paths import put

SWEEP = Path(__file__).parents[2] / "sweeps" / "aime.yaml"
FILTER = "algorithm.filter_groups"


def changed(**values: Any) -> Config:
    """The recorded base with other values, by paths with `__` for each dot."""
    tree = BASE.model_dump(mode="json")
    for path, value in values.items():
        put(tree, path.replace("__", "."), value)
    return Config.model_validate(tree)


def test_the_base_and_the_ranges_are_those_of_the_default_sweep() -> None:
    spec = load_spec(SWEEP, ())
    ours = {path: value for path, value in BASE.flat().items() if not path.startswith("trainer.")}
    theirs = Config.model_validate(spec.base).flat()
    assert json.dumps(ours) == json.dumps({path: theirs[path] for path in ours})
    for path, names in NAMED.items():
        assert spec.search[path].samples() == names
    for path, (low, high) in RANGES.items():
        values = spec.search[path].samples()
        assert (min(values), max(values)) == (low, high)


def test_all_that_was_recorded_lies_within() -> None:
    for run in recorded_runs():
        tree = BASE.model_dump(mode="json")
        for path, value in run.params.items():
            put(tree, path, value)
        config = Config.model_validate(tree)
        assert knobs(config) == run.params
        assert preflight(config) == []


@pytest.mark.parametrize(
    ("values", "key", "got", "need"),
    [
        ({"model__path": "smollm2-135m"}, "model.path", "'smollm2-135m'", "'tiny'"),
        ({"actor__optim__lr": 1e-3}, "actor.optim.lr", "0.001", "0.0001"),
        ({"rollout__n": 16}, "rollout.n", "16", "8"),
        ({"actor__clip_ratio_high": 0.5}, "actor.clip_ratio_high", "0.5", "from 0.2 to 0.4"),
        ({"data__train_batch_size": 64}, "data.train_batch_size", "64", "from 8 to 32"),
        ({"algorithm__filter_groups__max_num_gen_batches": 0}, f"{FILTER}.max_num_gen_batches", "0", "from 1 to 20"),
        ({"trainer__total_training_steps": 41}, "trainer.total_training_steps", "41", "at most 40 updates"),
        ({"trainer__total_epochs": 1, "trainer__total_training_steps": None}, "trainer.total_epochs", "1", "null"),
        ({"data__gen_batch_size": 8, f"{FILTER}.max_num_gen_batches": 3}, f"{FILTER}.max_num_gen_batches", "3", "fill"),
        ({"actor__clip_ratio_low": 0.3, "actor__clip_ratio_high": 0.2}, "actor.clip_ratio_low", "0.3", "at most"),
        ({"rollout__tensor_model_parallel_size": 2}, "rollout.tensor_model_parallel_size", "2", "1 device"),
    ],
)
def test_what_was_never_recorded_is_refused(values: dict[str, Any], key: str, got: str, need: str) -> None:
    faults = [fault for fault in preflight(changed(**values)) if fault.key == key]
    assert len(faults) == 1
    assert faults[0].got.startswith(got)
    assert need in faults[0].need
    assert faults[0].do


def test_only_the_recorded_problems_and_those_held_out_are_evaluated_on() -> None:
    (fault,) = unrecorded(changed(data__val="mine.jsonl"))
    assert (fault.key, fault.got) == ("data.val", "'mine.jsonl'")
    assert fault.need.startswith("one of arithmetic-aime, arithmetic-heldout")
    assert list(unrecorded(changed(data__val="arithmetic-heldout"))) == []


def test_all_faults_are_told_at_once_and_training_refuses_them_too() -> None:
    config = changed(actor__optim__lr=1e-3, rollout__n=16, trainer__total_training_steps=50)
    assert [fault.key for fault in preflight(config)] == [
        "actor.optim.lr", "rollout.n", "trainer.total_training_steps"
    ]  # fmt: skip
    with pytest.raises(NotRecorded, match="actor.optim.lr: got 0.001; need 0.0001") as caught:
        train(config, lambda step: True)
    assert len(caught.value.faults) == 3


def test_metrics_that_were_not_recorded_are_told() -> None:
    told = unreported(changed(), ["val/accuracy", "cost/tokens", "perf/throughput", "val/pass_at_4"])
    assert [fault.key for fault in told] == ["perf/throughput", "val/pass_at_4"]
    reported: set[str] = set()
    for at in heard(train, changed(trainer__total_training_steps=2)):
        reported |= at.metrics.keys()
    assert reported | {"cost/flops", "cost/tokens", "cost/device_seconds"} == set(METRICS)


def test_what_changes_no_run_is_free() -> None:
    assert (
        preflight(changed(trainer__seed=9, trainer__test_at=[0.5], trainer__save_freq=3, trainer__num_threads=2)) == []
    )
