"""Trials over several nodes: a cluster of two or three raylets on this machine, of one core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_ledger import Ledger, TrialRecord, TrialState
from sweep_platform.errors import BadInput, PlatformError
from sweep_platform.executors import make_executor
from sweep_platform.home import Home
from sweep_platform.spec import SweepSpec
from toybox.sweeps import Notes, run_sweep, toy_spec

OVER = {"nnodes": 2}
TWO = {"cores": 1, "devices": 2}
SAME = (
    "actor/entropy",
    "actor/pg_loss",
    "actor/grad_norm",
    "val/accuracy",
    "reward/score_mean",
    "response_length/mean",
)
DRIVER = """
import json, sys
from pathlib import Path
from run_ledger import Ledger
from sweep_platform.driver import open_sweep
from sweep_platform.executors import make_executor
from sweep_platform.home import Home
from sweep_platform.spec import SweepSpec
home = Home(Path(sys.argv[1]))
spec = SweepSpec.from_dict(json.loads((home.root / "spec.json").read_text()))
with Ledger.open(home.ledger_url) as ledger, open_sweep(ledger, spec, home) as driver:
    make_executor("ray", address=sys.argv[2]).run(driver)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of two nodes with a core each, that this process has joined."""
    from ray.cluster_utils import Cluster
    from sweep_platform.executors.cluster import connected

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 2**20})
    cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    try:
        with connected(cluster.address, cores=1, threads=1):
            yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A policy of 25k parameters."""
    from dapo.arithmetic import WORDS
    from dapo.model import save_policy
    from small_policy import small_policy

    save_policy(small_policy(WORDS), tmp_path / "model")
    return tmp_path / "model"


def spec_of(model: Path, name: str, *, run: dict[str, Any], filters: Any = None, **keys: Any) -> SweepSpec:
    from dapo.config import Config

    changes: dict[str, Any] = {
        "model": {"path": str(model)},
        "data": {"train_batch_size": 2, "max_response_length": 8, "val_size": 4},
        "algorithm": filters or {"filter_groups": {"enable": False}},
        "rollout": {"n": 2, "val_kwargs": {"n": 1}},
        "trainer": {"total_training_steps": 2, "device": "cpu", **run},
    }
    base = Config.model_validate(changes).model_dump(mode="json")
    return toy_spec(
        name=name,
        trainer="dapo.trainer",
        model=base["model"],
        data=base["data"],
        config={key: section for key, section in base.items() if key not in ("model", "data")},
        **{
            "search": {"actor.entropy_coeff": {"float": [0.1, 1.0]}},
            "budget": {"trials": 1},
            "hardware": {"cores": 1},
            **keys,
        },
    )


def ray_processes(kind: str) -> list[psutil.Process]:
    """Living actors of a class, on the nodes that were started here."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and kind in process.cmdline()[0]:
                found.append(process)
    return found


def ranks() -> dict[int, psutil.Process]:
    """The processes that train together, by their place: each prints into a file of its own."""
    found = {}
    for process in ray_processes("RayTrainWorker"):
        with suppress(OSError):
            said = Path(os.readlink(f"/proc/{process.pid}/fd/1")).name
            if said.startswith("output"):
                found[int(said.removesuffix(".log").partition("-")[2] or 0)] = process
    return found


def left() -> list[str]:
    """What an attempt would have left on the cluster: processes, and what they had reserved."""
    import ray

    free = ray.available_resources().get("CPU", 0)
    held = [] if free == ray.cluster_resources()["CPU"] else [f"{free} CPUs are free"]
    return [*map(str, ray_processes("RayTrainWorker")), *map(str, ray_processes("TrialWorker")), *held]


def gone(limit: float = 30.0) -> bool:
    until = time.monotonic() + limit
    while (found := left()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not found
    return True


class At(Notes):
    """Does something once a step is reported."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        super().__init__()
        self.step, self.do, self.done = step, do, False

    def trial_reported(self, trial: TrialRecord, step_metrics: Any) -> None:
        super().trial_reported(trial, step_metrics)
        if step_metrics.step == self.step and not self.done:
            self.done = True
            self.do()

    @property
    def steps(self) -> list[int]:
        return [event[2] for event in self.events if event[0] == "trial_reported"]


@pytest.mark.slow
def test_a_trial_over_two_nodes_is_the_trial_of_one_process(
    nodes: Any, ledger: Ledger, home: Home, model: Path
) -> None:
    whole = run_sweep(ledger, home, spec_of(model, "whole", run={}), make_executor("inline"))[0]
    over = run_sweep(ledger, home, spec_of(model, "over", run=OVER, hardware=TWO), make_executor("ray"))[0]
    assert over.state is TrialState.COMPLETE, over.reason
    assert (over.cost.flops, over.cost.tokens) == (whole.cost.flops, whole.cost.tokens)
    for name in SAME:
        assert over.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-5, abs=1e-6), name
    assert ledger.evaluations(over.id) == ledger.evaluations(whole.id)
    assert gone()
    folder = home.root / "trials" / "over@1" / "0"
    assert {"trainer.log", "output.log", "output-1.log", "global_step_2"} <= {path.name for path in folder.iterdir()}
    assert not (folder / ".ray-train").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    [pytest.param(lambda: ranks()[1], id="rank"), pytest.param(lambda: ray_processes("TrialWorker")[0], id="worker")],
)
def test_a_process_that_dies_is_no_verdict_on_the_trial(
    nodes: Any, ledger: Ledger, home: Home, model: Path, victim: Callable[[], psutil.Process]
) -> None:
    notes = At(2, lambda: victim().kill())
    run = OVER | {"save_freq": 1, "total_training_steps": 4}
    spec = spec_of(model, "lost", run=run, hardware=TWO)
    (trial,) = run_sweep(ledger, home, spec, make_executor("ray"), observers=[notes])
    assert (trial.state, trial.attempts) == (TrialState.COMPLETE, 2), trial.reason
    assert notes.steps in ([0, 1, 2, 2, 3, 4], [0, 1, 2, 3, 3, 4]), "it went on from its checkpoint"
    assert gone()


