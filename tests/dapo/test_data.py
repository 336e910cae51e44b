import json
import logging
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dapo.batch import Problem
from dapo.config import Config
from dapo.data import Dataset, Prompts, announce, load_dataset, tokenize
from dapo.errors import DataError
from hypothesis import given
from hypothesis import strategies as st

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is missing")


def write_jsonl(path: Path, rows: list[object]) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return str(path)


def write_verl_parquet(path: Path, rows: list[dict[str, str]], copies: int = 1) -> str:
    """Write problems as verl's data preparation does, extra columns included."""
    table = [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": row["problem"]}],
            "ability": "MATH",
            "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": row["answer"]},
            "extra_info": {"index": row["id"]},
        }
        for row in rows * copies
    ]
    pq.write_table(pa.Table.from_pylist(table), path)
    return str(path)


def prompts_of(size: int) -> Prompts:
    problems = tuple(Problem(str(index), "s", str(index), "1") for index in range(size))
    return Prompts(problems, tuple([index] for index in range(size)))


@needs_shared
def test_aime_2024_has_30_gradable_problems() -> None:
    dataset = load_dataset(str(SHARED / "aime-2024.jsonl"), "integer")
    assert (len(dataset.problems), dataset.repeats, dataset.duplicates, dataset.ungradable) == (30, 1, 0, ())
    assert dataset.problems[0].problem_id == "aime-2024-0"
    assert {problem.data_source for problem in dataset.problems} == {"aime-2024"}
    assert {problem.ground_truth for problem in dataset.problems} >= {"204", "073"}


@needs_shared
def test_word_problems_lose_duplicates_and_decimal_answers(caplog: pytest.LogCaptureFixture) -> None:
    source = str(SHARED / "mawps-singleop.jsonl")
    dataset = load_dataset(source, "integer")
    assert dataset.duplicates == 31
    assert len(dataset.problems) + len(dataset.ungradable) == 531
    assert all(float(problem.ground_truth).is_integer() for problem in dataset.problems)
    assert len(load_dataset(source, "custom").problems) == 531
    announce(source, dataset, "integer")
    assert "31 rows repeat" in caplog.text
    assert f"{len(dataset.ungradable)} problems are left out" in caplog.text
    assert dataset.ungradable[0] in caplog.text


@needs_shared
def test_960_rows_of_30_problems_are_30_problems_with_32_samples(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (SHARED / "aime-2024.jsonl").read_text("utf-8").splitlines()]
    repeated = load_dataset(write_verl_parquet(tmp_path / "aime.parquet", rows, copies=32), "integer")
    plain = load_dataset(str(SHARED / "aime-2024.jsonl"), "integer")
    assert (len(repeated.problems), repeated.repeats) == (30, 32)
    for one, other in zip(repeated.problems, plain.problems, strict=True):
        assert (one.problem_id, one.problem, one.ground_truth) == (
            other.problem_id,
            other.problem,
            other.ground_truth,
        )
    assert repeated.problems[0].data_source == "math_dapo"
    assert repeated.problems[0].extra == {"index": "aime-2024-0", "ability": "MATH"}


@pytest.mark.parametrize(
    ("name", "size"), [("arithmetic", 4096), ("arithmetic-aime", 256), ("arithmetic-heldout", 256)]
)
def test_generated_sets(name: str, size: int) -> None:
    dataset = load_dataset(name, "integer")
    assert len({problem.problem for problem in dataset.problems}) == size
    assert {problem.data_source for problem in dataset.problems} == {name}


def test_a_generated_set_can_be_larger_than_its_default() -> None:
    assert len(load_dataset("arithmetic-aime", "integer", 300).problems) == 300


def test_size_takes_the_first_problems(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"problem": f"p{n}", "answer": n} for n in range(5)])
    problems = load_dataset(source, "integer", 2).problems
    assert [(item.problem_id, item.problem, item.ground_truth) for item in problems] == [
        ("1", "p0", "0"),
        ("2", "p1", "1"),
    ]


def test_a_set_without_a_gradable_answer_is_refused(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"id": "half", "problem": "p", "answer": "1/2"}])
    with pytest.raises(DataError, match=r"none with an answer that the grader 'integer' can read \(as in half\)"):
        load_dataset(source, "integer")


