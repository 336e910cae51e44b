"""Scoring: grader, then the soft overlong punishment, stage by stage (see `dapo.batch.Score`)."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from dapo.batch import Problem, Response, RolloutGroup, Score
from dapo.config import OverlongBufferConfig, RewardConfig
from dapo.errors import DapoError
from dapo.graders import PARSERS, grade

RewardFunction = Callable[..., Any]
"""f(data_source, solution_str, ground_truth, extra_info) -> float, or a dict with `score`; as in verl."""

logger = logging.getLogger(__name__)


class BadReward(Exception):
    """A reward function returned something that is no score."""


def import_reward_function(path: str) -> RewardFunction:
    """Return the function at `package.module:function`.

    Raises:
        DapoError: the path has another form, or there is no such function.
    """
    module_name, separator, name = path.partition(":")
    if not (module_name and separator and name):
        raise DapoError("no import path of the form package.module:function")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:
        raise DapoError(f"it can't be imported ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise DapoError("it is no function")
    return cast(RewardFunction, found)


def gradable(grader: str, ground_truth: str) -> bool:
    """Whether `grader` can ever call an answer to this gold right."""
    parse = PARSERS.get(grader)
    return parse is None or parse(ground_truth) is not None


def overlong_penalty(length: int, max_response_length: int, buffer: OverlongBufferConfig) -> float:
    """Soft overlong punishment (DAPO Eq. 13): 0 up to the buffer's start, then linear, never below -factor.

    Args:
        length: tokens of the response.
        max_response_length: tokens at which the penalty is full, L_max.
        buffer: its length L_cache and factor.

    Returns:
        A number in [-penalty_factor, 0].
    """
    if not buffer.enable:
        return 0.0
    over = length - (max_response_length - buffer.len)
    return -buffer.penalty_factor * min(max(over / buffer.len, 0.0), 1.0)


class Scorer:
    """Scores responses as one run's config says. A grader that fails fails its response, not the batch."""

    def __init__(self, config: RewardConfig, max_response_length: int) -> None:
        """Resolve the custom function, if there is one.

        Raises:
            DapoError: the custom function can't be imported.
        """
        self.config = config
        self.max_response_length = max_response_length
        self.failures = 0
        """Responses whose grading failed, so far."""
        self._function: RewardFunction | None = None
        if config.custom_reward_function is not None:
            try:
                self._function = import_reward_function(config.custom_reward_function)
            except DapoError as error:
                raise DapoError(f"reward.custom_reward_function: {config.custom_reward_function}: {error}") from error

    def score(self, groups: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
        """Fill `scores` of every group, and return the groups."""
        for group in groups:
            group.scores = [self.score_response(group.problem, response) for response in group.responses]
        return groups

    def score_response(self, problem: Problem, response: Response) -> Score:
        """Grade one response, then shape its reward by its length."""
        graded = self._grade(problem, response)
        graded.seq_reward = graded.score + overlong_penalty(
            len(response.token_ids), self.max_response_length, self.config.overlong_buffer
        )
        return graded

    def _grade(self, problem: Problem, response: Response) -> Score:
        if self._function is None:
            correct, answer = grade(PARSERS[self.config.grader], response.text, problem.ground_truth)
            score = self.config.correct_reward if correct else self.config.wrong_reward
            return Score(acc=float(correct), score=score, seq_reward=score, answer=answer)
        try:
            result = self._function(
                data_source=problem.data_source,
                solution_str=response.text,
                ground_truth=problem.ground_truth,
                extra_info=dict(problem.extra),
            )
            return self._interpret(result)
        except Exception as error:
            if self.failures == 0:
                logger.warning(
                    "the reward function failed on problem %s (%s: %s); such responses count as wrong, "
                    "and further failures are only counted",
                    problem.problem_id,
                    type(error).__name__,
                    error,
                )
            self.failures += 1
            wrong = self.config.wrong_reward
            return Score(acc=0.0, score=wrong, seq_reward=wrong, answer="", failed=True)

    def _interpret(self, result: object) -> Score:
        """Read what a custom function returned.

        Without a key `acc`, a response is right if its score reaches `correct_reward`.
        """
        values: Mapping[Any, Any] = result if isinstance(result, Mapping) else {"score": result}
        if "score" not in values:
            raise BadReward(f"the dict has keys {sorted(map(str, values))} and no 'score'")
        score = _finite(values["score"])
        acc = _finite(values["acc"]) if "acc" in values else float(score >= self.config.correct_reward)
        extra = {
            str(key): _finite(value)
            for key, value in values.items()
            if key not in ("score", "acc") and _is_number(value)
        }
        answer = str(values.get("pred", values.get("answer", "")))
        return Score(acc=acc, score=score, seq_reward=score, answer=answer, extra=extra)


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float) or (hasattr(value, "__float__") and not isinstance(value, str))


def _finite(value: Any) -> float:
    if not _is_number(value):
        raise BadReward(f"{value!r} is no number")
    number = float(value)
    if not math.isfinite(number):
        raise BadReward(f"{number} is not finite")
    return number
