"""The projection of real ledgers into real MLflow databases."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_ledger import Ledger
from sweep_platform.errors import BadInput
from sweep_platform.home import Home
from sweep_platform.tracking import MLflowObserver, Store
from sweep_platform.tracking import sync as sync_with
from sweep_platform.tracking.projector import Projector
from sweep_platform.tracking.runs import RunWriter

HELPERS = str(Path(__file__).parent / "helpers")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.syspath_prepend(HELPERS)
    import small_sweep

    return small_sweep


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def store(folder):
    """One database for the module: creating one takes seconds. Sweeps of several ledgers share it."""
    return Store(f"sqlite:///{folder}/mlflow.db", folder / "art")


def sync(ledger, address, store):
    return sync_with(ledger, address, store, Home(Path("nowhere")))


def runs_of(store, sweep):
    """A sweep's runs by name, with everything that is in them."""
    uid = f"{sweep.address} {sweep.identity[:12]} {sweep.created_at.isoformat()}"
    client = store.client
    experiment = client.get_experiment_by_name(sweep.name)
    found = client.search_runs([experiment.experiment_id], f"tags.sweep_uid = '{uid}'")
    names = {run.info.run_id: run.info.run_name for run in found}
    assert len(set(names.values())) == len(names), "a run is there twice"
    told = {}
    for run in found:
        tags = dict(run.data.tags)
        if "mlflow.parentRunId" in tags:
            tags["mlflow.parentRunId"] = names[tags["mlflow.parentRunId"]]
        told[run.info.run_name] = {
            "id": run.info.run_id,
            "status": run.info.status,
            "times": (run.info.start_time, run.info.end_time),
            "params": dict(run.data.params),
            "tags": tags,
            "files": {file.path for file in client.list_artifacts(run.info.run_id)},
            "metrics": {
                key: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        }
    return told


def without_ids(runs):
    return {name: {key: value for key, value in run.items() if key != "id"} for name, run in runs.items()}


def test_a_sweep_becomes_a_parent_with_nested_runs(small, ledger, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # the fluent API would write into that run
    warned = []
    sweep = small.SmallSweep(ledger, MLflowObserver(ledger, store, warn=warned.append, flush_s=0.05))
    sweep.run()
    assert warned == []
    runs = runs_of(store, sweep.sweep)
    assert {name: run["status"] for name, run in runs.items()} == {
        "aime@1": "FINISHED",
        "aime/00": "FINISHED",
        "aime/01": "FINISHED",
        "aime/02": "FAILED",
        "aime/03": "KILLED",
    }
    parent, first, failed, refused = (runs[name] for name in ("aime@1", "aime/00", "aime/02", "aime/03"))
    drawn = {f"{name}.{ending}" for name in ("frontier", "parallel", "history") for ending in ("html", "png")}
    assert parent["files"] == drawn | {"frontier.json", "spec.yaml"}
    assert parent["tags"]["trials.complete"] == "2" and parent["tags"]["knee"] in {"0", "1"}
    assert "| **" in parent["tags"]["mlflow.note.content"]
    assert first["files"] == {"config.yaml", "samples.json"}
    assert first["tags"]["mlflow.parentRunId"] == "aime@1"
    named = [first["tags"][name] for name in ("trial", "sweep", "sweep_version", "trainer")]
    assert named == ["0", "aime", "1", "toy"]
    assert (first["tags"]["state"], first["tags"]["origin"]) == ("complete", "prior:published")
    assert first["params"]["trainer.seed"] == "0" and "9000 characters" in first["params"]["prompt"]
    assert [step for step, _, _ in first["metrics"]["actor/entropy"]] == [0, 1, 2, 3, 4]
    assert [value for _, value, _ in first["metrics"]["val/acc/mean:at:4"]] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert {value for _, value, _ in first["metrics"]["val/acc/mean_at_4"]} == {0.5}
    assert [(step, value) for step, value, _ in first["metrics"]["val/accuracy_se"]] == [(4, 0.02)]
    assert first["metrics"]["cost/flops"][-1][1] == 4e12
    assert failed["tags"]["reason"] == "actor/pg_loss is nan" and len(failed["metrics"]["actor/entropy"]) == 3
    assert refused["tags"]["reason"] == "size 2 needs 2 devices" and refused["metrics"] == {}
    assert ledger.find_sweep("aime").mlflow_run_id == parent["id"]
    assert [trial.mlflow_run_id for trial in ledger.trials(sweep.sweep.id)] == [
        runs[f"aime/0{number}"]["id"] for number in range(4)
    ]


def test_sync_rebuilds_what_the_observer_wrote(small, ledger, store, tmp_path):
    sweep = small.SmallSweep(ledger, MLflowObserver(ledger, store, flush_s=0.05))
    sweep.run()
    live = runs_of(store, sweep.sweep)
    assert sync(ledger, "aime", store) == 4
    assert runs_of(store, sweep.sweep) == live
    fresh = Store(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "art")
    assert sync(ledger, "aime@1", fresh) == 4
    assert without_ids(runs_of(fresh, sweep.sweep)) == without_ids(live)
    assert ledger.trials(sweep.sweep.id)[0].mlflow_run_id == runs_of(fresh, sweep.sweep)["aime/00"]["id"]


def wait_for_run(store, sweep, name, steps):
    """A sweep's run, once it has so many steps."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            run = runs_of(store, sweep.sweep)[name]
            if len(run["metrics"]["actor/entropy"]) == steps:
                return run
        except (AttributeError, KeyError):  # no experiment, run or metric yet
            pass
        time.sleep(0.1)
    raise AssertionError(f"{name} didn't get {steps} steps")


def test_the_page_is_live(small, ledger, store):
    sweep = small.SmallSweep(ledger, MLflowObserver(ledger, store, flush_s=0.05))
    trial = sweep.add(0)
    sweep.start(trial)
    sweep.report(trial, 0)
    run = wait_for_run(store, sweep, "aime/00", 1)
    assert run["status"] == runs_of(store, sweep.sweep)["aime@1"]["status"] == "RUNNING"
    sweep.observer.close()


def test_a_run_that_somebody_deleted_comes_back_and_holds_nobody_up(small, ledger, store):
    warned = []
    sweep = small.SmallSweep(ledger, MLflowObserver(ledger, store, warn=warned.append, flush_s=0.05))
    trial = sweep.add(0)
    sweep.start(trial)
    sweep.report(trial, 0)
    store.client.delete_run(wait_for_run(store, sweep, "aime/00", 1)["id"])
    sweep.report(trial, 1)
    sweep.whole_trial(1)
    wait_for_run(store, sweep, "aime/01", small.STEPS + 1)
    wait_for_run(store, sweep, "aime/00", 2)
    sweep.observer.close()
    assert len(warned) == 1


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_in_the_same_runs(small, ledger, store):
    with MLflowObserver(ledger, store, flush_s=0.05) as observer:
        sweep = small.SmallSweep(ledger, observer)
        sweep.whole_trial(0)
        trial = sweep.add(1)
        sweep.start(trial)
        sweep.report(trial, 0)
        sweep.report(trial, 1, {"timing_s/step": 8.0})
    sweep.leave()
    before = runs_of(store, sweep.sweep)
    assert before["aime@1"]["status"] == before["aime/01"]["status"] == "KILLED"
    assert before["aime/00"]["status"] == "FINISHED"

    again = small.SmallSweep(ledger, MLflowObserver(ledger, store, flush_s=0.05), sweep=ledger.find_sweep("aime"))
    again.start(trial)
    for step in range(1, small.STEPS + 1):  # the checkpoint was at 0: step 1 is done again
        again.report(trial, step, {"timing_s/step": 9.0})
    again.finish(trial)
    again.end()
    after = runs_of(store, sweep.sweep)
    assert {name: run["id"] for name, run in after.items()} == {name: run["id"] for name, run in before.items()}
    assert {run["status"] for run in after.values()} == {"FINISHED"}
    times = [(step, value) for step, value, _ in after["aime/01"]["metrics"]["timing_s/step"]]
    assert times == [(1, 8.0), *((step, 9.0) for step in range(1, small.STEPS + 1))], "the later word comes last"
    sync(ledger, "aime", store)
    assert runs_of(store, sweep.sweep) == after
    assert after["aime/00"] == before["aime/00"]


@pytest.mark.parametrize("uri", ["sqlite:///{}/file/mlflow.db", "http://127.0.0.1:1"], ids=["file", "server"])
def test_mlflow_that_cannot_be_written_ends_nothing_and_sync_repairs(small, ledger, store, tmp_path, uri):
    (tmp_path / "file").write_text("")
    broken = Store(uri.format(tmp_path), tmp_path / "art")
    warned = []
    began = time.monotonic()
    sweep = small.SmallSweep(ledger, MLflowObserver(ledger, broken, warn=warned.append, flush_s=0.01))
    sweep.run()
    assert time.monotonic() - began < 15
    assert len(warned) == 1 and "platform mlflow sync aime@1" in warned[0]
    with pytest.raises(BadInput, match="^MLflow: got .*; need .* that answers and can be written; check MLFLOW_TRACK"):
        sync(ledger, "aime", broken)
    sync(ledger, "aime", store)
    assert len(runs_of(store, sweep.sweep)) == 5


def test_a_run_left_half_made_is_completed(small, ledger, store, monkeypatch):
    sweep = small.SmallSweep(ledger)
    sweep.run()
    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "params", lambda self, tree: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(BadInput, match="disk full"):
            sync(ledger, "aime", store)
    sync(ledger, "aime", store)
    runs = runs_of(store, sweep.sweep)
    assert len(runs) == 5 and runs["aime/00"]["params"]["trainer.seed"] == "0"


@pytest.mark.slow
def test_steps_with_very_many_metrics_are_split(small, ledger, store):
    sweep = small.SmallSweep(ledger)
    sweep.whole_trial(0, {f"layer/{i}/norm": float(i) for i in range(1200)})
    sync(ledger, "aime", store)
    run = runs_of(store, sweep.sweep)["aime/00"]
    assert len(run["metrics"]) > 1200
    assert all(len(history) == 5 for name, history in run["metrics"].items() if name.startswith("layer/"))


def test_an_experiment_in_the_bin_is_restored(small, ledger, store):
    sweep = small.SmallSweep(ledger)
    sweep.whole_trial(0)
    sync(ledger, "aime", store)
    store.client.delete_experiment(store.client.get_experiment_by_name("aime").experiment_id)
    sync(ledger, "aime", store)
    assert "aime/00" in runs_of(store, sweep.sweep)


@pytest.mark.parametrize("uri", ["mysql://me:secret@x/y", "./mlruns", "nosuch://x"])
def test_an_address_that_mlflow_cannot_use_is_told_without_its_password(small, ledger, tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    small.SmallSweep(ledger)
    with pytest.raises(BadInput, match="^MLflow: got .*; need .*; check MLFLOW_TRACKING_URI") as error:
        sync(ledger, "aime", Store(uri, tmp_path / "art"))
    assert "secret" not in str(error.value)


def test_unknown_sweep(ledger, store):
    with pytest.raises(BadInput, match="sweep: got 'nosuch'"):
        sync(ledger, "nosuch", store)


def test_processes_that_open_a_fresh_database_at_once(tmp_path):
    code = (
        "import sys; from pathlib import Path; from sweep_platform.tracking import Store;"
        "Store(sys.argv[1], Path(sys.argv[2])).experiment('aime')"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/new/mlflow.db", str(tmp_path / "art")]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]


def test_mlflow_is_loaded_only_when_used():
    code = "import sys, sweep_platform.tracking, sweep_platform.production; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_projector_asks_mlflow_nothing_for_trials_that_wait(small, ledger, store):
    sweep = small.SmallSweep(ledger)
    trial = sweep.add(0)
    projector = Projector(store, ledger, sweep.sweep)
    projector.trial(trial)
    assert runs_of(store, sweep.sweep) == {}
