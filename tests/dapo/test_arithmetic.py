"""Properties of the generated data, whatever its levels and sizes are tuned to."""

import random
import re
from collections import Counter
from itertools import permutations

import dapo.arithmetic
import pytest
from dapo.arithmetic import LEVELS, SOURCES, Chain, Step, draw, problems, solution, worked
from dapo.batch import Problem
from dapo.errors import DataError
from dapo.graders import grade, parse_integer
from hypothesis import given
from hypothesis import strategies as st

SIZE = 200
SPLITS = tuple(SOURCES)


def terms(text: str) -> list[int]:
    """Signed numbers of the chain in a problem's text."""
    (chain,) = re.findall(r"\d+(?:[+-]\d+)+", text)
    return [int(term) for term in re.findall(r"[+-]?\d+", chain)]


@pytest.fixture(scope="module", params=SPLITS)
def split(request: pytest.FixtureRequest) -> list[Problem]:
    return problems(request.param, SIZE, seed=1)


def test_answers_are_right_and_in_range(split: list[Problem]) -> None:
    for problem in split:
        assert problem.ground_truth == str(sum(terms(problem.problem)))
        assert 0 <= int(problem.ground_truth) <= 999


def test_every_line_of_a_solution_is_right(split: list[Problem]) -> None:
    for problem in split:
        text = str(problem.extra["solution"])
        lines = re.findall(r"(\d+[+-]\d+)=(-?\d+)", text)
        results = [int(result) for _, result in lines]
        assert [sum(terms(left)) for left, _ in lines] == results
        assert all(0 <= result <= 999 for result in results)
        assert len(lines) == len(terms(problem.problem)) - 1
        assert text.endswith(f"Answer: {problem.ground_truth}")


def test_solutions_are_graded_right_and_others_wrong(split: list[Problem]) -> None:
    for problem in split:
        text = str(problem.extra["solution"])
        assert grade(parse_integer, text, problem.ground_truth).correct
        assert not grade(parse_integer, text, str(int(problem.ground_truth) + 1)).correct
        assert not grade(parse_integer, text.removesuffix(problem.ground_truth), problem.ground_truth).correct


def test_levels_are_equally_frequent(split: list[Problem]) -> None:
    levels = Counter(problem.extra["level"] for problem in split)
    assert set(levels) == set(LEVELS)
    assert max(levels.values()) - min(levels.values()) <= 1


def test_problems_are_distinct_whatever_the_order_of_their_terms(split: list[Problem]) -> None:
    assert len({problem.problem_id for problem in split}) == SIZE
    assert len({tuple(sorted(terms(problem.problem))) for problem in split}) == SIZE
    assert len({problem.data_source for problem in split}) == 1


def test_splits_share_no_problem_whatever_the_order_of_its_terms() -> None:
    found = [
        {tuple(sorted(terms(problem.problem))) for seed in range(3) for problem in problems(name, SIZE, seed)}
        for name in SPLITS
    ]
    assert sum(map(len, found)) == len(set().union(*found))
    assert len({problems(name, 1, 0)[0].data_source for name in SPLITS}) == len(SPLITS)


def test_a_reordering_stays_in_its_split() -> None:
    for problem in problems("val", SIZE, seed=2):
        for order in permutations(terms(problem.problem)):
            if order[0] >= 0:
                operators = "".join("+" if term >= 0 else "-" for term in order[1:])
                assert Chain(tuple(map(abs, order)), operators).split == "val"


def test_a_seed_decides() -> None:
    assert problems("train", 50, 3) == problems("train", 50, 3)
    assert problems("train", 50, 3) != problems("train", 50, 4)
    assert problems("train", 50, 3)[:20] == problems("train", 20, 3)


@pytest.mark.parametrize("level", LEVELS)
def test_drawn_chains_have_the_steps_of_their_level(level: int) -> None:
    rng = random.Random(level)
    for _ in range(50):
        chain = draw(level, "heldout", rng)
        assert chain.split == "heldout"
        assert len(chain.steps) == LEVELS[level].steps
        assert sum(terms(chain.question)) == chain.answer


def test_an_exhausted_split_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dapo.arithmetic, "_TRIES", 300)
    with pytest.raises(DataError, match=r"arithmetic-aime: got size 1000000; need at most \d+, all that level \d has"):
        problems("val", 1_000_000, 0)


@given(st.lists(st.integers(0, 999), min_size=2, max_size=6), st.text("+-", min_size=5, max_size=5))
def test_a_chain_is_worked_from_left_to_right(numbers: list[int], operators: str) -> None:
    chain = Chain(tuple(numbers), operators[: len(numbers) - 1])
    assert chain.answer == sum(terms(chain.text))
    assert chain.steps[0].left == numbers[0]
    assert [step.left for step in chain.steps[1:]] == [step.result for step in chain.steps[:-1]]
    assert solution(chain).count("=") == len(numbers) - 1


def test_a_wrong_working_states_its_own_result() -> None:
    assert worked([(Step(5, "+", 7), 2), (Step(2, "-", 1), 1)]) == "5+7=2; 2-1=1; Answer: 1"
