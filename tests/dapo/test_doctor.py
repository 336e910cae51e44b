"""What the doctor says of runs whose metrics are known: each fault by its figures, and nothing of healthy ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
from dapo import doctor
from dapo.config import Config
from dapo.doctor import Finding, examine
from dapo.expected_rounds import mixed_share, mixed_share_between
from dapo.health import LIMITS
from hypothesis import given
from hypothesis import strategies as st
from nested import put_all

HEALTHY = {
    "filter/yield": 0.6,
    "filter/all_right": 0.2,
    "filter/all_wrong": 0.2,
    "filter/exhausted": 0.0,
    "filter/mixed_at_2": 0.3,
    "filter/mixed_at_4": 0.45,
    "filter/mixed_at_8": 0.6,
    "reward/acc_mean": 0.5,
    "reward/failed_share": 0.0,
    "response_length/clip_ratio": 0.02,
    "actor/entropy": 0.4,
    "actor/ppo_kl": 0.01,
    "actor/pg_clipfrac": 0.01,
    "actor/optimizer_steps": 1.0,
    "actor/updates_planned": 20.0,
    "actor/updates": 20.0,
    "rollout/logprob_diff_mean": 1e-6,
    "perf/idle_share": 0.05,
    "timing_s/step": 1.0,
    "timing_s/reward": 0.01,
    "data/rows_per_problem": 1.0,
}


def config(**values: Any) -> Config:
    return Config.model_validate(put_all({}, values))


def history(*changes: Mapping[str, float], steps: int = 9, **always: float) -> list[dict[str, float]]:
    """So many steps, the `changes` spread evenly over them; names with `__` for `/`."""
    told = {name.replace("__", "/"): value for name, value in always.items()}
    spread = changes or ({},)
    return [{**HEALTHY, **told, **spread[step * len(spread) // steps]} for step in range(steps)]


def names(found: list[Finding]) -> list[str]:
    return [finding.name for finding in found]


def test_a_healthy_run_has_nothing() -> None:
    evaluations = [{"val/accuracy": 0.3, "val/accuracy_se": 0.02}, {"val/accuracy": 0.6, "val/accuracy_se": 0.02}]
    assert examine(config(), history(*evaluations)) == []


def test_of_no_metrics_nothing_is_said() -> None:
    assert examine(config(), []) == examine(config(), [{}] * 9) == []


LENIENT = config(reward__also=("math_dapo",))
PADDED = config(actor__use_dynamic_bsz=False, actor__ppo_micro_batch_size_per_gpu=4, model__use_remove_padding=False)


@pytest.mark.parametrize(
    ("name", "of", "told"),
    [
        ("grading fails", config(), history(reward__failed_share=0.2)),
        (
            "reward is hacked",
            LENIENT,
            history({"reward/also/math_dapo/acc_mean": 0.48}, {"reward/also/math_dapo/acc_mean": 0.2}),
        ),
        ("filter keeps groups without a signal", config(), history(filter__yield=0.9, filter__mixed_at_8=0.4)),
        ("filter drops groups with a signal", config(), history(filter__yield=0.15, filter__mixed_at_8=0.6)),
        ("responses are cut", config(), history(response_length__clip_ratio=0.4)),
        ("updates are skipped", config(), history({"actor/optimizer_steps": 0.0}, {}, {})),
        ("data repeats itself", config(), history(data__rows_per_problem=103.0)),
        ("learning rate's horizon", config(actor__optim__lr_warmup_steps=10), history()),
        ("updates too large", config(), history(actor__ppo_kl=0.3)),
        (
            "accuracy falls",
            config(),
            history({"reward/acc_mean": 0.5}, {"filter/yield": 0.1, "reward/acc_mean": 0.1}, {"reward/acc_mean": 0.02}),
        ),
        (
            "entropy collapses",
            config(),
            history({"actor/entropy": 0.5}, {"actor/entropy": 0.2}, {"actor/entropy": 0.04}),
        ),
        ("generation and trainer disagree", config(), history(rollout__logprob_diff_mean=0.2)),
        ("devices idle", config(), history(perf__idle_share=0.5)),
        ("devices idle", config(), history({"perf/idle_share": 0.02}, {"perf/idle_share": 0.5})),
        (
            "evaluation is noise",
            config(),
            history({"val/accuracy": 0.5, "val/accuracy_se": 0.05}, {"val/accuracy": 0.55, "val/accuracy_se": 0.05}),
        ),
    ],
)
def test_each_fault_is_found_and_no_other(name: str, of: Config, told: list[dict[str, float]]) -> None:
    (finding,) = examine(of, told)
    assert finding.name == name
    assert any(character.isdigit() for character in finding.evidence) and all(finding.advice)


def starving(rate: float, of_two: float, **more: float) -> list[dict[str, float]]:
    kept = mixed_share_between(rate, of_two, 8)
    return history(
        filter__yield=kept,
        filter__mixed_at_2=of_two,
        filter__mixed_at_8=kept,
        reward__acc_mean=rate,
        **more,
    )


def test_rare_right_answers_ask_for_a_larger_group_and_say_what_that_brings() -> None:
    """NVIDIA-NeMo/RL PR#3154: a pass rate of 3 %, 8 responses hit the cap; 16 cured it."""
    of = config(data__gen_batch_size=16, algorithm__filter_groups__max_num_gen_batches=10)
    told = starving(0.03, 2 * 0.03 * 0.97, filter__all_wrong=0.78, filter__all_right=0.0, filter__exhausted=0.3)
    (finding,) = examine(of, told)
    assert finding.name == "group too small" and finding.advice[0] == "raise rollout.n to 16"
    assert f"{2 / mixed_share(0.03, 8):.1f} with n = 8, {2 / mixed_share(0.03, 16):.1f} with n = 16" in finding.evidence
    assert "30% of the updates ran out of rounds" in finding.evidence


