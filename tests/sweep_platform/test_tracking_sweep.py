"""What a real sweep of the real trainer shows in MLflow."""

from pathlib import Path

import pytest
from mlflow.entities import Run
from real_sweep import STEPS, TRIALS, run_real_sweep
from run_ledger import Ledger
from sweep_platform.home import Home
from sweep_platform.spec.metrics import exists
from sweep_platform.tracking import Store

TRAINED = {
    "reward/acc_mean",
    "reward/score_mean",
    "filter/yield",
    "filter/rounds",
    "actor/entropy",
    "actor/pg_clipfrac",
    "response_length/mean",
    "tokens/kept",
    "tokens/filtered",
    "tokens/surplus",
    "perf/throughput",
}
"""Of every update."""
EVALUATED = {"val/accuracy", "val/accuracy_se", "val/aime/accuracy", "val/aime/accuracy_se"}
"""Of every evaluation; `aime` is what the data file calls its problems."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    return run_real_sweep(folder)


@pytest.fixture(scope="module")
def runs(store: Store) -> dict[str, Run]:
    experiment = store.client.get_experiment_by_name("small").experiment_id
    return {run.info.run_name: run for run in store.client.search_runs([experiment])}


def test_one_parent_and_one_nested_run_a_trial(runs: dict[str, Run]) -> None:
    assert set(runs) == {"small@1", *(f"small/0{number}" for number in range(TRIALS))}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in runs.items()}
    assert parents.pop("small@1") is None
    assert set(parents.values()) == {runs["small@1"].info.run_id}


def test_every_step_is_there_with_what_users_look_for(runs: dict[str, Run], store: Store) -> None:
    run = runs["small/00"]

    def steps(name: str) -> list[int]:
        return [metric.step for metric in store.client.get_metric_history(run.info.run_id, name)]

    assert {name: steps(name) for name in TRAINED} == {name: list(range(1, STEPS + 1)) for name in TRAINED}
    assert {name: steps(name) for name in EVALUATED} == {name: list(range(STEPS + 1)) for name in EVALUATED}
    assert steps("cost/flops") == list(range(STEPS + 1))
    assert run.data.tags["trainer"] == "dapo"
    assert run.data.params["algorithm.filter_groups.enable"] == "true"
    assert run.data.params["trainer.total_training_steps"] == str(STEPS)


def test_its_numbers_are_the_ledgers(runs: dict[str, Run], store: Store, folder: Path) -> None:
    with Ledger.open(f"sqlite:///{folder}/home/ledger.db") as ledger:
        sweep = ledger.find_sweep("small")
        assert sweep is not None
        for trial in ledger.trials(sweep.id):
            run = runs[f"small/0{trial.number}"]
            assert trial.mlflow_run_id == run.info.run_id
            shown = {name: value for name, value in run.data.metrics.items() if name in trial.metrics}
            assert shown == pytest.approx(trial.metrics)
            flops = store.client.get_metric_history(run.info.run_id, "cost/flops")
            steps = ledger.observations(trial.id)
            assert [(m.step, m.value) for m in flops] == [(step.step, step.cost.flops) for step in steps]


def test_config_samples_and_frontier_are_files(runs: dict[str, Run], store: Store) -> None:
    def files(name: str) -> set[str]:
        return {file.path for file in store.client.list_artifacts(runs[name].info.run_id)}

    assert files("small/01") == {"config.yaml", "samples.json"}
    drawn = {f"{name}.{ending}" for name in ("frontier", "parallel", "history") for ending in ("html", "png")}
    assert files("small@1") == {"spec.yaml", "frontier.json"} | drawn


def test_whatever_a_trial_reports_can_be_an_objective_or_a_bound(store: Store, folder: Path) -> None:
    with Ledger.open(Home(folder / "home").ledger_url) as ledger:
        reported = {name for observation in ledger.observations(1) for name in observation.metrics}
    assert {"health/code", "val/aime/pass_at_2_se", "filter/mixed_at_2"} <= reported
    assert sorted(name for name in reported if not exists(name)) == []
