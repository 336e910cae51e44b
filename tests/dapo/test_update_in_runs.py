"""Settings of the update, seen through whole runs."""

import itertools

import pytest
from dapo.config import Config
from hypothesis import given
from hypothesis import strategies as st
from training import run

LOSSES = [
    pytest.param("gspo", "seq-mean-token-mean", (3e-4, 4e-4), id="gspo"),
    pytest.param("cispo", "token-mean", (0.2, 0.28), id="cispo"),
    pytest.param("geo_mean", "seq-mean-token-mean", (0.4, 0.4), id="geo_mean"),
    pytest.param("vanilla", "seq-mean-token-sum-norm", (0.2, 0.28), id="Dr. GRPO"),
]


@pytest.mark.parametrize(("loss_mode", "agg_mode", "clips"), LOSSES)
def test_every_loss_learns(make_config, loss_mode: str, agg_mode: str, clips: tuple[float, float]) -> None:
    config = make_config(
        trainer__total_training_steps=30,
        data__train_batch_size=8,
        rollout__n=8,
        actor__policy_loss={"loss_mode": loss_mode},
        actor__loss_agg_mode=agg_mode,
        actor__clip_ratio_low=clips[0],
        actor__clip_ratio_high=clips[1],
        actor__ppo_epochs=2,
        algorithm__adv_estimator="rloo",
        algorithm__rollout_correction={"rollout_is": "token"},
        algorithm__filter_groups={"enable": False},
    )
    told = run(config)[1:]
    rewards = [step.metrics["reward/score_mean"] for step in told]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert told[0].metrics["actor/optimizer_steps"] == 2.0
    assert told[0].metrics["rollout/is_weight_mean"] == pytest.approx(1.0, abs=1e-4)


def test_the_batch_grows_over_the_warm_up(make_config) -> None:
    """Eight prompts in four updates; generation asks for no more than each needs."""
    config = make_config(
        trainer__total_training_steps=6,
        data__train_batch_size=8,
        actor__dynamic_bsz_warmup_steps=4,
        algorithm__filter_groups={"enable": False},
    )
    told = run(config)[1:]
    assert [step.metrics["filter/groups"] for step in told] == [2, 4, 6, 8, 8, 8]
    assert [step.metrics["filter/groups_generated"] for step in told] == [2, 4, 6, 8, 8, 8]


@given(st.integers(1, 64), st.integers(0, 30), st.integers(1, 8) | st.none())
def test_the_warm_up_never_shrinks_and_ends_at_the_full_batch(size: int, steps: int, generated: int | None) -> None:
    tree = {
        "data": {"train_batch_size": size, "gen_batch_size": generated},
        "actor": {"dynamic_bsz_warmup_steps": steps},
    }
    config = Config.model_validate(tree)
    sizes = [config.train_batch_size_at(step) for step in range(1, steps + 2)]
    assert all(1 <= one <= other <= size for one, other in itertools.pairwise(sizes))
    assert config.train_batch_size_at(max(steps, 1)) == sizes[-1] == size
    assert config.gen_batch_size_at(1) == (generated or sizes[0])
