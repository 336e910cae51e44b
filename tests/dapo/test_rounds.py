"""Generation rounds: pilots, and what is committed after them."""

from pathlib import Path

import pytest
import torch
from dapo.filter_rule import FilterRule
from dapo.rounds import scored_round
from dapo.run import Run
from dapo.sampling import RoundRequest, tokens_of
from safetensors.torch import load_file
from training import run

SPREAD = FilterRule()
MEAN = FilterRule("mean", threshold=0.3, upper=1.5)


@pytest.mark.parametrize("rule", [SPREAD, MEAN])
def test_a_group_is_completed_if_its_pilot_passes(make_config, rule: FilterRule) -> None:
    fresh = Run.start(make_config(rollout__n=5, rollout__pilot_n=2))
    groups = scored_round(fresh, RoundRequest(10, 10, rule))
    passing = [rule.keeps([score.acc for score in group.scores[:2]]) for group in groups]
    assert 0 < sum(passing) < 10
    assert [len(group.responses) for group in groups] == [5 if passes else 2 for passes in passing]
    assert [group.pilot_only for group in groups] == [not passes for passes in passing]
    assert all(len(group.scores) == len(group.responses) for group in groups)
    assert fresh.meter.cost.tokens == sum(map(tokens_of, groups)), "pilots are paid for"


@pytest.mark.parametrize(("surplus", "completed"), [("drop", 2), ("carry", None)])
def test_no_more_is_completed_than_is_missing_unless_it_is_carried(
    make_config, surplus: str, completed: int | None
) -> None:
    fresh = Run.start(make_config(rollout__pilot_n=2, algorithm__filter_groups={"surplus": surplus}))
    groups = scored_round(fresh, RoundRequest(10, 2, SPREAD))
    passing = sum(SPREAD.keeps([score.acc for score in group.scores[:2]]) for group in groups)
    assert passing > 2
    assert sum(not group.pilot_only for group in groups) == (completed or passing)


def test_the_rest_of_a_group_is_another_sample(make_config) -> None:
    fresh = Run.start(make_config(rollout__n=8, rollout__pilot_n=4, data__max_response_length=32))
    groups = [group for group in scored_round(fresh, RoundRequest(10, 10, SPREAD)) if not group.pilot_only]
    texts = [[response.token_ids for response in group.responses] for group in groups]
    assert all(rows[:4] != rows[4:] for rows in texts)


def test_without_a_pilot_all_responses_come_at_once(make_config) -> None:
    fresh = Run.start(make_config())
    groups = scored_round(fresh, RoundRequest(4, 1, SPREAD))
    assert [len(group.responses) for group in groups] == [4] * 4
    assert not any(group.pilot_only for group in groups)


SWITCHES = {
    "pilot": {"rollout__pilot_n": 2},
    "pilot, carry": {"rollout__pilot_n": 2, "algorithm__filter_groups": {"surplus": "carry"}},
    "pilot, mean": {
        "rollout__pilot_n": 3,
        "algorithm__filter_groups": {"statistic": "mean", "threshold": 0.5, "max_num_gen_batches": 20},
    },
    "all": {
        "rollout__pilot_n": 2,
        "data__selection": {"strategy": "thompson"},
        "algorithm__filter_groups": {"surplus": "carry", "surplus_max_staleness": 2, "max_num_gen_batches": 0},
    },
}


@pytest.mark.parametrize("name", SWITCHES)
def test_all_tokens_are_accounted_for_and_a_resume_is_exact(make_config, tmp_path: Path, name: str) -> None:
    changes = {"data__gen_batch_size": 6, "trainer__total_training_steps": 5, **SWITCHES[name]}
    whole = run(make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")))
    config = make_config(**changes, trainer__default_local_dir=str(tmp_path / "parted"))
    told = run(config, stop_at=2) + run(config)[1:]
    for step in told:
        parts = {key: value for key, value in step.metrics.items() if key.startswith("tokens_total/")}
        assert parts.pop("tokens_total/evaluation") == step.cost.evaluation_tokens
        assert sum(parts.values()) == step.cost.tokens
    assert told[-1].metrics["tokens_total/pilot"] > 0
    assert sum(step.metrics["tokens/pilot"] for step in told[1:]) == told[-1].metrics["tokens_total/pilot"]
    for step in told[1:]:
        groups = step.metrics["filter/groups_generated"] + step.metrics["filter/groups_carried"]
        ends = sum(step.metrics[f"filter/groups_{end}"] for end in ("filtered", "surplus", "held"))
        assert groups == step.metrics["filter/groups"] + ends
        assert step.metrics["filter/groups"] == 4
    assert (told[-1].cost.tokens, told[-1].cost.flops) == (whole[-1].cost.tokens, whole[-1].cost.flops)
    one, other = (
        load_file(tmp_path / side / "global_step_5" / "model" / "model.safetensors") for side in ("whole", "parted")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_pilots_generate_less(make_config) -> None:
    changes = {"rollout__n": 8, "data__gen_batch_size": 8, "trainer__total_training_steps": 3}
    plain, pilot = run(make_config(**changes)), run(make_config(**changes, rollout__pilot_n=2))
    assert pilot[-1].cost.tokens < 0.8 * plain[-1].cost.tokens
    assert [step.metrics["filter/groups"] for step in pilot[1:]] == [4, 4, 4]
