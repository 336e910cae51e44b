"""Every grader by its name, with one interface: a batch of responses in, a verdict or a failure for each out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from dapo.batch import Problem, Score
from dapo.config import RewardConfig
from dapo.grader_math_dapo import grade_math_dapo, readable
from dapo.grader_math_verify import MEMORY_GB, make_math_verify
from dapo.graders import PARSERS, Grade, Parser, grade, parse_number
from dapo.killable import Failed, Pool, Task
from dapo.reward_function import make_custom_reward


class Answered(NamedTuple):
    """A problem, and what was said to it."""

    problem: Problem
    text: str


Verdict = Grade | Score | Failed
"""A custom function gives a `Score`, every other grader a `Grade`."""


class Grader(Protocol):
    """Grades a batch."""

    def __call__(self, batch: Sequence[Answered]) -> list[Verdict]:
        """Return a verdict for each response. Never raises for what a response says."""

    def close(self) -> None:
        """Stop the processes, if there are any."""


class LocalGrader:
    """Calls a function that needs no guard, here."""

    def __init__(self, function: Callable[[str, str], Grade]) -> None:
        self.function = function

    def __call__(self, batch: Sequence[Answered]) -> list[Verdict]:
        """Grade one by one."""
        return [self.function(text, problem.ground_truth) for problem, text in batch]

    def close(self) -> None:
        """Nothing to stop."""


class ChildGrader:
    """Calls a function in children that are killed when an answer takes too long."""

    def __init__(self, task: Task, timeout_s: float, workers: int, arguments: Callable[..., dict[str, Any]]) -> None:
        self.pool = Pool(task, timeout_s, workers)
        self.arguments = arguments

    def __call__(self, batch: Sequence[Answered]) -> list[Verdict]:
        """Grade in the children.

        Raises:
            DapoError: no child can be started.
        """
        return self.pool.run([self.arguments(*answered) for answered in batch])

    def close(self) -> None:
        """Kill the children."""
        self.pool.close()


class SymbolicGrader:
    """Golds that are numbers strictly, as `number` does, and all others by math-verify."""

    def __init__(self, math_verify: Grader) -> None:
        self.strict = LocalGrader(partial(grade, parse_number))
        self.math_verify = math_verify

    def __call__(self, batch: Sequence[Answered]) -> list[Verdict]:
        """Send each response to the grader that its gold asks for."""
        strict = [parse_number(answered.problem.ground_truth) is not None for answered in batch]
        exact = iter(self.strict([answered for answered, number in zip(batch, strict, strict=True) if number]))
        others = [answered for answered, number in zip(batch, strict, strict=True) if not number]
        symbolic = iter(self.math_verify(others) if others else ())
        return [next(exact if number else symbolic) for number in strict]

    def close(self) -> None:
        """Stop math-verify's processes."""
        self.math_verify.close()


class UnguardedFunction:
    """Calls a custom function here, with no time limit: for one that needs this process."""

    def __init__(self, function: Callable[..., Score]) -> None:
        self.function = function

    def __call__(self, batch: Sequence[Answered]) -> list[Verdict]:
        """Call it one by one; what it raises fails its response."""
        return [self._call(answered) for answered in batch]

    def _call(self, answered: Answered) -> Verdict:
        try:
            return self.function(**_custom_arguments(*answered))
        except Exception as error:
            return Failed(type(error).__name__, str(error))

    def close(self) -> None:
        """Nothing to stop."""


def make_grader(name: str, config: RewardConfig) -> Grader:
    """Return the grader of that name.

    Raises:
        DapoError: the custom function can't be imported.
    """
    if name in ("math_verify", "symbolic"):
        assert config.timeout_s is not None, "checked by the config"
        task = Task(make_math_verify, memory_gb=MEMORY_GB)
        math_verify = ChildGrader(task, config.timeout_s, config.num_workers, _plain_arguments)
        return SymbolicGrader(math_verify) if name == "symbolic" else math_verify
    if name == "custom":
        path = str(config.custom_reward_function)
        function = make_custom_reward(path, config.correct_reward)
        if config.timeout_s is None:
            return UnguardedFunction(function)
        task = Task(make_custom_reward, (path, config.correct_reward))
        return ChildGrader(task, config.timeout_s, config.num_workers, _custom_arguments)
    return LocalGrader(grade_math_dapo if name == "math_dapo" else partial(grade, PARSERS[name]))


def gradable(grader: str, ground_truth: str) -> bool:
    """Whether `grader` can ever call an answer to this gold right, and never the lack of one."""
    check = _READABLE.get(grader)
    return check is None or check(ground_truth)


def _plain_arguments(problem: Problem, text: str) -> dict[str, Any]:
    return {"response": text, "ground_truth": problem.ground_truth}


def _custom_arguments(problem: Problem, text: str) -> dict[str, Any]:
    return {
        "data_source": problem.data_source,
        "solution_str": text,
        "ground_truth": problem.ground_truth,
        "extra_info": dict(problem.extra),
    }


def _has_text(ground_truth: str) -> bool:
    return bool(ground_truth.strip())


def _parsed_by(parse: Parser) -> Callable[[str], bool]:
    return lambda ground_truth: parse(ground_truth) is not None


_READABLE: Mapping[str, Callable[[str], bool]] = {
    **{name: _parsed_by(parse) for name, parse in PARSERS.items()},
    "math_dapo": readable,
    "math_verify": _has_text,
    "symbolic": _has_text,
}
