"""What every executor must do, run on each: the same ledger for the same seed, and no fault ends a sweep."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_ledger import Ledger, TrialRecord, TrialState
from sweep_platform.errors import BadInput, PlatformError
from sweep_platform.executors import Executor, ExecutorName, make_executor
from sweep_platform.home import Home
from toybox.sweeps import Notes, run_sweep, toy_spec

EXECUTORS: tuple[ExecutorName, ...] = ("inline", "ray")
FAULTS = {
    "": (TrialState.COMPLETE, None),
    "nan": (TrialState.FAILED, "step 2: actor/pg_loss is nan"),
    "text": (TrialState.FAILED, "step 2: actor/pg_loss is high, not a number"),
    "raise": (TrialState.FAILED, "ValueError: the loss exploded"),
    "exit": (TrialState.FAILED, "SystemExit: out of ideas"),
    "silent": (TrialState.FAILED, "the trainer returned without a report"),
    "short": (TrialState.FAILED, "the trainer returned at step 3 of 4, without a final report"),
    "garbage": (TrialState.FAILED, "AttributeError: 'int' object has no attribute 'step'"),
    "memory": (TrialState.LOST, "lost 3 times; the last time, MemoryError"),
    "missing": (TrialState.FAILED, "the final report lacks val/accuracy; it has cost/device_seconds"),
}
OWN = ("pid", "threads/", "cost/device_seconds", "perf/", "timing_")
"""Metrics that belong to the process, not to the trial."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One cluster for all tests here: starting it takes longer than the sweeps."""
    from sweep_platform.executors.ray import connected

    with connected(None, cores=6, threads=3):
        yield


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return make_executor(request.param)


def repeatable(ledger: Ledger, trial: TrialRecord) -> dict[str, Any]:
    """Everything about a trial that must not depend on where it ran."""

    def kept(metrics: Any) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if not name.startswith(OWN)}

    config = json.loads(json.dumps(dict(trial.config)))
    return {
        "number": trial.number,
        "state": trial.state,
        "params": dict(trial.params),
        "config": config,
        "origin": trial.origin,
        "values": trial.values,
        "metrics": kept(trial.metrics),
        "cost": (trial.cost.flops, trial.cost.tokens),
        "steps": (trial.step, trial.total_steps),
        "observations": [(o.step, kept(o.metrics), o.final) for o in ledger.observations(trial.id)],
        "evaluations": ledger.evaluations(trial.id),
    }


def test_both_leave_the_same_ledger(ledger: Ledger, home: Home, cluster: None) -> None:
    ledgers = []
    for name in EXECUTORS:
        spec = toy_spec(
            name=name,
            search={
                "actor.lr": {"float": [0.01, 1.0], "log": True},
                "actor.batch": {"int": [1, 8]},
                "actor.shards": {"int": [1, 2]},
            },
            sampler={"name": "tpe", "n_startup": 3},
            budget={"trials": 8, "concurrency": 2},
        )
        trials = run_sweep(ledger, home, spec, make_executor(name))
        ledgers.append([repeatable(ledger, trial) for trial in trials])
    assert ledgers[0] == ledgers[1]
    assert sum(trial["state"] is TrialState.COMPLETE for trial in ledgers[0]) == 8
    assert len(ledgers[0]) > 8, "some candidates are refused"
    assert len(ledgers[0][-1]["evaluations"]) in (0, 4)