def test_an_unknown_set_is_told_with_those_there_are() -> None:
    with pytest.raises(DataError, match=r"data\.csv: got no such set; need arithmetic, arithmetic-aime"):
        load_dataset("data.csv", "integer")


def test_contradicting_answers_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"problem": "p", "answer": "1"}, {"problem": "p", "answer": "2"}]
    (problem,) = load_dataset(write_jsonl(tmp_path / "a.jsonl", rows), "integer").problems
    assert problem.ground_truth == "1"
    assert "a.jsonl:2" in caplog.text


def test_a_dialogue_is_another_problem_than_its_text(tmp_path: Path) -> None:
    """The same words, said by others: two problems. The same dialogue again: one."""
    system = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    earlier = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    rows = [{"messages": one, "answer": 1} for one in (system, earlier, system)] + [{"problem": "a\n\nb", "answer": 1}]
    dataset = load_dataset(write_jsonl(tmp_path / "a.jsonl", rows), "integer")
    assert [problem.problem for problem in dataset.problems] == ["a\n\nb"] * 3
    assert [len(problem.messages) for problem in dataset.problems] == [2, 2, 0]
    assert dataset.duplicates == 1
    sets = [Prompts((problem,), ([1],)) for problem in dataset.problems]
    assert len({prompts.digest for prompts in sets}) == 3, "a resume tells them apart"


def test_prompts_with_an_offer_of_tools_are_longer_and_limited(policy) -> None:
    dataset = Dataset((Problem("1", "s", "1+1", "2"), Problem("2", "s", "1+" * 9 + "1", "10")))
    tree = {"rollout": {"multi_turn": {"enable": True}}, "data": {"max_prompt_length": 512}}
    prompts = tokenize(dataset, policy.tokenizer, Config.model_validate(tree), "data.train")
    assert prompts.prompt(0) == policy.tokenizer.encode("1+1\n")
    offering = prompts.prompt(0, tools=True)
    assert policy.tokenizer.decode(offering).startswith("Tools: calculator(expression).")
    assert offering[-4:] == prompts.prompt(0)
    tree["data"] = {"max_prompt_length": len(offering), "filter_overlong_prompts": True}
    short = tokenize(dataset, policy.tokenizer, Config.model_validate(tree), "data.train")
    assert (len(short), short.too_long, len(short.offering)) == (1, 1, 1)


def test_long_prompts_are_refused_or_left_out(policy, caplog: pytest.LogCaptureFixture) -> None:
    dataset = Dataset((Problem("short", "s", "1+1", "2"), Problem("long", "s", "1+" * 40 + "1", "41")))
    with pytest.raises(DataError, match=r"max_prompt_length: got 64; need 8\d for problem long of data.train \(1 of 2"):
        tokenize(dataset, policy.tokenizer, Config(), "data.train")
    config = Config.model_validate({"data": {"filter_overlong_prompts": True}})
    with caplog.at_level(logging.WARNING):
        prompts = tokenize(dataset, policy.tokenizer, config, "data.train")
    assert ([problem.problem_id for problem in prompts.problems], prompts.too_long) == (["short"], 1)
    assert "1 of 2 prompts" in caplog.text


def test_the_template_surrounds_the_problem(policy) -> None:
    config = Config.model_validate({"data": {"prompt_template": "Q: {problem} A:"}})
    prompts = tokenize(Dataset((Problem("1", "s", "1+1", "2"),)), policy.tokenizer, config, "data.train")
    assert policy.tokenizer.decode(prompts.tokens[0]) == "Q: 1+1 A:"


@given(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 3))
def test_rounds_of_any_size_walk_through_whole_epochs(size: int, rounds: list[int], seed: int) -> None:
    prompts, position, drawn = prompts_of(size), 0, []
    for count in rounds:
        drawn += prompts.draw(position, count, seed)
        position += count
    assert drawn == prompts.draw(0, position, seed)
    for start in range(0, position - size + 1, size):
        assert sorted(drawn[start : start + size]) == list(range(size))
    assert max(Counter(drawn).values()) - (min(Counter(drawn).values()) if len(set(drawn)) == size else 0) <= 1


def test_each_epoch_and_seed_has_its_own_order() -> None:
    prompts = prompts_of(50)
    orders = [tuple(prompts.draw(start, 50, seed)) for start in (0, 50) for seed in (0, 1)]
    assert len(set(orders)) == 4
