"""A trial over several nodes: Ray Train starts a process for each device, and the leading one speaks with us.

What the processes compute together is the trainer's affair: they find RANK, WORLD_SIZE, LOCAL_RANK and their process
group, as under torchrun. All that is owned here (Ray Train's controller, the processes, the line to the leading one)
ends with the trial's worker, whatever ends that.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweep_platform.driver import Crashed, Ended, Lost, Outcome
from sweep_platform.driver.failures import machine_fault
from sweep_platform.driver.placing import nodes_of, trainer_section
from sweep_platform.errors import BadInput, Fault, one_line
from sweep_platform.executors.attempt import OUTPUT, run_job, thread_environment
from sweep_platform.executors.payload import Job

DEVICES = {"cuda": ("GPU", "nccl"), "npu": ("NPU", "hccl")}
"""By what `trainer.device` begins with: Ray's resource, and what exchanges tensors. Otherwise it is gloo."""
TIMEOUT_S = 7200
"""For which a process waits for the others, as the trainer itself has it."""
STATE = ".ray-train"
"""In the trial's folder, during an attempt: an empty mark that Ray Train insists on."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a trial lies on the nodes of a cluster."""

    nodes: int
    processes: int
    """On each node."""
    threads: int
    """Of each process."""
    device: str
    """`trainer.device`."""

    @classmethod
    def of(cls, config: Mapping[str, Any], threads: int) -> Layout:
        """The layout of a trial's config, as the driver hands it out."""
        section = trainer_section(config)
        processes, device = section.get("n_gpus_per_node") or 1, section.get("device") or "cpu"
        return cls(nodes_of(config), int(processes), threads, str(device))

    def needs(self, cluster: Mapping[str, float]) -> tuple[dict[str, float], str]:
        """What one process reserves on a cluster with such resources in all, and what exchanges its tensors."""
        for kind, (resource, backend) in DEVICES.items():
            if self.device.startswith(kind) or (self.device == "auto" and cluster.get(resource)):
                return {"CPU": self.threads, resource: 1}, backend
        return {"CPU": self.threads}, "gloo"

    def room_fault(self, trials: int = 1) -> Fault | None:
        """Why so many trials can't run at once on the nodes that the cluster has now; None where they can."""
        alive = [cast(Mapping[str, float], node["Resources"]) for node in cast(Any, ray).nodes() if node["Alive"]]
        needs, _ = self.needs(cast(Any, ray).cluster_resources())
        places = [int(min(node.get(key, 0) // need for key, need in needs.items())) // self.processes for node in alive]
        # A trial takes different nodes, so one that has room for many trials is no use to one trial more than once.
        if sum(min(place, trials) for place in places) >= trials * self.nodes:
            return None
        each = " and ".join(f"{need * self.processes:g} {key}" for key, need in needs.items())
        at_once = f", for each of {trials} trials at once" if trials > 1 else ""
        have = f"{sum(map(bool, places))} of the cluster's {len(alive)} have that"
        if trials > 1:
            have += f", which makes room for {sum(places) // self.nodes}"
        do = "lower it or budget.concurrency, or add nodes to the cluster that --address names"
        got = f"{self.nodes} nodes with {each} each{at_once}"
        return Fault("trainer.nnodes", got, f"as many as there are: {have}", do)


def check_shared(folder: Path) -> None:
    """See that a folder here is the same folder on every node: a trial's checkpoints lie there.

    Raises:
        BadInput: some nodes don't see what this process writes there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    look = ray.remote(num_cpus=0)(os.path.exists)
    with NamedTemporaryFile(dir=folder, prefix=".probe-") as probe:
        alive = [node for node in cast(Any, ray).nodes() if node["Alive"]]
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in alive]
        answers = ray.get([look.options(scheduling_strategy=place).remote(probe.name) for place in places])
    blind = [node["NodeManagerAddress"] for node, seen in zip(alive, answers, strict=True) if not seen]
    if blind:
        got = f"{folder}, which {', '.join(blind)} can't see into"
        need = "a folder that all nodes share, since trials over several nodes keep checkpoints there"
        raise BadInput([Fault("PLATFORM_HOME", got, need, "set it to one")])


def run_over_nodes(job: Job, report: Callable[[bytes], bool]) -> Outcome:
    """Run one attempt on the nodes that its config asks for; `report` is called here, by what the leading process says.

    Told to stop, all processes end at the same step, and the leading one leaves a checkpoint.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    line: Any = cast(Any, ray.remote(num_cpus=0)(_Line)).options(scheduling_strategy=here).remote()
    try:
        with ThreadPoolExecutor(1, "ray-train") as threads:
            fitted = threads.submit(_fit, job, line)
            fitted.add_done_callback(lambda _: line.close.remote())
            while (data := ray.get(line.hear.remote())) is not None:
                line.answer.remote(report(data))
        return _outcome(fitted, job)
    finally:
        ray.kill(line)
        shutil.rmtree(Path(job.folder) / STATE, ignore_errors=True)


class _Line:
    """An actor at which the leading process waits for answers, and the trial's worker for reports."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers: asyncio.Queue[bool] = asyncio.Queue()

    async def ask(self, data: bytes) -> bool:
        """Say something, and wait for the answer."""
        await self._said.put(data)
        return await self._answers.get()

    async def hear(self) -> bytes | None:
        """Wait for what is said; None once nothing more will be."""
        return await self._said.get()

    async def answer(self, go_on: bool) -> None:
        """Answer what was heard."""
        await self._answers.put(go_on)

    async def close(self) -> None:
        """Let nothing more be heard."""
        await self._said.put(None)


class _RankFailed(Exception):
    """The trainer raised in one of the processes: the error in a line, and its traceback."""


def _fit(job: Job, line: Any) -> None:
    """Start the processes, and wait for all of them.

    Raises:
        ray.train.TrainingFailedError: one failed or is gone, or they couldn't be started.
    """
    train, torch = cast(Any, import_module("ray.train")), cast(Any, import_module("ray.train.torch"))
    layout = Layout.of(job.config, job.threads)
    needs, backend = layout.needs(cast(Any, ray).cluster_resources())
    torch.TorchTrainer(
        _train_here,
        train_loop_config={"job": job.dump(), "line": line},
        torch_config=torch.TorchConfig(backend=backend, timeout_s=TIMEOUT_S),
        scaling_config=train.ScalingConfig(
            num_workers=layout.nodes * layout.processes,
            use_gpu="GPU" in needs,
            resources_per_worker=needs,
            placement_strategy="STRICT_SPREAD" if layout.processes == 1 else "SPREAD",
        ),
        run_config=train.RunConfig(
            name=STATE,
            storage_path=job.folder,
            failure_config=train.FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            worker_runtime_env={"env_vars": thread_environment(job.threads)},
        ),
    ).fit()


def _train_here(said: dict[str, Any]) -> None:
    """Train as one of the processes; Ray Train has set what names its place among them.

    Raises:
        _RankFailed: the trainer failed.
    """
    line, rank = said["line"], int(os.environ["RANK"])
    outcome = run_job(Job.load(said["job"]), lambda data: bool(ray.get(line.ask.remote(data))), rank)
    if isinstance(outcome, Crashed):
        raise _RankFailed(outcome.error, outcome.traceback)


def _outcome(fitted: Future[None], job: Job) -> Outcome:
    """How an attempt ended, by what became of its processes."""
    error = fitted.exception()
    if error is None:
        return Ended()
    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
    crashes = [Crashed(*failure.args) for failure in failures.values() if isinstance(failure, _RankFailed)]
    gone = [str(rank) for rank, failure in sorted(failures.items()) if not isinstance(failure, _RankFailed)]
    if gone:
        which = f"process {gone[0]}" if len(gone) == 1 else f"processes {', '.join(gone)}"
        output = Path(job.folder) / OUTPUT
        return Lost(f"{which} of {Layout.of(job.config, 1).nodes} nodes died, or the node did; see {output}")
    if not crashes:
        reason = getattr(error, "controller_failure", error)
        return Lost(f"its processes could not be started ({one_line(reason, 300)})")
    # The others' errors may just be that they can't reach the one that failed.
    return next((crash for crash in crashes if machine_fault(crash) is None), crashes[0])
