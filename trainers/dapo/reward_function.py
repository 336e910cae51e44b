"""A user's reward function: found by its import path, called as verl calls it, and its result read."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from dapo.batch import Score
from dapo.errors import DapoError

RewardFunction = Callable[..., Any]
"""f(data_source, solution_str, ground_truth, extra_info) -> float, or a dict with `score`; as in verl."""


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


def make_custom_reward(path: str, correct_reward: float) -> Callable[..., Score]:
    """Return the function at `path` as one that returns a `Score`, or raises.

    Args:
        path: `package.module:function`.
        correct_reward: without a key `acc`, a response is right if its score reaches this.

    Raises:
        DapoError: there is no such function.
    """
    function = import_reward_function(path)

    def custom_reward(**arguments: Any) -> Score:
        return interpret(function(**arguments), correct_reward)

    return custom_reward


def interpret(result: object, correct_reward: float) -> Score:
    """Read what a reward function returned.

    Raises:
        BadReward: it is no finite number, and no dict with one as `score`.
    """
    values: Mapping[Any, Any] = result if isinstance(result, Mapping) else {"score": result}
    if "score" not in values:
        raise BadReward(f"the dict has keys {sorted(map(str, values))} and no 'score'")
    score = _finite(values["score"])
    acc = _finite(values["acc"]) if "acc" in values else float(score >= correct_reward)
    extra = {
        str(key): _finite(value) for key, value in values.items() if key not in ("score", "acc") and _is_number(value)
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
