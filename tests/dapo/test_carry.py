"""Surplus that is carried to the next update: what it is trained on as, and that no interruption loses it."""

import copy
import logging
from pathlib import Path

import pytest
import torch
from dapo.advantage import group_relative_advantages
from dapo.batch import Problem, Response, RolloutGroup, Score
from dapo.checkpoint import Checkpoints
from dapo.config import Config
from dapo.errors import SamplingExhausted
from dapo.model import Policy
from dapo.plan import describe_plan
from dapo.update import compute_logprobs, make_optimizer, policy_update
from generation import respond
from training import run, weights

CARRY = {"surplus": "carry", "surplus_max_staleness": 2}


def groups_of(policy: Policy, behind: int) -> list[RolloutGroup]:
    """Two groups of real responses of `policy`, with rewards that differ."""
    prompts = [[5, 6], [7, 8, 9]]
    responses = respond(policy, prompts, 4, seed=3, room=6)
    scores = [Score(reward, reward, reward, "") for reward in (1.0, 0.0, 0.0, 1.0)]
    problem = Problem("p", "s", "", "")
    rows = zip(prompts, responses, strict=True)
    return [RolloutGroup(problem, prompt, found, scores, behind=behind) for prompt, found in rows]


def updated(policy: Policy, groups: list[RolloutGroup], config: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient and the metrics of one update."""
    trained = copy.deepcopy(policy)
    batch = group_relative_advantages(groups, normalize=True, overlong_filtering=False)
    result = policy_update(trained, make_optimizer(trained, config.actor.optim), batch, config, 1)
    return torch.cat([p.grad.flatten() for p in trained.model.parameters() if p.grad is not None]), result.metrics


@pytest.mark.parametrize("mini", [None, 1])
def test_the_ratio_of_a_carried_group_is_to_the_policy_that_generated_it(policy: Policy, mini: int | None) -> None:
    config = Config.model_validate({"actor": {"ppo_mini_batch_size": mini, "optim": {"lr": 1e-9}}})
    groups = groups_of(policy, behind=1)
    later = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in later.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    batch = group_relative_advantages(groups, normalize=True, overlong_filtering=False)
    now = torch.cat(compute_logprobs(later, batch.sequences, config))
    then = torch.tensor([value for row in batch.rollout_logprobs for value in row])
    _, metrics = updated(later, groups, config)
    assert metrics["actor/ppo_kl"] == pytest.approx(float((then - now).mean()), rel=1e-3)
    assert abs(metrics["actor/ppo_kl"]) > 1e-3
    for group in groups:
        group.behind = 0
    _, fresh = updated(later, groups, config)
    assert fresh["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_carried_group_of_an_unchanged_policy_gives_the_gradient_of_a_fresh_one(policy: Policy) -> None:
    gradients = [updated(policy, groups_of(policy, behind), Config())[0] for behind in (0, 1)]
    assert float(gradients[0].norm()) > 1e-3
    assert float((gradients[0] - gradients[1]).norm()) < 1e-4 * float(gradients[0].norm())


def test_surplus_is_trained_on_and_saves_rounds(make_config) -> None:
    changes = {"data__gen_batch_size": 8, "data__train_batch_size": 3, "trainer__total_training_steps": 6}
    dropped = run(make_config(**changes))
    carried = run(make_config(**changes, algorithm__filter_groups=CARRY))
    assert carried[-1].cost.tokens < 0.8 * dropped[-1].cost.tokens
    assert sum(step.metrics["filter/groups_carried"] for step in carried[1:]) > 3
    assert all(step.metrics["filter/groups"] == 3 for step in carried[1:])
    idle = [step for step in carried[1:] if step.metrics["filter/rounds"] == 0]
    assert idle, "an update that surplus fills needs no round"
    assert all("reward/acc_mean" not in step.metrics for step in idle), "a mean over nothing is not zero"


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_carried_surplus_survives_a_resume_bit_for_bit(make_config, tmp_path: Path, stop_at: int) -> None:
    changes = {
        "data__gen_batch_size": 8,
        "trainer__total_training_steps": 6,
        "algorithm__filter_groups": CARRY,
    }
    whole = run(make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")))
    parted = make_config(**changes, trainer__default_local_dir=str(tmp_path / "parted"))
    first = run(parted, stop_at=stop_at)
    assert first[-1].metrics["tokens/held"] > 0
    found = Checkpoints(tmp_path / "parted", 2).latest(parted)
    assert found is not None
    assert {group.behind for group in found.state.carried} <= {1, 2}
    second = run(parted)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parted")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert second[-1].cost.tokens == whole[-1].cost.tokens
    for before, after in zip(whole[stop_at + 1 :], second[1:], strict=True):
        kinds = ("filter/", "tokens", "actor/")
        assert [(key, value) for key, value in before.metrics.items() if key.startswith(kinds)] == [
            (key, value) for key, value in after.metrics.items() if key.startswith(kinds)
        ]


def test_good_groups_of_a_run_that_runs_dry_wait_for_its_resume(make_config, tmp_path: Path) -> None:
    changes = {"data__train_batch_size": 16, "trainer__default_local_dir": str(tmp_path / "run")}
    short = {**CARRY, "max_num_gen_batches": 1}
    config = make_config(**changes, data__gen_batch_size=8, algorithm__filter_groups=short)
    with pytest.raises(SamplingExhausted):
        run(config)
    found = Checkpoints(tmp_path / "run", 2).latest(config)
    assert found is not None
    waiting = len(found.state.carried)
    assert waiting > 0
    assert {group.behind for group in found.state.carried} == {0}, "no update came between: still on-policy"
    told = run(make_config(**changes, data__gen_batch_size=8, algorithm__filter_groups=CARRY))
    assert told[1].metrics["filter/groups"] == 16
    assert told[1].metrics["filter/groups_generated"] < 16 + told[1].metrics["filter/groups_filtered"]
    assert told[1].metrics["filter/groups_carried"] == 0


SWITCHES = {
    "drop": {},
    "carry": {"algorithm__filter_groups": CARRY},
    "carry, short": {"algorithm__filter_groups": {"surplus": "carry", "surplus_max_staleness": 1}},
    "relax": {
        "reward__custom_reward_function": "dapo_test_rewards:detailed",
        "algorithm__filter_groups": {
            "metric": "early",
            "statistic": "mean",
            "threshold": 1.2,
            "upper": 9.0,
            "max_num_gen_batches": 2,
            "on_exhausted": "relax",
            "adaptive": {"enable": True},
        },
    },
    "masked": {"reward__overlong_filtering": True},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_all_tokens_are_accounted_for_after_every_update(make_config, tmp_path: Path, name: str) -> None:
    """And after a resume: trained, masked, filtered, surplus, stale and held add up to what was generated."""
    changes = {"data__gen_batch_size": 7, "data__train_batch_size": 3, "trainer__total_training_steps": 6}
    config = make_config(**changes, **SWITCHES[name], trainer__default_local_dir=str(tmp_path / "run"))
    told = run(config, stop_at=3) + run(config)[1:]
    assert [step.step for step in told] == list(range(7))
    for step in told:
        parts = {key.split("/")[1]: value for key, value in step.metrics.items() if key.startswith("tokens_total/")}
        assert parts.pop("evaluation") == step.cost.evaluation_tokens
        assert sum(parts.values()) == step.cost.tokens
        assert all(count >= 0 for count in parts.values())
    expected = {"carry": "held", "carry, short": "stale", "relax": "filtered", "masked": "masked", "drop": "surplus"}
    assert told[-1].metrics[f"tokens_total/{expected[name]}"] > 0 or name == "carry"


def test_a_filter_that_gave_way_stays_so_and_a_resume_knows(make_config, tmp_path: Path) -> None:
    changes = {"data__gen_batch_size": 4, "trainer__total_training_steps": 4, **SWITCHES["relax"]}
    whole = run(make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")))
    config = make_config(**changes, trainer__default_local_dir=str(tmp_path / "run"))
    told = run(config, stop_at=2) + run(config)[1:]
    lowered = [step.metrics["filter/lowered"] for step in told[1:]]
    assert lowered == sorted(lowered)
    assert lowered[1] > 0
    assert lowered == [step.metrics["filter/lowered"] for step in whole[1:]]
    assert sum(step.metrics["filter/groups_relaxed"] for step in told[1:]) > 0
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_endless_sampling_stops_when_the_set_was_drawn_in_vain(make_config, monkeypatch) -> None:
    monkeypatch.setattr("dapo.sampling.LEAST_DRY_RUN", 20)
    config = make_config(
        reward__custom_reward_function="dapo_test_rewards:wrong", algorithm__filter_groups={"max_num_gen_batches": 0}
    )
    with pytest.raises(SamplingExhausted, match="the last 20 groups or more had none to keep, but 0 groups"):
        run(config)


def test_planned_and_real_updates_epochs_and_learning_rate(make_config, caplog: pytest.LogCaptureFixture) -> None:
    """10 prompts, 4 an update, 8 a round: the plan is 2 epochs of updates, whatever the filter costs."""
    caplog.set_level(logging.INFO, "dapo")
    changes = {"data__gen_batch_size": 8, "trainer__total_training_steps": 5}
    told = run(make_config(**changes, actor__optim={"lr": 1e-2, "lr_warmup_steps": 10}))
    last = told[-1].metrics
    assert (last["actor/updates"], last["actor/updates_planned"], last["actor/skipped_updates"]) == (5, 5, 0)
    assert last["data/epochs_planned"] == 2.0
    drawn = sum(step.metrics["filter/groups_generated"] for step in told[1:])
    assert last["data/epoch"] == drawn / 10 > 2.0
    assert last["actor/lr"] == pytest.approx(5e-3)
    assert "plan: 5 updates of 4 prompts x 4 responses, 2.00 epochs of 10 prompts if nothing is filtered" in caplog.text
    assert "done: 5 of 5 planned updates, 0 of them skipped" in caplog.text
    assert f"{drawn / 10:.2f} epochs drawn" in caplog.text


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({}, True),
        ({"actor__ppo_mini_batch_size": 4}, True),
        ({"actor__ppo_mini_batch_size": 2}, False),
        ({"actor__ppo_epochs": 2}, False),
        ({"algorithm__filter_groups": {"surplus": "carry"}}, False),
    ],
)
def test_a_clip_range_that_does_nothing_is_told(make_config, changes: dict[str, object], idle: bool) -> None:
    config = make_config(**changes)
    told = "one optimiser step per update, so that every ratio is 1 and nothing is clipped"
    assert (told in describe_plan(config, 10)) == idle
    # A wide rate moves the policy far, so that a ratio that can leave the range does.
    config = make_config(**changes, actor__clip_ratio_high=1e-6, actor__optim={"lr": 1e-1}, data__gen_batch_size=8)
    clipped = [step.metrics["actor/pg_clipfrac"] for step in run(config)[1:]]
    assert (max(clipped) == 0.0) == idle


def test_skipped_updates_are_planned_and_not_real(make_config) -> None:
    never = {"on_exhausted": "train_partial", "max_num_gen_batches": 1}
    wrong = "dapo_test_rewards:wrong"
    told = run(make_config(reward__custom_reward_function=wrong, algorithm__filter_groups=never))
    assert (told[-1].metrics["actor/updates"], told[-1].metrics["actor/updates_planned"]) == (0, 3)


def test_a_group_comes_back_from_a_checkpoint_as_it_was(policy: Policy, tmp_path: Path) -> None:
    from dapo.checkpoint import RunState

    group = groups_of(policy, behind=2)[0]
    group.scores[0].extra = {"f1": 0.1}
    group.responses[1] = Response([1, 2], [-0.1, float(torch.tensor(-0.3))], False, "é\n")
    state = RunState(step=1, carried=[group], lowered=3)
    Checkpoints(tmp_path, 1).save(state, policy, make_optimizer(policy, Config().actor.optim), Config())
    found = Checkpoints(tmp_path, 1).latest(Config())
    assert found is not None
    assert found.state == state
