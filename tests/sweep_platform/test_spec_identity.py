"""When a spec is still the same sweep, and what is said when it isn't."""

import json
from pathlib import Path

import pytest
from sweep_platform.errors import BadInput
from sweep_platform.spec import SweepSpec, load_spec

AIME = Path(__file__).parents[2] / "sweeps" / "aime.yaml"


@pytest.mark.parametrize(
    "override",
    [
        "budget.trials=50",
        "budget.flops=1e18",
        "budget.wall_clock=2h",
        "hardware.name=mine",
        "hardware.cores=64",
    ],
)
def test_a_larger_budget_or_another_machine_goes_on_with_the_sweep(override: str) -> None:
    spec, changed = load_spec(AIME), load_spec(AIME, [override])
    assert changed.identity() == spec.identity()
    assert changed.diff(spec.to_dict()) == []


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=1", "seed: was 0, is 1"),
        ("budget.concurrency=1", "budget.concurrency: was 2, is 1"),
        ("hardware.devices=2", "hardware.devices: was 1, is 2"),
        ("data.train=mine.jsonl", 'data.train: was "arithmetic", is "mine.jsonl"'),
        ("config.actor.grad_clip=0.5", "config.actor.grad_clip: was 1.0, is 0.5"),
        ("sampler=gp", 'sampler.name: was "tpe", is "gp"'),
        ("~search.data.gen_batch_size", "search.data.gen_batch_size.choice: was [8,16,32], is gone"),
        ("search.rollout.n.int=[4,8]", "search.rollout.n.int: was not there, is [4,8]"),
        ("priors=[]", "priors: was"),
    ],
)
def test_what_changes_the_sweep_is_named(override: str, line: str) -> None:
    stored = json.loads(json.dumps(load_spec(AIME).to_dict()))
    changed = load_spec(AIME, [override])
    assert changed.identity() != SweepSpec.from_dict(stored).identity()
    assert any(told.startswith(line) for told in changed.diff(stored)), changed.diff(stored)


def test_cores_matter_where_time_is_measured() -> None:
    timed = "objectives=[{metric: cost/device_seconds, direction: minimize}]"
    changed = load_spec(AIME, [timed, "hardware.cores=64"])
    assert changed.diff(load_spec(AIME, [timed]).to_dict()) == ["hardware.cores: was null, is 64"]
    assert changed.identity() != load_spec(AIME, [timed]).identity()


def test_the_stored_spec_needs_no_file_and_keeps_its_identity(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(AIME.read_text())
    spec = load_spec(own)
    stored = json.dumps(spec.to_dict())
    own.unlink()
    again = SweepSpec.from_dict(json.loads(stored))
    assert again == spec
    assert again.identity() == spec.identity()
    assert again.trial_config({"rollout.n": 4}) == spec.trial_config({"rollout.n": 4})


def test_a_spec_of_an_earlier_version_is_read_without_the_limit_that_is_gone() -> None:
    spec = load_spec(AIME)
    stored = spec.to_dict()
    stored["budget"]["cost"] = 1.5
    assert SweepSpec.from_dict(stored) == spec


def test_a_stored_spec_that_cannot_be_read_is_told() -> None:
    stored = load_spec(AIME).to_dict() | {"sampler": {"name": "cmaes"}, "colour": "red"}
    with pytest.raises(BadInput) as caught:
        SweepSpec.from_dict(stored)
    assert [fault.where for fault in caught.value.faults] == [
        "sweep aime, as it is stored: sampler.name",
        "sweep aime, as it is stored: colour",
    ]
