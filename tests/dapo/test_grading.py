from collections.abc import Iterator

import pytest
from dapo.batch import Problem
from dapo.config import RewardConfig
from dapo.graders import Grade
from dapo.grading import Answered, Grader, gradable, make_grader
from dapo.killable import Failed
from hypothesis import given, settings
from hypothesis import strategies as st

# What graders get wrong: response, gold, the right verdict, and what math-verify says.
SHARED = {
    "bold": ("**Answer:** 42", "42", True, True),
    "trailing period": ("Answer: 42.", "42", True, True),
    "float": ("Answer: 42.0", "42", True, True),
    "a box far from the end": ("We get \\boxed{42}. Let me double check the arithmetic once", "42", True, True),
    "a box with spaces": ("Thus \\boxed{ 42 }", "42", True, True),
    "0.5": ("Answer: 0.5", "1/2", True, True),
    "shorthand": ("Answer: \\frac34", "\\frac{3}{4}", True, False),
    "percent": ("Answer: 50%", "50", False, True),
    "money": ("Answer: \\$5", "5", True, False),
    "a word in between": ("The Answer: is below\n42", "42", True, True),
    "modulus": ("Answer: 42 (mod 1000)", "42", True, True),
    "a long tail": ("Answer: 42\n" + "The end of the proof. " * 20, "42", True, True),
    "the placeholder": ("Answer: [INVALID]", "[INVALID]", False, False),
    "left right": ("Answer: \\left(\\frac{1}{2}\\right)", "(\\frac{1}{2})", True, True),
    "double dollar": ("Answer: $$42$$", "42", True, True),
    "a space inside": ("Answer: 4 2", "42", False, False),
    "a unit inside": ("Answer: 4km2", "42", False, False),
    "quotes": ('Answer: "42"', "42", True, False),
    "another box": ("\\boxed{41}\nAnswer: 42", "42", False, False),
    "thousands in a box": ("so \\boxed{1,000}", "1000", True, True),
    "an equation in a box": ("Answer: \\boxed{x=42}", "42", True, True),
}
SYMBOLIC = [
    pytest.param("so \\boxed{\\sqrt 8}", "2\\sqrt{2}", True, id="a root"),
    pytest.param("Answer: $\\sqrt{3/4}$", "\\frac{\\sqrt{3}}{2}", True, id="a root of a fraction"),
    pytest.param("Answer: $\\sqrt{3}$", "\\frac{\\sqrt{3}}{2}", False, id="another root"),
    pytest.param("$n=1,2,3$", "1,2,3", True, id="a list with its name"),
    pytest.param("Answer: $n=2,3,4$", "n=1,2,3", False, id="another list"),
    pytest.param("Answer: $n=1,2,3$", "n=2,3,4", False, id="another list, swapped"),
    pytest.param("\\boxed{1,2,3}", "1,2", False, id="more than asked for"),
    pytest.param("\\boxed{1,2}", "1,2,3", False, id="less than asked for"),
    pytest.param("$(1,2)$", "1 < x < 2", True, id="an interval for a relation"),
    pytest.param("$1 < x < 2$", "(1,2)", False, id="a relation for an interval: the gold comes first"),
    pytest.param("\\boxed{x^2+2x+1}", "(x+1)^2", True, id="a polynomial"),
    pytest.param("I don't know.", "\\pi", False, id="no answer"),
    pytest.param("", "\\pi", False, id="nothing"),
    pytest.param("\\boxed{\\frac{", "\\pi", False, id="unclosed"),
]


@pytest.fixture(scope="module")
def math_verify() -> Iterator[Grader]:
    grader = make_grader("math_verify", RewardConfig(grader="math_verify"))
    yield grader
    grader.close()


@pytest.fixture(scope="module")
def symbolic() -> Iterator[Grader]:
    grader = make_grader("symbolic", RewardConfig(grader="symbolic"))
    yield grader
    grader.close()


