"""The tools by name, and answering many calls at once. A call never raises: what went wrong is its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from dapo.calculator import CalculatorError, calculate
from dapo.config import Config
from dapo.config_multi_turn import MultiTurnConfig
from dapo.errors import DapoError
from dapo.sandbox import Limits, run_python
from dapo.tool_calls import Call, signatures_of


class ToolResult(NamedTuple):
    """What a call is answered."""

    text: str
    failed: bool = False


class Toolbox:
    """The tools that a run offers."""

    def __init__(self, config: MultiTurnConfig) -> None:
        self.config = config
        self.signatures = signatures_of(config)
        self.seconds = 0.0
        """Wall time spent in `answer` since it was last taken."""

    @classmethod
    def of(cls, config: Config) -> Toolbox | None:
        """The tools of a run's config; None where none are offered."""
        return cls(config.rollout.multi_turn) if config.rollout.multi_turn.enable else None

    def answer(self, calls: Sequence[Call]) -> list[ToolResult]:
        """Answer each call, up to `num_workers` side by side: one that hangs costs its own limit.

        Raises:
            DapoError: the sandbox can't be started, which no program is to blame for.
        """
        start = time.perf_counter()
        try:
            if len(calls) < 2 or self.config.num_workers == 1:
                return [self._answer(call) for call in calls]
            with ThreadPoolExecutor(self.config.num_workers) as threads:
                return list(threads.map(self._answer, calls))
        finally:
            self.seconds += time.perf_counter() - start

    def take_seconds(self) -> float:
        """Return the wall time of tools since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _answer(self, call: Call) -> ToolResult:
        if call.fault:
            return _error(call.fault)
        signature = next((one for one in self.signatures if one.name == call.name), None)
        if signature is None:
            names = ", ".join(one.name for one in self.signatures)
            return _error(f"there is no tool {call.name[:40]!r}; use one of {names}")
        argument = call.arguments.get(signature.parameter)
        if not isinstance(argument, str) or len(call.arguments) > 1:
            return _error(f"{signature.name} takes one argument, a text named {signature.parameter}")
        return self._runners[signature.name](self, argument)

    def _calculator(self, expression: str) -> ToolResult:
        try:
            return ToolResult(calculate(expression))
        except CalculatorError as error:
            return _error(str(error))

    def _python(self, code: str) -> ToolResult:
        try:
            outcome = run_python(code, Limits(self.config.tool_timeout_s, self.config.tool_memory_mb))
        except DapoError as error:
            raise DapoError(f"rollout.multi_turn.tools: python: {error}; leave it out, or run elsewhere") from error
        return ToolResult(outcome.text, outcome.failed)

    _runners: Mapping[str, Callable[[Toolbox, str], ToolResult]] = {"calculator": _calculator, "python": _python}


def _error(reason: str) -> ToolResult:
    return ToolResult(f"error: {reason}", failed=True)
