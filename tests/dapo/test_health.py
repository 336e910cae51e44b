import logging
import math

import pytest
from dapo.health import Health, Limits, diagnose
from dapo.train import train

HEALTHY = {
    "actor/optimizer_steps": 1.0,
    "actor/entropy": 0.1,
    "actor/ppo_kl": 0.001,
    "actor/pg_clipfrac": 0.01,
    "rollout/logprob_diff_mean": 1e-4,
    "filter/yield": 0.7,
    "filter/exhausted": 0.0,
    "filter/groups": 32.0,
    "filter/rounds": 2.0,
    "filter/all_right": 0.2,
    "filter/all_wrong": 0.1,
    "response_length/clip_ratio": 0.01,
    "reward/failed_share": 0.0,
    "reward/also/math_verify/agreement": 0.99,
    "reward/also/math_verify/acc_mean": 0.5,
}
ILL = {
    Health.NO_UPDATE: ({"actor/optimizer_steps": 0.0}, "no update (no optimiser step)"),
    Health.GRADER_FAILS: ({"reward/failed_share": 0.5}, "grader fails (50% of responses)"),
    Health.FILTER_STARVES: ({"filter/yield": 0.04}, "filter starves (4% of groups kept)"),
    Health.ENTROPY_COLLAPSE: ({"actor/entropy": 0.002}, "entropy collapse (0.0020 nats a token)"),
    Health.ROLLOUT_MISMATCH: ({"rollout/logprob_diff_mean": 0.2}, "rollout mismatch (0.200 nats a token)"),
    Health.UPDATE_TOO_LARGE: ({"actor/pg_clipfrac": 0.4}, "update too large (40% of tokens clipped)"),
    Health.TOO_HARD: ({"filter/all_wrong": 0.85}, "too hard (85% of groups all wrong)"),
    Health.TOO_EASY: ({"filter/all_right": 0.85}, "too easy (85% of groups all right)"),
    Health.TRUNCATION_HIGH: ({"response_length/clip_ratio": 0.41}, "truncation high (41% of responses)"),
    Health.GRADERS_DISAGREE: (
        {"reward/also/math_verify/agreement": 0.8},
        "graders disagree (math_verify agrees on 80%)",
    ),
}


@pytest.mark.parametrize(("finding", "changes", "words"), [(finding, *rest) for finding, rest in ILL.items()])
def test_each_illness_is_found_alone(finding: Health, changes: dict[str, float], words: str) -> None:
    verdict = diagnose(HEALTHY | changes)
    assert [found for found, _ in verdict.findings] == [finding]
    assert verdict.words == words
    assert verdict.metrics() == {"health/code": float(finding), "health/findings": 1.0}


def test_every_illness_has_a_case() -> None:
    assert ILL.keys() | {Health.HEALTHY} == set(Health)


def test_healthy() -> None:
    verdict = diagnose(HEALTHY)
    assert verdict.words == "healthy"
    assert verdict.metrics() == {"health/code": 0.0, "health/findings": 0.0}


def test_the_worst_is_told_first_and_nothing_is_left_out() -> None:
    verdict = diagnose(HEALTHY | {name: value for changes, _ in ILL.values() for name, value in changes.items()})
    assert [finding for finding, _ in verdict.findings] == sorted(ILL, reverse=True)
    assert verdict.code is Health.NO_UPDATE
    assert verdict.metrics()["health/findings"] == len(ILL)


def test_other_signs_of_the_same_illness() -> None:
    exhausted = HEALTHY | {"filter/exhausted": 1.0, "filter/groups": 3.0, "filter/rounds": 10.0}
    assert diagnose(exhausted).words == "filter starves (3 groups after 10 rounds)"
    assert diagnose(HEALTHY | {"actor/ppo_kl": 0.5}).words == "update too large (KL 0.500)"


def test_what_is_missing_or_no_number_is_no_finding() -> None:
    assert diagnose({}).code is Health.HEALTHY
    assert diagnose(dict.fromkeys(HEALTHY, math.nan)).code is Health.HEALTHY


def test_limits_are_the_callers() -> None:
    assert diagnose(HEALTHY, Limits(entropy=0.2)).code is Health.ENTROPY_COLLAPSE


def told(config) -> list[dict[str, float]]:
    steps = []
    train(config, lambda step: steps.append(dict(step.metrics)) or True)
    return steps


def test_a_run_reports_its_health_and_what_it_is_made_from(make_config, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        first, *steps = told(make_config())
    assert "health/code" not in first
    for number, metrics in enumerate(steps, 1):
        verdict = diagnose({name: value for name, value in metrics.items() if not name.startswith("health/")})
        assert {name: metrics[name] for name in verdict.metrics()} == verdict.metrics()
        assert f"update {number}: {verdict.words}" in caplog.text
        assert metrics["response_length/p50"] <= metrics["response_length/p90"] <= metrics["response_length/max"]
        assert metrics["filter/mixed_at_2"] <= metrics["filter/mixed_at_4"]


@pytest.mark.parametrize(
    ("function", "finding"),
    [("wrong", Health.NO_UPDATE), ("right", Health.NO_UPDATE), ("moody", Health.GRADER_FAILS)],
)
def test_an_ill_run_says_so(make_config, function: str, finding: Health) -> None:
    reward = {"grader": "custom", "custom_reward_function": f"dapo_test_rewards:{function}"}
    filtering = {"on_exhausted": "train_partial", "max_num_gen_batches": 1, "metric": "acc"}
    if function == "moody":
        filtering = {"enable": False}
    steps = told(
        make_config(
            reward=reward,
            algorithm__filter_groups=filtering,
            trainer__val_before_train=False,
            trainer__total_training_steps=1,
        )
    )
    assert steps[-1]["health/code"] == finding
    assert steps[-1]["health/findings"] >= 1
