"""Which metrics a run reports: what is said before it holds of what it reports."""

import json
from pathlib import Path

import pytest
from dapo.batch import EvaluatedSample
from dapo.config import Config
from dapo.evaluate import evaluation_metrics
from dapo.trainer import unreported


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Two data sets, one of them beyond `val_size`; each problem stands three times."""
    rows = [{"problem": f"{n}+1", "answer": n + 1, "data_source": "a(b)" if n < 3 else "late"} for n in range(5)]
    (tmp_path / "val.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 3))
    data = {"val": str(tmp_path / "val.jsonl"), "val_size": 3}
    return Config.model_validate({"data": data, "rollout": {"val_kwargs": {"n": 2}}, "reward": {"also": ["number"]}})


def told(config: Config, *metrics: str) -> dict[str, str]:
    return {fault.key: f"{fault.got}; {fault.need}" for fault in unreported(config, metrics)}


def test_all_that_an_evaluation_reports_is_reported(config: Config) -> None:
    samples = [
        EvaluatedSample("a(b)", str(number), index, "", "", "1", "1", True, 1)
        for number in range(3)
        for index in range(6)
    ]
    metrics = evaluation_metrics(samples, config.rollout.val_kwargs)
    assert {"val/pass_at_4", "val/maj_at_6_se", "val-core/a_b_/acc/mean_at_6"} <= metrics.keys()
    assert told(config, *metrics, "val/also/number/agreement", "cost/flops", "val/grader_failures") == {}


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("val/foo/accuracy", "the data set 'foo'; one that data.val evaluates on: a_b_"),
        ("val/late/accuracy_se", "the data set 'late'; one that data.val evaluates on: a_b_"),
        ("val/foo/response_length", "the data set 'foo'"),
        ("val/pass_at_3", "3 samples; one of 1, 2, 4, with 6 a problem"),
        ("val/a_b_/pass_at_8_se", "8 samples; one of 1, 2, 4, with 6"),
        ("val/maj_at_1", "1 samples; one of 2, 4, 6, with 6"),
        ("val-core/a_b_/acc/mean_at_2", "2 samples; one of 6, with 6"),
        ("val-core/a_b_/acc/maj_at_4/mean", "4 samples; one of 6, with 6"),
        ("val-core/foo/acc/mean_at_6", "the data set 'foo'"),
        ("reward/also/symbolic/agreement", "the grader 'symbolic'; one of reward.also, which is ['number']"),
        ("multi_turn/calls_mean", "a metric of tools; rollout.multi_turn.enable: true"),
    ],
)
def test_what_no_run_of_this_config_reports(config: Config, metric: str, reason: str) -> None:
    found = told(config, metric)
    assert list(found) == [metric]
    assert found[metric].startswith(reason)


def test_greedy_answers_have_no_majority() -> None:
    config = Config.model_validate({"rollout": {"val_kwargs": {"temperature": 0}}})
    assert told(config, "val/pass_at_1", "val/accuracy") == {}
    assert told(config, "val/maj_at_2")["val/maj_at_2"].startswith("2 samples; two samples a problem, at least, with 1")


def test_a_set_that_cannot_be_read_is_told_elsewhere() -> None:
    assert told(Config.model_validate({"data": {"val": "nosuch.jsonl"}}), "val/foo/accuracy") == {}