def test_no_fault_of_a_trainer_ends_the_sweep(
    ledger: Ledger, home: Home, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep_platform.driver.driver.BACKOFF_S", (0.0, 0.0))
    spec = toy_spec(search={"trainer.fault": {"choice": list(FAULTS)}}, run={"save_freq": 99}, budget={"trials": 99})
    trials = run_sweep(ledger, home, spec, executor)
    assert len(trials) == len(FAULTS)
    for trial in trials:
        state, reason = FAULTS[trial.params["trainer.fault"]]
        assert trial.state is state, trial.reason
        assert (trial.reason or "").startswith(reason or "") and bool(trial.reason) == bool(reason)
        traceback = home.root / "trials" / "toy@1" / str(trial.number) / "traceback.txt"
        crashed = trial.params["trainer.fault"] in ("raise", "exit", "garbage", "memory")
        assert traceback.exists() == crashed
        assert not crashed or "toybox/trainer.py" in traceback.read_text()
        if trial.params["trainer.fault"] == "nan":  # one that is stopped leaves a checkpoint
            assert json.loads(traceback.with_name("state.json").read_text())["step"] == 2


@pytest.mark.slow
def test_a_paused_trial_goes_on_from_its_checkpoint_and_never_restarts(
    ledger: Ledger, home: Home, executor: Executor
) -> None:
    spec = toy_spec(
        run={"save_freq": 99, "total_training_steps": 8},
        pruning={"rungs": [0.25, 0.5]},
        budget={"trials": 8, "concurrency": 2},
        hardware={"cores": 2},
    )
    trials = run_sweep(ledger, home, spec, executor)
    states = Counter(trial.state for trial in trials)
    assert states[TrialState.COMPLETE] >= 2 and states[TrialState.PRUNED] >= 2
    assert states.total() == states[TrialState.COMPLETE] + states[TrialState.PRUNED] == 8
    assert any(trial.attempts > 1 for trial in trials), "one was paused and promoted"
    for trial in trials:
        log = home.root / "trials" / "toy@1" / str(trial.number) / "trained.log"
        assert log.read_text().split() == [str(step + 1) for step in range(trial.step)], "no step was trained twice"
        assert trial.step == (8 if trial.state is TrialState.COMPLETE else trial.step)
        assert trial.state is TrialState.COMPLETE or trial.step in (2, 4)


def with_its_share(trial: TrialRecord) -> TrialRecord:
    """A trial of two at once on six cores."""
    assert trial.metrics["threads/omp"] == trial.metrics["threads/config"] == 3.0
    return trial


def test_inline_trials_have_the_cores_that_they_would_share(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(hardware={"cores": 6}, budget={"trials": 2, "concurrency": 2})
    assert len(list(map(with_its_share, run_sweep(ledger, home, spec, make_executor("inline"))))) == 2


def test_trials_that_fit_on_no_node_are_refused(ledger: Ledger, home: Home, cluster: None) -> None:
    spec = toy_spec(hardware={"cores": 16}, budget={"trials": 2, "concurrency": 2})
    with pytest.raises(BadInput, match="hardware.cores: got 8 for each trial; need at most 6, the CPUs of"):
        run_sweep(ledger, home, spec, make_executor("ray"))


@pytest.mark.slow
def test_trials_at_once_run_in_processes_of_their_own(ledger: Ledger, home: Home, cluster: None) -> None:
    spec = toy_spec(run={"together": 2}, hardware={"cores": 6}, budget={"trials": 2, "concurrency": 2})
    first, second = map(with_its_share, run_sweep(ledger, home, spec, make_executor("ray")))
    assert first.metrics["pid"] != second.metrics["pid"]
    assert first.ended_at is not None and second.started_at is not None
    assert second.started_at < first.ended_at
    assert "noise on standard output" in (home.root / "trials" / "toy@1" / "0" / "output.log").read_text()
    environment = Path(f"/proc/{int(first.metrics['pid'])}/environ").read_bytes().split(b"\0")
    threads = {b"OMP_NUM_THREADS=3", b"MKL_NUM_THREADS=3", b"OPENBLAS_NUM_THREADS=3"}
    assert threads <= set(environment), "set before anything was loaded"


@pytest.mark.slow
def test_both_workers_outlast_a_moment_in_which_both_are_idle(ledger: Ledger, home: Home, cluster: None) -> None:
    """Trial 1 ends before trial 0, which trial 2 has to know."""
    steps = (9, 1, 9, 1)
    spec = toy_spec(
        search={"trainer.total_training_steps": {"choice": [1, 9]}, "actor.batch": {"int": [1, 4]}},
        priors=[
            {"name": f"p{i}", "params": {"trainer.total_training_steps": n, "actor.batch": i + 1}}
            for i, n in enumerate(steps)
        ],
        run={"seconds": 0.05, "together": 2},
        hardware={"cores": 2},
        budget={"trials": 4, "concurrency": 2},
    )
    trials = run_sweep(ledger, home, spec, make_executor("ray"))
    assert [trial.total_steps for trial in trials] == list(steps)
    assert len({trial.metrics["pid"] for trial in trials}) == 2


def test_preparation_is_seen_and_happens_once(ledger: Ledger, home: Home, executor: Executor) -> None:
    notes = Notes()
    spec = toy_spec()
    run_sweep(ledger, home, spec, executor, observers=[notes])
    progress = [event for event in notes.events if event[0] == "prepare_progress"]
    assert progress == [("prepare_progress", "toy", done, 2) for done in range(3)]
    assert notes.events.index(progress[-1]) < notes.events.index(("trial_started", 0, "running"))
    notes.events.clear()
    run_sweep(ledger, home, spec, executor, observers=[notes])
    assert notes.events == [("sweep_started", "toy@1", 4), ("sweep_finished", "toy@1", 4)]


def test_a_failed_preparation_ends_the_sweep_before_any_trial(ledger: Ledger, home: Home, executor: Executor) -> None:
    with pytest.raises(PlatformError, match="could not prepare: RuntimeError: nothing to prepare from"):
        run_sweep(ledger, home, toy_spec(run={"seed": 13}), executor)
    sweep = ledger.find_sweep("toy")
    assert sweep is not None and ledger.trials(sweep.id) == []


def test_the_drivers_own_failure_comes_through(
    ledger: Ledger, home: Home, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(type(ledger), "record_step", full)
    with pytest.raises(OSError, match="the disk is full"):
        run_sweep(ledger, home, toy_spec(), executor)


@pytest.mark.slow
def test_a_dead_worker_is_no_verdict_on_its_trial(ledger: Ledger, home: Home, cluster: None) -> None:
    spec = toy_spec(
        search={"trainer.fault": {"choice": ["", "die", "die_once", "leave"]}},
        run={"save_freq": 1},
        budget={"trials": 99, "concurrency": 2},
        hardware={"cores": 2},
    )
    trials = run_sweep(ledger, home, spec, make_executor("ray"))
    by_fault = {trial.params["trainer.fault"]: trial for trial in trials}
    assert len(trials) == 4
    assert by_fault["leave"].reason == "KeyboardInterrupt: not the user's"
    assert by_fault[""].state is TrialState.COMPLETE
    assert (by_fault["die_once"].state, by_fault["die_once"].attempts) == (TrialState.COMPLETE, 2)
    folder = home.root / "trials" / "toy@1" / str(by_fault["die_once"].number)
    assert (folder / "trained.log").read_text().split() == ["1", "2", "3", "4"]
    lost = by_fault["die"]
    assert (lost.state, lost.attempts) == (TrialState.LOST, 3)
    assert lost.reason is not None and lost.reason.startswith("lost 3 times; the last time, its process was")


@pytest.fixture
def untrained_model(tmp_path: Path) -> Path:
    """A policy of 25k parameters."""
    from dapo.arithmetic import WORDS
    from dapo.model import save_policy
    from small_policy import small_policy

    save_policy(small_policy(WORDS), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_both_leave_the_same_ledger_of_real_training(
    ledger: Ledger, home: Home, cluster: None, untrained_model: Path
) -> None:
    from dapo.config import Config

    changes: dict[str, Any] = {
        "model": {"path": str(untrained_model)},
        "data": {"train_batch_size": 2, "max_response_length": 8, "val_size": 4},
        "algorithm": {"filter_groups": {"enable": False}},
        "rollout": {"n": 2, "val_kwargs": {"n": 1}},
        "trainer": {"total_training_steps": 2, "device": "cpu"},
    }
    base = Config.model_validate(changes).model_dump(mode="json")
    ledgers = []
    for name in EXECUTORS:
        spec = toy_spec(
            name=name,
            trainer="dapo.trainer",
            model=base["model"],
            data=base["data"],
            config={key: section for key, section in base.items() if key not in ("model", "data")},
            search={
                "actor.entropy_coeff": {"float": [0.1, 1.0]},
                "rollout.tensor_model_parallel_size": {"choice": [1, 2]},
            },
            budget={"trials": 2, "concurrency": 2},
            hardware={"cores": 2, "devices": 2},
        )
        trials = run_sweep(ledger, home, spec, make_executor(name))
        ledgers.append([repeatable(ledger, trial) for trial in trials])
    assert ledgers[0] == ledgers[1]
    assert [trial["state"] for trial in ledgers[0]] == [TrialState.COMPLETE] * 2, ledgers[0][0]
    assert [trial["config"]["trainer"]["n_gpus_per_node"] for trial in ledgers[0]] == [None, None], "not the user's"
    assert len(ledgers[0][0]["evaluations"]) == 4
