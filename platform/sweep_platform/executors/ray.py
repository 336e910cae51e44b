"""Trials in processes of their own, by Ray Tune: on this machine, or on a cluster that is joined.

Tune only places the attempts and carries the messages. What runs next and when it stops is the driver's say,
through Tune's searcher and scheduler; Tune's own experiment state, logs, sync and screen are unused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from sweep_platform.driver import Assignment, Driver, Ended, Lost, Outcome
from sweep_platform.driver.placing import nodes_of, spread, trainer_section
from sweep_platform.errors import BadInput, Fault, PlatformError, one_line
from sweep_platform.executors.attempt import OUTPUT
from sweep_platform.executors.cluster import check_node, connected
from sweep_platform.executors.nodes import Layout, check_shared
from sweep_platform.executors.payload import Job, decode
from sweep_platform.executors.preparation import Preparation
from sweep_platform.executors.worker import END, JOB, STEP, TrialWorker
from sweep_platform.spec.model import available_cores

T = TypeVar("T")
LOOK_S = 5.0
"""Seconds between two looks at whether Ray still runs on this machine."""


class RayExecutor:
    """Runs as many trials at once as the budget's concurrency says.

    Args:
        address: A cluster to join; None starts one on this machine, with its cores, and ends it afterwards. A
            process that is connected already uses that connection and leaves it as it is.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def run(self, driver: Driver) -> None:
        """Run trials until nothing is left to start."""
        if driver.finished:
            return
        cores = driver.spec.hardware.cores or available_cores()
        needed = driver.spec.threads * driver.spec.budget.concurrency
        with (
            Preparation(
                driver.spec.trainer, driver.prepare_config(cores), cores, driver.observers.prepare_progress
            ) as preparation,
            connected(self._address, max(cores, needed), driver.spec.threads) as folder,
        ):
            _check_room(driver)
            preparation.wait()
            bridge = _Bridge(driver)
            try:
                _tune(bridge, folder)
            except Exception as error:
                if bridge.failure is None:
                    raise PlatformError(f"Ray Tune failed: {one_line(error)}") from error
            if bridge.failure is not None:
                raise bridge.failure


def _check_room(driver: Driver) -> None:
    """Refuse trials that the cluster can't hold, for which Tune would wait without end.

    Raises:
        BadInput: so it is, or the nodes of a trial share no folder.
    """
    spec = driver.spec
    config = spread(spec.base, spec.hardware.devices, spec.threads)
    if nodes_of(config) > 1:
        layout = Layout.of(config, trainer_section(config).get("num_threads") or spec.threads)
        if (fault := layout.room_fault(spec.budget.concurrency)) is not None:
            raise BadInput([fault])
        check_shared(driver.workplace(0).parent)
        return
    largest = max(node["Resources"].get("CPU", 0.0) for node in cast(Any, ray).nodes() if node["Alive"])
    if spec.threads > largest:
        need = f"at most {largest:g}, the CPUs of the cluster's largest node"
        do = "lower hardware.cores, or raise budget.concurrency"
        raise BadInput([Fault("hardware.cores", f"{spec.threads} for each trial", need, do)])


def _tune(bridge: _Bridge, folder: Path) -> None:
    """Let Tune run what the driver assigns."""
    spec = bridge.driver.spec
    resources: dict[str, float] = {"cpu": spec.threads}
    if nodes_of(spec.base) > 1:
        # The processes that it starts have their own; a byte, since nothing at all can't be asked.
        resources = {"cpu": 0, "memory": 1}
    elif cast(Any, ray).cluster_resources().get("GPU", 0) >= spec.hardware.devices:
        resources["gpu"] = spec.hardware.devices
    scheduler = cast(Any, _DriverScheduler)()
    scheduler.bridge = bridge
    tune.run(
        TrialWorker,
        name=bridge.driver.sweep.address,
        storage_path=str(folder),
        num_samples=-1,
        search_alg=_DriverSearcher(bridge),
        scheduler=scheduler,
        stop=_StopOnFailure(bridge),
        resources_per_trial=resources,
        reuse_actors=True,
        max_failures=0,
        raise_on_failed_trial=False,
        verbose=0,
        trial_dirname_creator=lambda trial: str(trial.trial_id),
    )


