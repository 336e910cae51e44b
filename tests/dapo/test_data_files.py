import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dapo.batch import Message
from dapo.data_files import read_rows
from dapo.errors import DataError


def write_jsonl(path: Path, rows: list[object]) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return str(path)


def verl_row(problem: str, index: object, source: str = "x") -> dict[str, object]:
    return {
        "data_source": source,
        "prompt": problem,
        "reward_model": {"ground_truth": 2},
        "extra_info": {"index": index},
        "level": 3,
    }


def test_a_dialogue_is_kept_and_its_text_is_joined(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    row = {"data_source": "x", "prompt": messages, "reward_model": {"ground_truth": "2"}, "extra_info": None}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (row,) = read_rows(str(tmp_path / "a.parquet"))
    assert row.problem.problem == "Be brief.\n\n1+1?"
    assert row.problem.messages == (Message("system", "Be brief."), Message("user", "1+1?"))


TALK = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
]


@pytest.mark.parametrize("key", ["prompt", "messages"])
@pytest.mark.parametrize("verl", [True, False])
def test_dialogues_of_either_schema(tmp_path: Path, key: str, verl: bool) -> None:
    key = "problem" if key == "prompt" and not verl else key
    answer = {"reward_model": {"ground_truth": "4"}} if verl else {"answer": "4"}
    (row,) = read_rows(write_jsonl(tmp_path / "a.jsonl", [{key: TALK, "level": 1, **answer}]))
    assert [message._asdict() for message in row.problem.messages] == TALK
    assert row.problem.problem == "1+1?\n\n2\n\nAnd 2+2?"
    assert row.problem.extra == {"level": 1}


def test_one_message_of_the_user_is_a_text(tmp_path: Path) -> None:
    rows = [{"messages": TALK[:1], "answer": 2}, {"problem": "1+1?", "answer": 2}]
    first, second = (row.problem for row in read_rows(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert first.identity == second.identity == ("1+1?", ())


def test_messages_beside_a_problem_are_another_column(tmp_path: Path) -> None:
    (row,) = read_rows(write_jsonl(tmp_path / "a.jsonl", [{"problem": "p", "messages": TALK, "answer": 2}]))
    assert (row.problem.problem, row.problem.messages, row.problem.extra) == ("p", (), {"messages": TALK})


FAULTY = {
    "half a character": ('{"problem": "\\ud800", "answer": "1"}', r"a\.jsonl:2: got half a character"),
    "half a character in a column": (
        '{"problem": "p", "answer": "1", "x": ["\\udc00"]}',
        r"a\.jsonl:2: got half a character",
    ),
    "no JSON": ("{", r"a\.jsonl:2: got no JSON"),
    "no object": ("[1]", r"a\.jsonl:2: got \[1\]; need an object"),
    "no problem": ({"answer": "1"}, r"a\.jsonl:2: problem: got None; need a text"),
    "blank problem": ({"problem": " ", "answer": "1"}, r"a\.jsonl:2: problem: got ' '"),
    "no answer": ({"problem": "p"}, r"a\.jsonl:2: answer: got None; .*the row has \['problem'\]"),
    "answer of another type": (
        {"problem": "p", "answer": [1]},
        r"a\.jsonl:2: answer: got \[1\]; need a text or a number",
    ),
    "no ground truth": (
        {"prompt": "p", "reward_model": {}},
        r"a\.jsonl:2: reward_model\.ground_truth: got None",
    ),
    "no message": ({"messages": [], "answer": "1"}, r"a\.jsonl:2: messages: got no message; need the last one"),
    "an answer at the end": (
        {"messages": TALK[:2], "answer": "1"},
        r"a\.jsonl:2: messages: got a dialogue that ends with the assistant's message; need the last one to be the",
    ),
    "a role that isn't known": (
        {"prompt": [{"role": "tool", "content": "2"}, *TALK], "reward_model": {"ground_truth": "1"}},
        r"a\.jsonl:2: prompt\[0\]\.role: got 'tool'; need one of system, user, assistant",
    ),
    "no role": ({"messages": [{"content": "2"}], "answer": "1"}, r"messages\[0\]\.role: got None"),
    "an empty content": (
        {"messages": [*TALK[:2], {"role": "user", "content": " "}], "answer": "1"},
        r"a\.jsonl:2: messages\[2\]\.content: got ' '; need a text",
    ),
    "content in parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "1"}]}], "answer": "1"},
        r"messages\[0\]\.content: got \[\{'type'",
    ),
    "no table": ({"messages": ["hi"], "answer": "1"}, r"messages\[0\]: got 'hi'; need a message with role and content"),
    "a system message in the middle": (
        {"messages": [TALK[0], {"role": "system", "content": "x"}, TALK[0]], "answer": "1"},
        r"messages\[1\]\.role: got 'system'; need it in the first message only",
    ),
    "id taken": ({"id": "x", "problem": "p", "answer": "1"}, r"a\.jsonl:2: id: got 'x' again"),
}


@pytest.mark.parametrize(("row", "message"), [pytest.param(*case, id=name) for name, case in FAULTY.items()])
def test_faults_name_the_line(tmp_path: Path, row: object, message: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": "x", "problem": "1+1", "answer": "2"}, row])
    with pytest.raises(DataError, match=message):
        list(read_rows(source))


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"problem": "p"}, {"answer": "1"}, *["{"] * 20])
    with pytest.raises(DataError) as caught:
        list(read_rows(source))
    assert [line.split(": ")[0].rsplit(":")[-1] for line in str(caught.value).split("\n")] == list(
        map(str, range(1, 11))
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"problem": "\xe9"}\n')
    (tmp_path / "no.parquet").write_text("text")
    (tmp_path / "folder.jsonl").mkdir()
    cases = {
        "empty.jsonl": "empty file",
        "latin.jsonl": "UTF-8",
        "no.parquet": "need parquet",
        "folder.jsonl": "a folder",
        "missing.jsonl": "no file",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=message):
            list(read_rows(str(tmp_path / name)))


def test_other_columns_reach_the_reward_function(tmp_path: Path) -> None:
    rows = [{"problem": "1+1", "answer": "2", "level": 5, "extra_info": {"split": "test"}}, verl_row("1+1", 7)]
    extras = [row.problem.extra for row in read_rows(write_jsonl(tmp_path / "a.jsonl", rows))]
    assert extras == [{"level": 5, "split": "test"}, {"level": 3, "index": 7}]


def test_an_index_that_repeats_is_no_identity(tmp_path: Path) -> None:
    """Two sources that both count from 0, and one that never counts."""
    rows = [verl_row("a", 0), verl_row("b", 0, "y"), verl_row("c", 0), verl_row("a", 0)]
    found = [row.problem for row in read_rows(write_jsonl(tmp_path / "a.jsonl", rows))]
    assert [(problem.data_source, problem.problem_id) for problem in found] == [
        ("x", "0"),
        ("y", "0"),
        ("x", "row-3"),
        ("x", "0"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    rows = json.dumps({"problem": "\\u00e9\\ud83d\\ude00?", "answer": "1"}).replace("\\\\", "\\")
    (tmp_path / "a.jsonl").write_text(rows, "utf-8-sig")
    (row,) = read_rows(str(tmp_path / "a.jsonl"))
    assert row.problem.problem == "é😀?"


def test_parquet_with_broken_text_is_told(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"problem": broken, "answer": ["1"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: got a file that can't be read .*utf-8"):
        list(read_rows(str(tmp_path / "a.parquet")))
