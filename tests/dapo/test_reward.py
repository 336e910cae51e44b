import logging

import pytest
from dapo.batch import Problem, Response
from dapo.config import OverlongBufferConfig, RewardConfig
from dapo.errors import DapoError
from dapo.reward import Scorer, import_reward_function, overlong_penalty
from hypothesis import given
from hypothesis import strategies as st

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
    right = scorer.score_response(PROBLEM, response("Answer: 42", 8))
    wrong = scorer.score_response(PROBLEM, response("Answer: 41", 6))
    assert (right.acc, right.score, right.seq_reward, right.answer) == (1.0, 2.0, 1.5, "42")
    assert (wrong.acc, wrong.score, wrong.seq_reward, wrong.answer) == (0.0, -3.0, -3.0, "41")


def test_a_float_is_enough() -> None:
    score = custom("letters").score_response(PROBLEM, response("bad"))
    assert (score.acc, score.score, score.extra, score.failed) == (1.0, 1.0, {}, False)


def test_a_dict_adds_numbers_to_filter_on() -> None:
    score = custom("detailed").score_response(PROBLEM, response("face"))
    assert (score.acc, score.score, score.extra, score.answer) == (1.0, 1.0, {"early": 4.0}, "early")


def test_kinds_of_results_may_differ_between_responses() -> None:
    scorer = custom("fragile")
    first, second = (scorer.score_response(PROBLEM, response(text)) for text in ("int", "a dict"))
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
    assert custom("fragile", correct_reward=2.0).score_response(PROBLEM, response("int")).acc == 0.0


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