class _Bridge:
    """Keeps which of Tune's trials is which assignment, and the first error of the driver's."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.failure: Exception | None = None
        self._assignments: dict[str, Assignment] = {}
        self._outcomes: dict[str, Outcome] = {}

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        """Leave the driver out of what Tune saves of itself, which nobody reads."""
        return object, ()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Start the driver's next attempt as Tune's trial."""
        step = self._guarded(self.driver.next_trial)
        if step is None:
            return Searcher.FINISHED
        if not isinstance(step, Assignment):
            return None
        self._assignments[trial_id] = step
        if not self._has_room(step):
            return None
        folder = str(self.driver.workplace(step.number))
        job = Job(self.driver.spec.trainer, step.config, step.threads, folder)
        return {JOB: job.dump()}

    def _has_room(self, step: Assignment) -> bool:
        """Whether the cluster still has the nodes that a trial needs; an attempt without would only wait for them."""
        layout = Layout.of(step.config, step.threads)
        fault = layout.room_fault(len(self.driver.running)) if layout.nodes > 1 else None
        if fault is not None:
            self.failure = PlatformError(f"{fault}, then run the same command")
        return fault is None

    def heard(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Take what a worker says; return whether it goes on."""
        if END in result:
            self._outcomes[trial_id] = result[END]
            return False
        step = decode(result[STEP])
        go_on = self._guarded(lambda: self.driver.report(self._assignments[trial_id], step))
        if not go_on:
            self._outcomes[trial_id] = Ended()
        return bool(go_on)

    def lost(self, trial_id: str, error: Exception | None) -> None:
        """Take that the process of an attempt is gone, and what Ray says about it."""
        if "low on memory" in str(error):
            why = "memory ran out, so Ray killed its process"
        else:
            output = self.driver.folder(self._assignments[trial_id].number) / OUTPUT
            why = f"its process was killed, by want of memory or by hand, or crashed; its last words are in {output}"
        self._outcomes[trial_id] = Lost(why)

    def ended(self, trial_id: str) -> None:
        """Finish an attempt."""
        assignment = self._assignments.pop(trial_id)
        outcome = self._outcomes.pop(trial_id, Lost("its worker said nothing of its end"))
        self._guarded(lambda: self.driver.finish(assignment, outcome))

    def _guarded(self, call: Callable[[], T]) -> T | None:
        """Call the driver; after an error nothing more is called, and Tune is told to stop."""
        if self.failure is None:
            try:
                return call()
            except Exception as error:
                self.failure = error
        return None


class _DriverSearcher(Searcher):
    """Tune's searcher: the driver decides."""

    def __init__(self, bridge: _Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def suggest(self, trial_id: str) -> Any:
        """Tune wants a trial."""
        return self._bridge.suggest(trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tune is done with a trial."""
        self._bridge.ended(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the ledger has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class _DriverScheduler(FIFOScheduler):
    """Tune's scheduler: the driver decides."""

    bridge: _Bridge
    """Set before the first call."""
    _kept = False

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Have Tune keep as many idle workers as may run at once; it has no public setting for it.

        Of its own accord it keeps one while no trial waits, and each new worker takes seconds to load its libraries.
        """
        super().on_trial_add(tune_controller, trial)
        cache = getattr(tune_controller, "_actor_cache", None)
        if cache is not None and not self._kept:
            self._kept = True
            cache.increase_max(trial.placement_group_factory, by=self.bridge.driver.spec.budget.concurrency)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """A worker said something."""
        return str(self.CONTINUE if self.bridge.heard(trial.trial_id, result) else self.STOP)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A worker's process is gone; the searcher hears next that its trial is over."""
        self.bridge.lost(trial.trial_id, trial.get_pickled_error())


class _StopOnFailure(Stopper):
    """Ends Tune's run once the driver has failed, or Ray has: Tune would wait for it without end."""

    def __init__(self, bridge: _Bridge) -> None:
        self._bridge = bridge
        self._next_look = time.monotonic() + LOOK_S

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Stop no single trial."""
        return False

    def stop_all(self) -> bool:
        """Stop everything after a failure."""
        if self._bridge.failure is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_S
            try:
                check_node()
            except PlatformError as error:
                self._bridge.failure = error
        return self._bridge.failure is not None
