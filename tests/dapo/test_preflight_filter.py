"""Checks of the filter's knobs together."""

from typing import Any

from dapo.batch import Fault
from dapo.config import Config
from dapo.preflight import preflight


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
