"""The parts that executors are made of: reports as bytes, one attempt, threads, preparation, trainers by name."""

import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_platform.driver import Crashed, Ended
from sweep_platform.errors import BadInput, PlatformError
from sweep_platform.executors import cluster
from sweep_platform.executors.attempt import run_attempt, thread_environment, threads_limited
from sweep_platform.executors.payload import Job, decode, encode
from sweep_platform.executors.preparation import Preparation
from sweep_platform.signals import interruptible
from sweep_platform.trainers import load_trainer
from toybox import trainer as toy
from toybox.sweeps import TRAINER
from toybox.trainer import Cost, Sample, Step

numbers = st.floats()
costs = st.builds(Cost, numbers, st.integers(0, 2**60), numbers, numbers, st.integers(0, 2**60), numbers)
samples = st.builds(
    Sample,
    *[st.text()] * 2,
    st.integers(0, 99),
    *[st.text()] * 4,
    st.booleans(),
    st.integers(0, 10**6),
)
steps = st.builds(
    Step,
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.dictionaries(st.text(), numbers | st.text(), max_size=4),
    costs,
    st.lists(samples, max_size=3).map(tuple),
    st.booleans(),
)


def same(a: Any, b: Any) -> bool:
    """Equal, where NaN equals NaN and 0.0 isn't -0.0."""
    if isinstance(a, float):
        return math.isnan(a) and math.isnan(b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


@given(steps)
def test_a_report_comes_back_as_it_was(step: Step) -> None:
    again = decode(encode(step))
    assert (again.step, again.total_steps, again.final) == (step.step, step.total_steps, step.final)
    assert again.metrics.keys() == step.metrics.keys()
    assert all(same(again.metrics[name], value) for name, value in step.metrics.items())
    assert all(same(getattr(again.cost, name), value) for name, value in vars(step.cost).items())
    assert len(again.evaluation) == len(step.evaluation)
    for one, other in zip(again.evaluation, step.evaluation, strict=True):
        assert {name: getattr(one, name) for name in vars(other)} == vars(other)
        assert one.step == step.step


def test_what_is_no_number_arrives_as_text() -> None:
    metrics: Any = {"a": None, "b": True, "c": "x"}
    step = Step(1, 2, metrics, Cost())
    assert decode(encode(step)).metrics == {"a": "None", "b": 1.0, "c": "x"}


def test_a_job_comes_back_as_it_was() -> None:
    job = Job("toy", {"a": {"b": [1, 0.1, None, True, "é"]}}, 3, "/somewhere")
    assert Job.load(job.dump()) == job


def test_an_attempt_ends_or_crashes(tmp_path: Path) -> None:
    seen: list[int] = []

    def report(data: bytes) -> bool:
        seen.append(decode(data).step)
        return True

    assert run_attempt(toy, {}, report, tmp_path) == Ended()
    assert seen == [1, 2, 3, 4]
    assert (tmp_path / "trainer.log").read_text().endswith(" plan: 4 steps\n")
    crash = run_attempt(toy, {"trainer": {"fault": "raise"}}, report, tmp_path)
    assert isinstance(crash, Crashed)
    assert crash.error == "ValueError: the loss exploded", "one line"
    assert crash.traceback.startswith("Traceback") and "_go_wrong" in crash.traceback
    refused = run_attempt(toy, {"trainer": {"nonsense": 1}}, report, tmp_path)
    assert isinstance(refused, Crashed) and refused.error.startswith("ValidationError: ")


@pytest.mark.parametrize("error", [RuntimeError("locked"), KeyboardInterrupt()])
def test_what_report_raises_is_no_fault_of_the_trainer(error: BaseException, tmp_path: Path) -> None:
    def report(data: bytes) -> bool:
        if decode(data).step == 3:
            raise error
        return True

    config = {"trainer": {"default_local_dir": str(tmp_path), "save_freq": 99}}
    with pytest.raises(type(error)):
        run_attempt(toy, config, report, tmp_path)
    assert '"step": 3' in (tmp_path / "state.json").read_text(), "it was stopped, so it left a checkpoint"


def test_threads_are_limited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with threads_limited(1):
        assert {name: os.environ[name] for name in thread_environment(1)} == thread_environment(1)
        assert torch.get_num_threads() == 1
    assert (os.environ["OMP_NUM_THREADS"], os.environ.get("MKL_NUM_THREADS")) == ("7", None)
    assert torch.get_num_threads() == before


def test_a_folder_that_a_killed_process_left_is_removed_and_a_used_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cluster, "_SOCKET_ROOM", 999)
    left = tmp_path / "sweep-left"
    left.mkdir()
    (left / "lock").touch()
    (tmp_path / "sweep-other").mkdir()
    with cluster._scratch() as one:
        assert not left.exists()
        with cluster._scratch() as two:
            assert one.parent == two.parent == tmp_path
            assert one.exists() and one != two
    assert [path.name for path in tmp_path.iterdir()] == ["sweep-other"], "nobody locked that one: not ours"


def test_preparation_runs_beside_this_process() -> None:
    progress: list[tuple[str, int, int]] = []
    with Preparation(TRAINER, {"trainer": {}}, 1, lambda *said: progress.append(said)) as preparation:
        preparation.wait()
    assert progress == [("toy", 0, 2), ("toy", 1, 2), ("toy", 2, 2)]


def test_a_failed_preparation_says_why() -> None:
    with (
        Preparation(TRAINER, {"trainer": {"seed": 13}}, 1, lambda *_: None) as preparation,
        pytest.raises(PlatformError, match=r"toybox.trainer could not prepare: RuntimeError: nothing to"),
    ):
        preparation.wait()


def test_a_preparation_whose_process_dies_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        Preparation(TRAINER, {}, 1, lambda *_: None) as preparation,
        pytest.raises(PlatformError, match="its process ended with 1"),
    ):
        preparation.wait()


def test_trainers_by_name() -> None:
    assert load_trainer(TRAINER) is toy
    for name in ("nosuch", "toybox.nosuch", "nosuch.trainer"):
        with pytest.raises(BadInput, match="a module on the path"):
            load_trainer(name)


def test_a_cluster_that_does_not_answer_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        pytest.raises(BadInput, match=rf"--address: got 127.0.0.1:{port} \(ConnectionRefused.*`ray status`"),
        cluster.connected(f"127.0.0.1:{port}", 1, 1),
    ):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the signal may come in a finaliser
def test_a_sigterm_while_ray_starts_is_an_interrupt() -> None:
    def when_ray_has_put_its_handler() -> None:
        while signal.getsignal(signal.SIGTERM) is ours:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    with interruptible():
        ours = signal.getsignal(signal.SIGTERM)
        scheduler = threading.Thread(target=when_ray_has_put_its_handler)
        scheduler.start()
        with pytest.raises(KeyboardInterrupt), cluster.connected(None, 1, 1):
            pass
        scheduler.join()
        assert signal.getsignal(signal.SIGTERM) is ours


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_sigterm_that_ray_loses_while_it_starts_is_an_interrupt() -> None:
    class Garbage:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with interruptible(), pytest.raises(KeyboardInterrupt), cluster._sigterm_interrupts():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))  # as Ray does
        Garbage()  # what is raised in a finaliser is ignored
    with pytest.raises(SystemExit), cluster._sigterm_interrupts():
        sys.exit(1)  # not by a signal
