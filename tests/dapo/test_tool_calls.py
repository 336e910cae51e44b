import json

import pytest
from dapo.config_multi_turn import MultiTurnConfig
from dapo.tool_calls import (
    CLOSING,
    OPENING,
    Call,
    instructions,
    read_calls,
    short_instructions,
    signatures_of,
    without_calls,
)
from growth import growth_exponent
from hypothesis import given
from hypothesis import strategies as st


def written(name: str, arguments: object) -> str:
    return f"{OPENING}{json.dumps({'name': name, 'arguments': arguments})}{CLOSING}"


def test_a_call_among_words() -> None:
    text = f"Let me see.\n{written('calculator', {'expression': '1+1'})} Now."
    assert read_calls(text) == [Call("calculator", {"expression": "1+1"})]
    assert without_calls(text) == "Let me see.\n Now."


def test_calls_keep_their_order_and_may_be_spread_over_lines() -> None:
    first = f'{OPENING}\n{{"name": "a",\n "arguments": {{"x": "</b>"}}}}\n{CLOSING}'
    assert read_calls(first + written("b", {})) == [Call("a", {"x": "</b>"}), Call("b", {})]


@pytest.mark.parametrize(
    "text", ["", "no call", OPENING, CLOSING, f"{CLOSING}{OPENING}", f'{OPENING}{{"name": "a", "arguments": {{}}}}']
)
def test_no_call(text: str) -> None:
    assert read_calls(text) == []
    assert without_calls(text) == text


@pytest.mark.parametrize(
    ("inside", "fault"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("{'name': 'a'}", "no JSON"),
        ("[" * 10**5, "no JSON"),
        ("1" * 5000, "no JSON"),
        ("[1]", "no name or no arguments"),
        ('{"name": "a"}', "no name or no arguments"),
        ('{"name": 1, "arguments": {}}', "no name or no arguments"),
        ('{"name": "a", "arguments": "1+1"}', "no name or no arguments"),
    ],
)
def test_a_call_that_can_not_be_read_says_why(inside: str, fault: str) -> None:
    (call,) = read_calls(f"{OPENING}{inside}{CLOSING}")
    assert fault in call.fault
    assert (call.name, call.arguments) == ("", {})


pieces = st.lists(
    st.sampled_from([OPENING, CLOSING, '{"name": "a", "arguments": {}}', "{", '"', "x", "\n"]) | st.text()
)


@given(pieces.map("".join))
def test_any_text_can_be_read(text: str) -> None:
    calls = read_calls(text)
    assert len(calls) <= min(text.count(OPENING), text.count(CLOSING))
    rest = without_calls(text)
    assert len(rest) <= len(text) - len(OPENING + CLOSING) * len(calls)
    assert bool(calls) == (rest != text)


@given(st.text(), st.dictionaries(st.text(), st.text() | st.integers() | st.none()))
def test_what_is_written_is_read(name: str, arguments: dict[str, object]) -> None:
    text = written(name, arguments)
    if text.count(CLOSING) == 1:
        assert read_calls(text) == [Call(name, arguments)]


@pytest.mark.parametrize(("unit", "end"), [(OPENING, ""), (OPENING, CLOSING), (OPENING + CLOSING, "")])
def test_time_is_linear(unit: str, end: str) -> None:
    def work(size: int) -> None:
        read_calls(unit * size + end)
        without_calls(unit * size + end)

    assert growth_exponent(work, 2_000, 16_000) < 1.5


def test_both_offers_show_a_call_that_can_be_read() -> None:
    signatures = signatures_of(MultiTurnConfig(tools=("calculator", "python")))
    assert [signature.name for signature in signatures] == ["calculator", "python"]
    assert read_calls(short_instructions(signatures)) == [Call("calculator", {"expression": "..."})]
    full = instructions(signatures)
    schemas = full.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")
    assert [json.loads(schema)["function"]["name"] for schema in schemas] == ["calculator", "python"]
    assert OPENING in full and CLOSING in full