@pytest.mark.slow
def test_a_paused_trial_goes_on_and_a_pruned_one_ends_on_all_nodes(
    nodes: Any, ledger: Ledger, home: Home, model: Path
) -> None:
    spec = spec_of(
        model,
        "pruned",
        run=OVER | {"total_training_steps": 4, "save_freq": 99},
        hardware=TWO,
        pruning={"rungs": [0.5]},
        budget={"trials": 2},
        search={"actor.ppo_epochs": {"int": [1, 2]}},
        priors=[{"name": f"p{epochs}", "params": {"actor.ppo_epochs": epochs}} for epochs in (1, 2)],
    )
    cheap, dear = run_sweep(ledger, home, spec, make_executor("ray"))
    assert (cheap.state, cheap.step) == (TrialState.COMPLETE, 4)
    assert (dear.state, dear.step) == (TrialState.PRUNED, 2)
    assert (home.root / "trials" / "pruned@1" / "1" / "global_step_2").is_dir()
    assert gone()


@pytest.mark.slow
def test_a_config_that_fails_is_told_in_its_own_words(nodes: Any, ledger: Ledger, home: Home, model: Path) -> None:
    hard = {"filter_groups": {"enable": True, "metric": "acc", "max_num_gen_batches": 1}}
    spec = spec_of(model, "bad", run=OVER, hardware=TWO, filters=hard)
    (trial,) = run_sweep(ledger, home, spec, make_executor("ray"))
    assert (trial.state, trial.attempts) == (TrialState.FAILED, 1)
    assert trial.reason is not None and trial.reason.startswith("SamplingExhausted: "), trial.reason
    assert "dapo/train.py" in (home.root / "trials" / "bad@1" / "0" / "traceback.txt").read_text()
    assert gone()


@pytest.mark.slow
def test_what_fits_on_no_nodes_is_refused_before_any_trial(nodes: Any, ledger: Ledger, home: Home, model: Path) -> None:
    spec = spec_of(model, "three", run={"nnodes": 3}, hardware={"cores": 1, "devices": 3})
    told = r"trainer.nnodes: got 3 nodes with 1 CPU each; need as many as there are: 2 of the cluster's 2 have that"
    with pytest.raises(BadInput, match=told):
        run_sweep(ledger, home, spec, make_executor("ray"))
    spec = spec_of(model, "wide", run=OVER, hardware={"cores": 2, "devices": 2}, budget={"trials": 2, "concurrency": 2})
    told = "with 1 CPU each, for each of 2 trials at once; need as many as there are: 2 of .*, which makes room for 1;"
    with pytest.raises(BadInput, match=told):
        run_sweep(ledger, home, spec, make_executor("ray"))


@pytest.mark.slow
def test_a_folder_that_other_nodes_do_not_see_is_refused(nodes: Any, tmp_path: Path) -> None:
    from sweep_platform.executors.nodes import check_shared

    check_shared(tmp_path)
    assert list(tmp_path.iterdir()) == []
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(BadInput, match=r"PLATFORM_HOME: got /proc/self/fd/\d+, which .* can't see into; need a"):
            check_shared(Path(f"/proc/self/fd/{descriptor}"))  # in another process it is something else
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing(nodes: Any, home: Home, model: Path) -> None:
    spec = spec_of(model, "killed", run=OVER | {"total_training_steps": 500}, hardware=TWO)
    (home.root / "spec.json").write_text(json.dumps(spec.to_dict()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", DRIVER, str(home.root), nodes.address]
    with subprocess.Popen(command, env=environment) as driver:
        until = time.monotonic() + 90
        while set(ranks()) != {0, 1} and time.monotonic() < until:
            assert driver.poll() is None
            time.sleep(0.2)
        assert set(ranks()) == {0, 1}
        driver.kill()
    assert gone(60)


@pytest.mark.slow
def test_a_lost_node_is_told_and_the_trial_waits_for_it(nodes: Any, ledger: Ledger, home: Home, model: Path) -> None:
    """The last test here: it takes a node away."""
    run = OVER | {"save_freq": 1, "total_training_steps": 4}
    spec = spec_of(model, "node", run=run, hardware=TWO)
    notes = At(2, lambda: nodes.remove_node(nodes.worker_nodes.copy().pop(), allow_graceful=False))
    with pytest.raises(
        PlatformError, match="trainer.nnodes: got 2 nodes .* 1 have that; .*, then run the same command"
    ):
        run_sweep(ledger, home, spec, make_executor("ray"), observers=[notes])
    sweep = ledger.find_sweep("node")
    assert sweep is not None
    assert [trial.state for trial in ledger.trials(sweep.id)] == [TrialState.WAITING]
    nodes.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    (trial,) = run_sweep(ledger, home, spec, make_executor("ray"))
    assert (trial.state, trial.step) == (TrialState.COMPLETE, 4), trial.reason
    assert gone()