def graded(grader: Grader, response: str, gold: str) -> Grade:
    verdict = grader([Answered(Problem("1", "set", "?", gold), response)])[0]
    assert isinstance(verdict, Grade)
    return verdict


@pytest.mark.parametrize(("response", "gold", "right", "theirs"), [pytest.param(*c, id=n) for n, c in SHARED.items()])
def test_known_cases(
    math_verify: Grader, symbolic: Grader, response: str, gold: str, right: bool, theirs: bool
) -> None:
    """`symbolic` and `number` are right on each; math-verify alone isn't."""
    number = make_grader("number", RewardConfig())
    assert graded(math_verify, response, gold).correct is theirs
    assert graded(symbolic, response, gold).correct is right
    assert graded(number, response, gold).correct is right


@pytest.mark.parametrize(("response", "gold", "right"), SYMBOLIC)
def test_symbolic_answers(math_verify: Grader, symbolic: Grader, response: str, gold: str, right: bool) -> None:
    for grader in (math_verify, symbolic):
        assert graded(grader, response, gold).correct is right


def test_answers_written_differently_are_one_vote(math_verify: Grader) -> None:
    assert {
        graded(math_verify, text, "1").answer for text in ("\\boxed{\\frac{1}{2}}", "$1/2$", "\\boxed{\\frac12}")
    } == {"1/2"}
    assert graded(math_verify, "no idea", "1").answer == ""


def test_symbolic_keeps_the_order_of_a_mixed_batch(symbolic: Grader) -> None:
    golds = ["\\sqrt{2}", "1", "\\pi", "2", "3"]
    batch = [Answered(Problem("1", "set", "?", gold), f"\\boxed{{{gold}}}") for gold in golds]
    assert [verdict.correct for verdict in symbolic(batch)] == [True] * 5
    assert [verdict.correct for verdict in symbolic(batch[:0])] == []
    wrong = [Answered(batch[index - 1].problem, answered.text) for index, answered in enumerate(batch)]
    assert [verdict.correct for verdict in symbolic(wrong)] == [False] * 5


@pytest.mark.parametrize(
    ("grader", "gold", "expected"),
    [
        ("integer", "1/2", False),
        ("number", "1/2", True),
        ("number", "\\pi", False),
        ("math_verify", "\\pi", True),
        ("math_verify", "  ", False),
        ("symbolic", "\\pi", True),
        ("symbolic", "", False),
        ("math_dapo", "\\pi", True),
        ("custom", "", True),
    ],
)
def test_gradable(grader: str, gold: str, expected: bool) -> None:
    assert gradable(grader, gold) is expected


FRAGMENTS = st.sampled_from(
    [
        "Answer: ",
        "\\boxed{",
        "}",
        "{",
        "$",
        "\\frac",
        "\\sqrt",
        "\\int",
        "^",
        "!",
        "42",
        "x",
        "=",
        "<",
        ",",
        "(",
        ")",
        "\n",
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(FRAGMENTS | st.text(max_size=3), max_size=25).map("".join), st.text(max_size=8)), max_size=5
    )
)
def test_any_text_gets_a_verdict_in_time(texts: list[tuple[str, str]]) -> None:
    """Fuzzed: each response has a verdict, or a failure of its own; nothing raises and nothing hangs."""
    batch = [Answered(Problem("1", "set", "?", gold), response) for response, gold in texts]
    for grader in FUZZED:
        verdicts = grader(batch)
        assert len(verdicts) == len(batch)
        assert all(isinstance(verdict, Grade | Failed) for verdict in verdicts)


FUZZED: list[Grader] = []


@pytest.fixture(scope="module", autouse=True)
def fuzzed_graders() -> Iterator[None]:
    FUZZED.extend(
        make_grader(name, RewardConfig(timeout_s=1.0))
        for name in ("integer", "number", "math_dapo", "math_verify", "symbolic")
    )
    yield
    for grader in FUZZED:
        grader.close()
    FUZZED.clear()
