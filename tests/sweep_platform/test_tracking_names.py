from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_param_name
from run_ledger.records import EvaluationRecord
from sweep_platform.tracking.names import MAX_KEY, MAX_PARAM, metric_name, param_value, shorten
from sweep_platform.tracking.samples import samples_table

names = st.text(st.one_of(st.sampled_from("ab/@:._-( )%é~"), st.characters(codec="utf-8")), max_size=300)


@given(names)
@example("")
@example(".")
@example("..")
@example("/a")
@example("a//b")
@example("a/../b")
@example("val/acc/mean@32")
@example("x" * 251)
def test_every_name_is_one_that_mlflow_takes(name):
    safe = metric_name(name)
    _validate_metric_name(safe)
    _validate_param_name(safe)
    assert 0 < len(safe) <= MAX_KEY


@given(names, names)
@example("val/acc/mean@32", "val/acc/mean_at_32")
@example("mean@32", "mean:at:32")
@example("@", "%")
@example("a/./b", "a/b")
@example("a//b", "a/:slash:b")
@example("x" * 251, "x" * 252)
@example("/", ":2f:")
@example("", ":empty:")
def test_two_names_never_become_one(first, second):
    assert (metric_name(first) == metric_name(second)) == (first == second)


def test_ordinary_names_stay_as_they_are():
    for name in ("val/arithmetic-aime/accuracy_se", "actor/pg_clipfrac", "timing_s/update_actor"):
        assert metric_name(name) == name
    assert metric_name("val/acc/mean@32") == "val/acc/mean:at:32"


def test_long_values_say_that_they_were_cut():
    first, second = param_value("x" * 7000), param_value("x" * 6999 + "y")
    assert len(first) <= MAX_PARAM and first != second
    assert "7000 characters in all" in first
    assert shorten("short", 10) == "short"
    assert param_value(None) == "null" and param_value([1, 2]) == "[1, 2]" and param_value("acc") == "acc"


def answers(right, wrong):
    flags = [True] * right + [False] * wrong
    return [EvaluationRecord(1, "d", f"p{i}", 0, "p", "r", "1", "1", ok, 3) for i, ok in enumerate(flags)]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_samples_show_right_and_wrong_answers(right, wrong, limit):
    table = json.loads(samples_table(answers(right, wrong), limit))
    shown = [row[table["columns"].index("correct")] for row in table["data"]]
    assert len(shown) == min(limit, right + wrong)
    if limit > 1:
        assert any(shown) == (right > 0)
        assert all(shown) == (wrong == 0)
