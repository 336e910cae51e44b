"""Search domains: what belongs to them, and one form for each value."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from sweep_platform.spec import Choice, Domain, FloatRange, IntRange

ADAPTER: TypeAdapter[Domain] = TypeAdapter(Domain)
DOMAINS: list[Domain] = [
    Choice(choice=("a", None, True, 3, 0.5)),
    FloatRange(float=(0.1, 0.3)),
    FloatRange(float=(1e-5, 1e-2), log=True),
    FloatRange(float=(0.2, 0.5), step=0.04),
    IntRange(int=(1, 20), log=True),
    IntRange(int=(2, 11), step=3),
    IntRange(int=(7, 7)),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
@given(u=st.floats(0, 1, exclude_max=True))
def test_every_point_is_a_canonical_member(domain: Domain, u: float) -> None:
    value = domain.at(u)
    assert domain.contains(value)
    assert domain.canonical(value) == value
    assert type(domain.canonical(value)) is type(value)


@pytest.mark.parametrize("domain", [d for d in DOMAINS if d.size is not None], ids=str)
def test_a_finite_domain_is_enumerated_once_each(domain: Domain) -> None:
    size = domain.size
    assert size is not None
    values = [domain.nth(index) for index in range(size)]
    assert len(set(values)) == size
    assert all(domain.contains(value) for value in values)
    assert {domain.at((index + 0.5) / 5000) for index in range(5000)} == set(values)


def test_steps_reach_as_far_as_they_fit() -> None:
    stepped = FloatRange(float=(0.2, 0.5), step=0.04)
    assert (stepped.size, stepped.top) == (8, 0.48)
    assert IntRange(int=(2, 12), step=3).top == 11


def test_a_float_has_one_form() -> None:
    domain = FloatRange(float=(0.0, 1.0))
    assert domain.canonical(0.1 + 0.2) == domain.canonical(0.3) == 0.3


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (DOMAINS[0], 1),
        (DOMAINS[0], "A"),
        (DOMAINS[1], 0.31),
        (DOMAINS[1], "0.2"),
        (DOMAINS[1], math.nan),
        (DOMAINS[1], True),
        (DOMAINS[3], 0.25),
        (DOMAINS[4], 1.5),
        (DOMAINS[4], math.inf),
        (DOMAINS[5], 3),
        (DOMAINS[5], True),
    ],
)
def test_what_is_outside(domain: Domain, value: object) -> None:
    assert not domain.contains(value)


@pytest.mark.parametrize(
    "written",
    [
        {"choice": []},
        {"choice": [1, 1.0]},
        {"choice": [1, True]},
        {"choice": [[1]]},
        {"choice": [math.nan]},
        {"float": [1, 0]},
        {"float": [0, math.inf]},
        {"float": [0, 1], "log": True},
        {"float": [0.1, 1], "log": True, "step": 0.1},
        {"float": [0, 1], "step": 0},
        {"float": [0, 1], "step": 2},
        {"int": [1, 2.5]},
        {"int": [0, 4], "log": True},
        {"int": [1, 4], "log": True, "step": 2},
        {"int": [1, 4], "float": [1, 4]},
        {"int": [1, 4], "steps": 2},
        {},
        3,
    ],
    ids=str,
)
def test_contradictory_domains_are_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(written)
