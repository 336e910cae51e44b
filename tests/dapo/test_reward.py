import logging
import os
from functools import cache

import pytest
from dapo.batch import Problem, Response
from dapo.config import OverlongBufferConfig, RewardConfig
from dapo.errors import DapoError
from dapo.reward import Scorer, import_reward_function, overlong_penalty
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

PROBLEM = Problem("1", "set", "6 * 7", "42", {"level": 1})


def response(text: str, length: int = 4) -> Response:
    return Response([1] * length, [0.0] * length, True, text)


def custom(name: str, **changes: object) -> Scorer:
    return Scorer(RewardConfig(grader="custom", custom_reward_function=f"dapo_test_rewards:{name}", **changes), 48)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0)],
)
def test_overlong_penalty(length: int, penalty: float) -> None:
    """Eq. 13 with L_max = 20480 and L_cache = 4096: it starts behind 16384 and never falls below -1."""
    buffer = OverlongBufferConfig(enable=True, len=4096)
    assert overlong_penalty(length, 20480, buffer) == pytest.approx(penalty, abs=1e-12)


@given(st.integers(1, 10_000), st.integers(1, 5_000), st.integers(1, 5_000), st.floats(0, 10))
def test_overlong_penalty_is_clamped_and_falls(length: int, limit: int, size: int, factor: float) -> None:
    buffer = OverlongBufferConfig(enable=True, len=size, penalty_factor=factor)
    penalty = overlong_penalty(length, limit, buffer)
    assert -factor <= penalty <= 0.0
    assert overlong_penalty(length + 1, limit, buffer) <= penalty
    assert overlong_penalty(length, limit, OverlongBufferConfig(len=size)) == 0.0


def test_stages() -> None:
    """`acc` and `score` are before shaping, `seq_reward` after."""
    config = RewardConfig(correct_reward=2.0, wrong_reward=-3.0, overlong_buffer={"enable": True, "len": 4})
    scorer = Scorer(config, 10)
    right = scorer.score_all([(PROBLEM, response("Answer: 42", 8))])[0]
    wrong = scorer.score_all([(PROBLEM, response("Answer: 41", 6))])[0]
    assert (right.acc, right.score, right.seq_reward, right.answer) == (1.0, 2.0, 1.5, "42")
    assert (wrong.acc, wrong.score, wrong.seq_reward, wrong.answer) == (0.0, -3.0, -3.0, "41")


def test_a_float_is_enough() -> None:
    score = custom("letters").score_all([(PROBLEM, response("bad"))])[0]
    assert (score.acc, score.score, score.extra, score.failed) == (1.0, 1.0, {}, False)


def test_a_dict_adds_numbers_to_filter_on() -> None:
    score = custom("detailed").score_all([(PROBLEM, response("face"))])[0]
    assert (score.acc, score.score, score.extra, score.answer) == (1.0, 1.0, {"early": 4.0}, "early")


def test_kinds_of_results_may_differ_between_responses() -> None:
    scorer = custom("fragile")
    first, second = (scorer.score_all([(PROBLEM, response(text))])[0] for text in ("int", "a dict"))
    assert (first.acc, first.score, first.extra) == (1.0, 1.0, {})
    assert (second.acc, second.score, second.extra) == (0.0, 0.5, {"f1": 0.25})


@pytest.mark.parametrize("text", ["raise", "nan", "text", "none", "no score"])
def test_a_failing_grader_fails_its_response_only(text: str, make_group, caplog: pytest.LogCaptureFixture) -> None:
    scorer = custom("fragile", wrong_reward=-0.5)
    group = make_group([0.0, 0.0, 0.0])
    for item, content in zip(group.responses, [text, "int", text], strict=True):
        item.text = content
    with caplog.at_level(logging.WARNING):
        scorer.score([group])
    assert [(score.acc, score.score, score.failed) for score in group.scores] == [
        (0.0, -0.5, True),
        (1.0, 1.0, False),
        (0.0, -0.5, True),
    ]
    assert scorer.failures == 2
    assert len(caplog.records) == 1
    assert "problem p" in caplog.text


def test_without_acc_right_means_the_correct_reward() -> None:
    assert custom("fragile", correct_reward=2.0).score_all([(PROBLEM, response("int"))])[0].acc == 0.0


