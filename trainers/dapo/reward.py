"""Scoring: grader, then the soft overlong punishment, stage by stage (see `dapo.batch.Score`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dapo.batch import Problem, Response, RolloutGroup, Score
from dapo.config import OverlongBufferConfig, RewardConfig
from dapo.errors import DapoError
from dapo.grading import Answered, Grader, Verdict, gradable, make_grader
from dapo.killable import Failed
from dapo.reward_function import import_reward_function

__all__ = ["Scorer", "gradable", "import_reward_function", "overlong_penalty"]

logger = logging.getLogger(__name__)


def overlong_penalty(length: int, max_response_length: int, buffer: OverlongBufferConfig) -> float:
    """Soft overlong punishment (DAPO Eq. 13): 0 up to the buffer's start, then linear, never below -factor.

    Args:
        length: tokens of the response, what tools answered included, as the limit counts them.
        max_response_length: tokens at which the penalty is full, L_max.
        buffer: its length L_cache and factor.

    Returns:
        A number in [-penalty_factor, 0].
    """
    if not buffer.enable:
        return 0.0
    over = length - (max_response_length - buffer.len)
    return -buffer.penalty_factor * min(max(over / buffer.len, 0.0), 1.0)


@dataclass(slots=True)
class Agreement:
    """How another grader's verdicts compare with the reward's own."""

    responses: int = 0
    failed: int = 0
    """Responses on which the other grader gave no verdict."""
    compared: int = 0
    """Responses on which both gave one."""
    equal: int = 0
    right: int = 0
    """Responses that the other grader calls right."""

    def metrics(self) -> dict[str, float]:
        """Shares, by the last part of their metric names; none where nothing could be compared."""
        found = {"failures": float(self.failed)}
        if self.responses > self.failed:
            found["acc_mean"] = self.right / (self.responses - self.failed)
        if self.compared:
            found["agreement"] = self.equal / self.compared
        return found


class Scorer:
    """Scores responses as one run's config says. A grader that fails fails its response, not the batch."""

    def __init__(self, config: RewardConfig, max_response_length: int) -> None:
        """Make the graders.

        Raises:
            DapoError: the custom function can't be imported.
        """
        self.config = config
        self.max_response_length = max_response_length
        self.failures = 0
        """Responses whose grading failed, so far."""
        self._named: set[tuple[str, str]] = set()
        self._agreement = self._no_agreement()
        try:
            self._grader = make_grader(config.grader, config)
        except DapoError as error:
            raise DapoError(f"reward.custom_reward_function: {config.custom_reward_function}: {error}") from error
        self._also: dict[str, Grader] = {name: make_grader(name, config) for name in config.also}

    def score(self, groups: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
        """Fill `scores` of every group, and return the groups.

        Raises:
            DapoError: the process that grades can't be started.
        """
        scores = iter(self.score_all([(group.problem, response) for group in groups for response in group.responses]))
        for group in groups:
            group.scores = [next(scores) for _ in group.responses]
        return groups

    def score_all(self, answered: Sequence[tuple[Problem, Response]]) -> list[Score]:
        """Grade a batch of responses, then shape their rewards by their lengths.

        Of a response in several turns only the last one is graded, so that an answer that a tool gave counts once
        the policy says it.

        Raises:
            DapoError: the process that grades can't be started.
        """
        batch = [Answered(problem, response.statement) for problem, response in answered]
        scores = [self._score_of(verdict, item) for verdict, item in zip(self._verdicts(batch), batch, strict=True)]
        for score, (_, response) in zip(scores, answered, strict=True):
            score.seq_reward = score.score + overlong_penalty(
                len(response.token_ids), self.max_response_length, self.config.overlong_buffer
            )
        for name, grader in self._also.items():
            self._compare(name, batch, grader(batch), scores)
        return scores

    def take_agreement(self, prefix: str) -> dict[str, float]:
        """Return `<prefix>/also/<grader>/…` of the responses since the last call, for each other grader."""
        tallies, self._agreement = self._agreement, self._no_agreement()
        return {
            f"{prefix}/also/{name}/{part}": value
            for name, tally in tallies.items()
            if tally.responses
            for part, value in tally.metrics().items()
        }

    def close(self) -> None:
        """Stop the processes that grade; a later call starts new ones."""
        for grader in (self._grader, *self._also.values()):
            grader.close()

    def _no_agreement(self) -> dict[str, Agreement]:
        return {name: Agreement() for name in self.config.also}

    def _verdicts(self, batch: Sequence[Answered]) -> list[Verdict]:
        try:
            return self._grader(batch)
        except DapoError as error:
            raise DapoError(f"reward.grader: {self.config.grader}: {error}") from error

    def _score_of(self, verdict: Verdict, answered: Answered) -> Score:
        if isinstance(verdict, Score):
            return verdict
        if isinstance(verdict, Failed):
            self.failures += 1
            name = "the reward function" if self.config.grader == "custom" else self.config.grader
            self._name_once(name, verdict, answered.problem, "such responses count as wrong")
            wrong = self.config.wrong_reward
            return Score(acc=0.0, score=wrong, seq_reward=wrong, answer="", failed=True)
        score = self.config.correct_reward if verdict.correct else self.config.wrong_reward
        return Score(acc=float(verdict.correct), score=score, seq_reward=score, answer=verdict.answer)

    def _compare(
        self, name: str, batch: Sequence[Answered], verdicts: Sequence[Verdict], scores: Sequence[Score]
    ) -> None:
        tally = self._agreement[name]
        for answered, verdict, score in zip(batch, verdicts, scores, strict=True):
            tally.responses += 1
            if isinstance(verdict, Failed):
                tally.failed += 1
                self._name_once(name, verdict, answered.problem, "such responses aren't compared")
                continue
            right = verdict.acc >= 0.5 if isinstance(verdict, Score) else verdict.correct
            tally.right += right
            if not score.failed:
                tally.compared += 1
                tally.equal += right == (score.acc >= 0.5)

    def _name_once(self, grader: str, failed: Failed, problem: Problem, effect: str) -> None:
        """Warn of the first failure of each kind."""
        if (grader, failed.kind) in self._named:
            return
        self._named.add((grader, failed.kind))
        logger.warning(
            "%s failed on problem %s (%s: %s); %s, and further failures of this kind are only counted",
            grader,
            problem.problem_id,
            failed.kind,
            failed.reason,
            effect,
        )
