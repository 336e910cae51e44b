"""Several processes of one machine: they train as one does, are heard as one is, and end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from dapo.batch import StepMetrics
from dapo.config import Config
from dapo.errors import DapoError, SamplingExhausted
from dapo.launch import processes_of, step_from, step_to
from dapo.trainer import train
from hearing import heard
from training import weights

SHARED = {"trainer__n_gpus_per_node": 2}
SAME = ("critic/score/mean", "val/accuracy", "actor/entropy", "actor/pg_loss", "actor/grad_norm")


def ranks() -> list[psutil.Process]:
    """The processes that were started here and live."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "dapo.rank" in " ".join(child.cmdline())]


def assert_close(one: list[StepMetrics], other: list[StepMetrics]) -> None:
    assert [(step.step, step.final, step.cost.tokens) for step in one] == [
        (step.step, step.final, step.cost.tokens) for step in other
    ]
    assert [step.evaluation for step in one] == [step.evaluation for step in other]
    for mine, theirs in zip(one, other, strict=True):
        names = [name for name in SAME if name in mine.metrics]
        assert {name: mine.metrics[name] for name in names} == pytest.approx(
            {name: theirs.metrics[name] for name in names}, rel=1e-4, abs=1e-6
        )


def test_they_train_as_one_and_their_checkpoint_is_anyones(make_config, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "dapo")
    both = {"trainer__save_freq": 1, "trainer__test_freq": 1, "trainer__total_training_steps": 3}
    whole = heard(train, make_config(**both, trainer__default_local_dir=str(tmp_path / "whole")))
    together = make_config(**both, **SHARED, trainer__default_local_dir=str(tmp_path / "together"))
    caplog.clear()
    first = heard(train, together, stop_at=2)
    assert [line.split()[0] for line in caplog.messages if line.startswith(("plan", "update"))] == [
        "plan:",
        "update",
        "update",
    ]
    assert_close(first, whole[:3])
    assert any(len(step.evaluation) for step in first)
    for metrics in (step.metrics for step in first[1:]):
        assert metrics["perf/idle_share_min"] <= metrics["perf/idle_share"] <= metrics["perf/idle_share_max"]
        phases = sum(metrics[f"timing_s/{phase}"] for phase in ("gen", "reward", "update_actor"))
        assert metrics["timing_s/step"] == pytest.approx(phases), "wall time, not that of both devices"
        both, each = (metrics[f"perf/tokens_per_s{name}/gen"] for name in ("", "_per_device"))
        assert each == pytest.approx(both / 2)
    alone = together.model_copy(update={"trainer": together.trainer.model_copy(update={"n_gpus_per_node": None})})
    rest = heard(train, alone)
    assert_close(rest, whole[2:])
    mine, theirs = weights(tmp_path / "together"), weights(tmp_path / "whole")
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-3, msg=name)
    assert ranks() == []


@pytest.mark.slow
def test_a_run_of_one_goes_on_with_two(make_config, tmp_path: Path) -> None:
    whole = heard(train, make_config())
    place = {"trainer__default_local_dir": str(tmp_path / "run")}
    heard(train, make_config(**place), stop_at=2)
    rest = heard(train, make_config(**place, **SHARED, actor__ulysses_sequence_parallel_size=2))
    assert_close(rest, whole[2:])


@pytest.mark.slow
def test_a_process_that_dies_ends_all(make_config) -> None:
    def report(step: StepMetrics) -> bool:
        victim = next(child for child in ranks() if child.environ()["RANK"] == "1")
        victim.kill()
        return True

    with pytest.raises(DapoError, match=r"process 1 of 2 ended \(SIGKILL\)"):
        train(make_config(**SHARED), report)
    assert ranks() == []


@pytest.mark.slow
def test_the_reason_of_an_end_is_the_one_processes(make_config) -> None:
    impossible = {"algorithm": {"filter_groups": {"metric": "acc", "threshold": 9, "statistic": "mean", "upper": 10}}}
    with pytest.raises(SamplingExhausted) as alone:
        train(make_config(**impossible), lambda _: True)
    with pytest.raises(DapoError) as together:
        train(make_config(**impossible, **SHARED), lambda _: True)
    assert str(together.value) == str(alone.value)
    assert ranks() == []


@pytest.mark.slow
def test_what_report_raises_comes_through(make_config) -> None:
    def report(step: StepMetrics) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(make_config(**SHARED), report)
    assert ranks() == []


@pytest.mark.slow
def test_ctrl_c_ends_the_update_and_saves_it(make_config, tmp_path: Path) -> None:
    told: list[int] = []

    def report(step: StepMetrics) -> bool:
        told.append(step.step)
        if step.step == 1:
            signal.raise_signal(signal.SIGINT)
        return True

    with pytest.raises(KeyboardInterrupt):
        train(make_config(**SHARED, trainer__default_local_dir=str(tmp_path / "run")), report)
    assert told == [0, 1]
    assert (tmp_path / "run" / "global_step_1").is_dir()
    assert ranks() == []


SCRIPT = """
import sys
from dapo.config import Config
from dapo.trainer import train
train(Config.model_validate_json(sys.argv[1]), lambda step: print(step.step, flush=True) or True)
"""


@pytest.mark.slow
def test_they_end_with_whoever_started_them(make_config) -> None:
    config: Config = make_config(**SHARED, trainer__total_training_steps=500)
    helpers = str(Path(__file__).parent / "helpers")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([helpers, *sys.path])}
    command = [sys.executable, "-c", SCRIPT, config.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "0\n"
        started = ranks()
        assert len(started) == 2
        process.kill()
    limit = time.monotonic() + 60
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_how_many_are_started(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_of(make_config()) == 1
    assert processes_of(make_config(**SHARED)) == 2
    with pytest.raises(DapoError, match=r"trainer\.nnodes: got 2; need 1, or `torchrun -m dapo\.train`"):
        processes_of(make_config(trainer__nnodes=2))
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert processes_of(make_config(**SHARED, trainer__nnodes=2)) == 1


def test_a_step_comes_back_as_it_was(make_config) -> None:
    for step in heard(train, make_config(trainer__test_freq=1)):
        assert step_from(step_to(step)) == step