@pytest.mark.parametrize("text", ["sleep", "compute", "die", "leave"])
def test_a_reward_function_that_hangs_or_dies_fails_its_response_only(
    text: str, make_group, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = custom("stubborn", timeout_s=1.0)
    group = make_group([0.0, 0.0, 0.0])
    for item, content in zip(group.responses, ["fine", text, "fine"], strict=True):
        item.text = content
    with caplog.at_level(logging.WARNING):
        scorer.score([group])
    assert [score.failed for score in group.scores] == [False, True, False]
    assert scorer.failures == 1
    assert "the reward function failed on problem p" in caplog.text
    scorer.close()


def test_each_kind_of_failure_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    scorer = custom("fragile")
    with caplog.at_level(logging.WARNING):
        for text in ("raise", "nan", "raise", "nan", "text"):
            scorer.score_all([(PROBLEM, response(text))])[0]
    assert scorer.failures == 5
    assert [record.getMessage().split("(")[1].split(":")[0] for record in caplog.records] == ["KeyError", "BadReward"]


def test_a_function_may_run_in_the_trainers_process() -> None:
    here = custom("counting", timeout_s=None).score_all([(PROBLEM, response(""))])[0]
    elsewhere = custom("counting").score_all([(PROBLEM, response(""))])[0]
    assert here.extra["process"] == os.getpid() != elsewhere.extra["process"]
    assert custom("fragile", timeout_s=None).score_all([(PROBLEM, response("raise"))])[0].failed


@settings(deadline=None)  # the first example starts the child
@given(st.lists(st.sampled_from(["raise", "nan", "text", "none", "no score", "int", "bool", "else"]), max_size=12))
def test_the_child_says_what_the_function_says_here(texts: list[str]) -> None:
    answered = [(PROBLEM, response(text)) for text in texts]
    here, child = (custom_once("fragile", timeout) for timeout in (None, 10.0))
    assert here.score_all(answered) == child.score_all(answered)


@cache
def custom_once(name: str, timeout_s: float | None) -> Scorer:
    return custom(name, timeout_s=timeout_s)


def test_the_agreement_of_graders_is_measured() -> None:
    scorer = Scorer(RewardConfig(also=["math_dapo", "math_verify"]), 48)
    assert scorer.take_agreement("reward") == {}
    texts = ["Answer: 42", "Answer: 41", "Answer: 42.", "Answer: 4 2"]
    scores = scorer.score_all([(PROBLEM, response(text)) for text in texts])
    assert [score.acc for score in scores] == [1.0, 0.0, 1.0, 0.0]
    assert scorer.take_agreement("reward") == {
        "reward/also/math_dapo/agreement": 0.5,  # a period is wrong to it, and a space inside a number right
        "reward/also/math_dapo/acc_mean": 0.5,
        "reward/also/math_dapo/failures": 0.0,
        "reward/also/math_verify/agreement": 1.0,
        "reward/also/math_verify/acc_mean": 0.5,
        "reward/also/math_verify/failures": 0.0,
    }
    assert scorer.take_agreement("val") == {}
    scorer.close()


def test_another_grader_that_hangs_costs_its_own_verdict_only(caplog: pytest.LogCaptureFixture) -> None:
    scorer = Scorer(RewardConfig(also=["math_verify"], timeout_s=1.0), 48)
    texts = ["Answer: 42", "\\boxed{9^{9^{9}}}"]
    with caplog.at_level(logging.WARNING):
        scores = scorer.score_all([(PROBLEM, response(text)) for text in texts])
    assert [(score.acc, score.failed) for score in scores] == [(1.0, False), (0.0, False)]
    assert scorer.failures == 0
    assert scorer.take_agreement("val") == {
        "val/also/math_verify/agreement": 1.0,
        "val/also/math_verify/acc_mean": 1.0,
        "val/also/math_verify/failures": 1.0,
    }
    assert "math_verify failed on problem 1 (Timeout" in caplog.text
    scorer.close()


def test_where_the_reward_failed_nothing_is_compared() -> None:
    scorer = custom("fragile", also=["integer"])
    scorer.score_all([(PROBLEM, response(text)) for text in ("raise", "int")])
    assert scorer.take_agreement("val") == {
        "val/also/integer/agreement": 0.0,
        "val/also/integer/acc_mean": 0.0,
        "val/also/integer/failures": 0.0,
    }
    scorer.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"grader": "math_verify", "timeout_s": None},
            "timeout_s with the grader math_verify, which may compute for ever",
        ),
        ({"also": ["symbolic"], "timeout_s": None}, "timeout_s with the grader symbolic, which may compute for ever"),
        ({"also": ["integer"]}, "other graders in also than the reward's, each once"),
        ({"also": ["number", "number"]}, "other graders in also than the reward's, each once"),
        ({"also": ["custom"]}, "also"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RewardConfig(**changes)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nosuch_module:f", "can't be imported"),
        ("dapo_test_rewards:nosuch", "can't be imported"),
        ("dapo_test_rewards:EARLY", "no function"),
        ("dapo_test_rewards.letters", "package.module:function"),
    ],
)
def test_bad_import_paths_are_told(path: str, reason: str) -> None:
    with pytest.raises(DapoError, match=reason):
        import_reward_function(path)
    with pytest.raises(DapoError, match="reward.custom_reward_function"):
        Scorer(RewardConfig(grader="custom", custom_reward_function=path), 8)