def test_problems_that_are_never_solved_are_too_hard_and_those_always_solved_too_easy() -> None:
    hard = starving(0.02, 0.001, filter__all_wrong=0.97, filter__all_right=0.01)
    easy = starving(0.98, 0.001, filter__all_wrong=0.01, filter__all_right=0.97)
    assert names(examine(config(), hard)) == ["data too hard"]
    assert names(examine(config(), easy)) == ["data too easy"]


def test_data_is_not_too_hard_where_training_broke_the_policy() -> None:
    fallen = [{"reward/acc_mean": 0.4}, *({"filter/yield": 0.05, "reward/acc_mean": 0.01} for _ in range(4))]
    assert names(examine(config(), history(*fallen))) == ["accuracy falls"]


def test_without_the_filter_nothing_is_said_of_it() -> None:
    of = config(algorithm__filter_groups={"enable": False})
    assert examine(of, history(filter__yield=0.05, filter__all_wrong=0.9)) == []


def test_a_narrow_band_of_means_is_what_drops_groups() -> None:
    rule = {"statistic": "mean", "threshold": 0.45, "upper": 0.55}
    (finding,) = examine(config(algorithm__filter_groups=rule), history(filter__yield=0.1))
    assert finding.name == "filter drops groups with a signal" and "0.45" in finding.advice[0]


def test_what_spoils_the_reward_comes_first() -> None:
    told = history(
        {"actor/entropy": 0.5}, {"actor/entropy": 0.001}, reward__failed_share=0.5, data__rows_per_problem=2.0
    )
    assert names(examine(config(), told)) == ["grading fails", "data repeats itself", "entropy collapses"]


def test_padding_is_named_before_other_reasons_to_idle() -> None:
    (finding,) = examine(PADDED, history(perf__idle_share=0.6))
    assert finding.advice[:2] == ("set model.use_remove_padding: true", "set actor.use_dynamic_bsz: true")


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20),
    st.integers(2, 64),
)
def test_the_mixed_share_lies_between_those_of_equal_and_of_hopeless_problems(rates: list[float], n: int) -> None:
    rate = sum(rates) / len(rates)
    of_two = sum(2 * p * (1 - p) for p in rates) / len(rates)
    found = mixed_share_between(rate, of_two, n)
    assert -1e-9 <= found <= mixed_share(rate, n) + 1e-9
    assert found >= mixed_share_between(rate, of_two, 2) - 1e-9


@pytest.mark.parametrize("n", [2, 4, 16])
def test_the_mixed_share_of_pairs_is_what_was_measured_and_of_beta_rates_what_beta_says(n: int) -> None:
    """With pass rates that are uniform, E[p^n] = 1 / (n + 1)."""
    assert mixed_share_between(0.5, 1 / 3, n) == pytest.approx(1 - 2 / (n + 1))
    assert mixed_share_between(0.2, 0.1, 2) == pytest.approx(0.1)


def test_the_keys_that_advice_names_are_the_configs() -> None:
    text = inspect.getsource(doctor).replace("trainer.log", "")
    sections = "|".join(Config.model_fields)
    named = set(re.findall(rf"\b(?:{sections})(?:\.[a-z_]+)+", text))
    paths = Config().flat()
    known = {path.rsplit(".", cut)[0] for path in paths for cut in range(path.count(".") + 1)} | set(paths)
    assert len(named) > 20 and named <= known


def test_limits_are_those_of_the_health_of_a_step() -> None:
    at = history(response_length__clip_ratio=LIMITS.truncated, reward__failed_share=LIMITS.failed)
    assert examine(config(), at) == []
