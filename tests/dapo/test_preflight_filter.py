"""Checks of the filter's knobs together."""

from typing import Any

import pytest
from dapo.batch import Fault
from dapo.config import Config
from dapo.preflight import preflight
from pydantic import ValidationError


def faults(**tree: Any) -> dict[str, Fault]:
    return {fault.key: fault for fault in preflight(Config.model_validate(tree))}


def test_without_a_filter_none_of_its_knobs_may_be_set() -> None:
    """Off means that every group is trained on; a search over the knobs would be one over nothing."""
    knobs = {"metric": "seq_reward", "statistic": "mean", "threshold": 0.1, "upper": 0.9, "tolerance": 0.1}
    knobs |= {"max_num_gen_batches": 3, "on_exhausted": "relax", "surplus": "carry", "surplus_max_staleness": 2}
    adaptive = {"enable": True, "start": 0.5, "factor": 0.5, "floor": 0.05}
    found = faults(algorithm={"filter_groups": {"enable": False, **knobs, "adaptive": adaptive}})
    key = "algorithm.filter_groups"
    assert set(found) == {f"{key}.{name}" for name in knobs} | {f"{key}.adaptive.{name}" for name in adaptive}
    assert found[f"{key}.metric"].need == "its default with filter_groups.enable: false, which doesn't read it"
    assert faults(algorithm={"filter_groups": {"enable": False}}) == {}


def test_rounds_that_can_never_fill_the_batch_are_refused() -> None:
    tree: dict[str, Any] = {"data": {"train_batch_size": 16, "gen_batch_size": 8}}
    rounds = {"algorithm": {"filter_groups": {"max_num_gen_batches": 1}}}
    key = "algorithm.filter_groups.max_num_gen_batches"
    assert "1 rounds of 8 prompts" in faults(**tree, **rounds)[key].got
    assert faults(**tree, algorithm={"filter_groups": {"max_num_gen_batches": 2}}) == {}
    partial = {"filter_groups": {"max_num_gen_batches": 1, "on_exhausted": "train_partial"}}
    assert faults(**tree, algorithm=partial) == {}


FILTER = "algorithm.filter_groups"


@pytest.mark.parametrize(
    ("tree", "key", "need"),
    [
        ({"rollout": {"top_k": 1}}, "rollout.top_k", "at least 2"),
        ({"algorithm": {"filter_groups": {"tolerance": 1.0}}}, f"{FILTER}.tolerance", "less than 1,"),
        (
            {"algorithm": {"filter_groups": {"metric": "score", "tolerance": 2.0}}, "reward": {"wrong_reward": -1.0}},
            f"{FILTER}.tolerance",
            "less than 2,",
        ),
        (
            {"algorithm": {"filter_groups": {"statistic": "mean", "threshold": 1.0, "upper": 2.0}}},
            f"{FILTER}.threshold",
            "less than 1,",
        ),
        (
            {"algorithm": {"filter_groups": {"statistic": "mean", "threshold": -2.0, "upper": 0.0}}},
            f"{FILTER}.upper",
            "more than 0,",
        ),
        (
            {"algorithm": {"filter_groups": {"on_exhausted": "relax"}}, "rollout": {"pilot_n": 2}},
            "rollout.pilot_n",
            "error or train_partial",
        ),
    ],
)
def test_what_can_never_fill_a_batch_is_refused(tree: dict[str, Any], key: str, need: str) -> None:
    found = faults(**tree)
    assert list(found) == [key]
    assert need in found[key].need


def test_what_just_can_is_not() -> None:
    assert faults(algorithm={"filter_groups": {"tolerance": 0.99}}, rollout={"top_k": 2}) == {}
    scored = {"filter_groups": {"metric": "score", "tolerance": 1.5}}
    assert faults(algorithm=scored, reward={"wrong_reward": -1.0}) == {}
    assert faults(algorithm={"filter_groups": {"statistic": "mean", "threshold": 0.9, "upper": 1.0}}) == {}
    pilots = {"filter_groups": {"on_exhausted": "train_partial"}}
    assert faults(algorithm=pilots, rollout={"pilot_n": 2}) == {}


def test_a_moment_that_never_decays_is_no_config() -> None:
    with pytest.raises(ValidationError, match="less than 1"):
        Config.model_validate({"actor": {"optim": {"betas": [0.9, 1.0]}}})
