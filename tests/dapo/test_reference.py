"""The frozen reference: the KL in the reward, and runs that measure from where they started."""

import copy
from pathlib import Path

import pytest
import torch
from dapo.filter_rule import FilterRule, metric_value
from dapo.model import response_logprobs
from dapo.reference import penalise_divergence
from dapo.run import Run
from training import run, weights

BOTH = {"actor__use_kl_loss": True, "algorithm__use_kl_in_reward": True}


def test_the_penalty_is_the_sum_over_the_response(policy, make_config, make_group) -> None:
    """KL 0 to itself; to another policy beta times the sum of log-ratios; only `seq_final_reward` shows it."""
    group = make_group([1.0] * 3, lengths=[2, 5, 3])
    config = make_config(algorithm__use_kl_in_reward=True, algorithm__kl_ctrl={"kl_coef": 0.5})
    segments = penalise_divergence([group], policy, policy, config)
    assert [score.kl_penalty for score in group.scores] == [0.0] * 3
    assert segments == [(0, 5), (0, 8), (0, 6)]
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.model.head_weight.mul_(1.5)
    penalise_divergence([group], policy, other, config)
    for score, response in zip(group.scores, group.responses, strict=True):
        with torch.no_grad():
            ours, theirs = (
                response_logprobs(model, [(group.prompt_ids, response.token_ids)], 1.0)[0]
                for model in (policy.model, other.model)
            )
        assert score.kl_penalty == pytest.approx(0.5 * float((ours - theirs).sum()), rel=1e-4)
        assert score.seq_final_reward == pytest.approx(1.0 - score.kl_penalty)
        assert (score.acc, score.score, score.seq_reward) == (1.0, 1.0, 1.0)
    rule = FilterRule()
    kept = {
        metric: rule.keeps([metric_value(score, metric) for score in group.scores])
        for metric in ("acc", "score", "seq_reward", "seq_final_reward")
    }
    assert kept == {"acc": False, "score": False, "seq_reward": False, "seq_final_reward": True}


def test_the_reference_is_loaded_only_where_it_is_read(make_config) -> None:
    assert Run.start(make_config()).reference is None
    for switch in BOTH:
        reference = Run.start(make_config(**{switch: True})).reference
        assert reference is not None
        assert not any(parameter.requires_grad for parameter in reference.model.parameters())


def test_costs_of_the_reference_are_counted(make_config) -> None:
    """Tokens of the first round are the same; the reference's passes come on top of what they cost otherwise."""
    plain = run(make_config(trainer__total_training_steps=1))[-1]
    loss = run(make_config(trainer__total_training_steps=1, actor__use_kl_loss=True))[-1]
    reward = run(make_config(trainer__total_training_steps=1, algorithm__use_kl_in_reward=True))[-1]
    again = run(make_config(trainer__total_training_steps=1, model__enable_gradient_checkpointing=True))[-1]
    assert plain.cost.tokens == loss.cost.tokens == reward.cost.tokens == again.cost.tokens
    assert plain.cost.flops < loss.cost.flops == again.cost.flops
    # Two passes over all groups that were generated, where the loss's one is over the batch alone.
    assert reward.cost.flops - plain.cost.flops >= 2 * (loss.cost.flops - plain.cost.flops) * (1 - 1e-9)
    assert reward.metrics["timing_s/ref"] > 0.0
    assert "timing_s/ref" not in plain.metrics


def test_distance_is_measured_from_the_start_of_the_run_also_after_a_resume(make_config, tmp_path: Path) -> None:
    """At first there is none; a resumed run has the weights, and the distance, of one that wasn't stopped."""
    changes = {**BOTH, "trainer__total_training_steps": 4, "trainer__save_freq": 1, "actor__kl_loss_coef": 0.1}
    whole = make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole"))
    told = run(whole)
    assert told[1].metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert "reward/kl_penalty_mean" not in told[1].metrics
    assert told[4].metrics["actor/kl_loss"] > 1e-6
    assert told[4].metrics["reward/kl_penalty_mean"] != 0.0
    stopped = make_config(**changes, trainer__default_local_dir=str(tmp_path / "stopped"))
    run(stopped, stop_at=2)
    last = run(stopped)[-1]
    assert last.metrics["actor/kl_loss"] == told[-1].metrics["actor/kl_loss"]
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(one[name], other[name]) for name in one)
