import sys
import time

import pytest
from dapo.config_multi_turn import MultiTurnConfig
from dapo.errors import DapoError
from dapo.tool_calls import Call
from dapo.tools import Toolbox, ToolResult
from pydantic import ValidationError

BOTH = MultiTurnConfig(tools=("calculator", "python"), tool_timeout_s=1.0, num_workers=4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("calculator", {"expression": "6*7"}), "42"),
        (Call("python", {"code": "print(6*7)"}), "42"),
        (Call("python", {"code": "sum(range(10))"}), "45"),
    ],
)
def test_calls_are_answered(call: Call, text: str) -> None:
    assert Toolbox(BOTH).answer([call]) == [ToolResult(text)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("calculator", {"expression": "1/0"}), "error: division by zero"),
        (Call("calculator", {"expression": 7}), "error: calculator takes one argument, a text named expression"),
        (Call("calculator", {}), "error: calculator takes one argument, a text named expression"),
        (Call("calculator", {"expression": "1", "x": "2"}), "error: calculator takes one argument, a text named"),
        (Call("python", {"expression": "1"}), "error: python takes one argument, a text named code"),
        (Call("search", {"q": "42"}), "error: there is no tool 'search'; use one of calculator, python"),
        (Call("x" * 1000, {}), "error: there is no tool '" + "x" * 40 + "'"),
        (Call("", {}, "the call is no JSON; need it"), "error: the call is no JSON; need it"),
        (Call("python", {"code": "1/0"}), "Traceback (most recent call last):"),
        (Call("python", {"code": "while True: pass"}), "error: it took longer than 1 s"),
    ],
)
def test_what_goes_wrong_is_the_answer(call: Call, text: str) -> None:
    (result,) = Toolbox(BOTH).answer([call])
    assert result.text.startswith(text)
    assert result.failed


def test_a_tool_that_is_not_offered_is_not_run() -> None:
    (result,) = Toolbox(MultiTurnConfig()).answer([Call("python", {"code": "print(42)"})])
    assert result == ToolResult("error: there is no tool 'python'; use one of calculator", failed=True)


def test_calls_are_answered_in_order_and_side_by_side() -> None:
    hung = Call("python", {"code": "import time; time.sleep(600)"})
    calls = [hung, *[Call("python", {"code": str(number)}) for number in range(4)], hung, hung]
    toolbox = Toolbox(BOTH)
    toolbox.answer(calls[1:3])
    first = toolbox.take_seconds()
    assert first > 0.0
    start = time.monotonic()
    results = toolbox.answer(calls)
    took = time.monotonic() - start
    assert [result.text for result in results[1:5]] == ["0", "1", "2", "3"]
    assert [result.failed for result in results] == [True, *[False] * 4, True, True]
    assert took < 3 * 1.0 + 8 * first, "each hung call costs its own second, and they share it"
    assert toolbox.take_seconds() == pytest.approx(took, rel=0.1)
    assert toolbox.take_seconds() == 0.0
    assert toolbox.answer([]) == []


def test_a_sandbox_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer would be the program's: a policy must not learn from that."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DapoError, match="rollout.multi_turn.tools: python: no process can be locked in"):
        Toolbox(BOTH).answer([Call("python", {"code": "1"})] * 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": ["search"]},
        {"tools": ["python", "python"]},
        {"tool_usage_prob": 0.0},
        {"tool_usage_prob": 1.1},
        {"max_turns": 0},
        {"tool_memory_mb": 32},
        {"tool_timeout_s": 0.0},
        {"format": "llama3_json"},
        {"tool_response_truncate_side": "top"},
        {"max_tool_response_length": 0},
    ],
)
def test_values_without_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MultiTurnConfig.model_validate(fields)
