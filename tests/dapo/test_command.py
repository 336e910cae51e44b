"""`dapo.train` as a command: alone, with processes of its own, and under torchrun."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dapo.command import INTERRUPTED, REFUSED, main, read_config
from dapo.errors import DataError

HELPERS = str(Path(__file__).parent / "helpers")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def config_file(make_config, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(make_config().model_dump(mode="json", exclude_unset=True)))
    return path


def start(*command: Any, folder: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HELPERS, *sys.path]), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*map(str, command)], stdout=pipe, stderr=pipe, env=environment | variables, text=True, cwd=folder
    )


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def steps(output: str) -> list[tuple[int, int, float]]:
    told = [json.loads(line) for line in output.splitlines()]
    assert [step["final"] for step in told] == [False] * (len(told) - 1) + [True]
    return [
        (step["step"], step["cost"]["tokens"], round(step["metrics"].get("actor/grad_norm", 0), 3)) for step in told
    ]


@pytest.mark.slow
def test_one_process_its_own_two_and_torchruns_two_say_the_same(config_file: Path) -> None:
    said = []
    for command in (
        (sys.executable, "-m", "dapo.train", config_file),
        (sys.executable, "-m", "dapo.train", config_file, "trainer.n_gpus_per_node=2"),
        (*TORCHRUN, "-m", "dapo.train", config_file, "rollout.tensor_model_parallel_size=2"),
    ):
        output, errors = (process := start(*command)).communicate(timeout=200)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        said.append(steps(output))
    assert said[0] == said[1] == said[2]
    assert len(said[0]) == 4


@pytest.mark.slow
def test_torchrun_on_two_nodes_is_one_run(config_file: Path, tmp_path: Path) -> None:
    alone = (sys.executable, "-m", "dapo.train", config_file)
    output, errors = (process := start(*alone)).communicate(timeout=100)
    assert process.returncode == 0, errors
    node = (*TORCHRUN[:3], "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    place = f"trainer.default_local_dir={tmp_path / 'run'}"
    port = free_port()
    agents = [
        start(*node, "--master-port", port, "--node-rank", rank, "-m", "dapo.train", config_file, place)
        for rank in (0, 1)
    ]
    said = [agent.communicate(timeout=200) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert steps(said[0][0]) == steps(output)
    assert said[1][0] == "", "the leading process alone speaks"
    assert (tmp_path / "run" / "global_step_3").is_dir()
    assert not list((tmp_path / "run").glob(".probe-*"))


@pytest.mark.slow
def test_a_folder_that_nodes_do_not_share_is_refused_before_the_first_token(config_file: Path, tmp_path: Path) -> None:
    both = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    command = (sys.executable, "-m", "dapo.train", config_file, "trainer.default_local_dir=run")
    processes = []
    for rank in ("0", "1"):
        (folder := tmp_path / rank).mkdir()
        processes.append(start(*command, folder=folder, **both, RANK=rank, LOCAL_RANK=rank))
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 1
        assert "default_local_dir: got run, another folder for process 1 than for process 0; need one that" in errors
        assert "Traceback" not in errors and output == ""


@pytest.mark.slow
def test_ctrl_c_saves_and_the_command_goes_on(config_file: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "dapo.train", config_file, f"trainer.default_local_dir={tmp_path / 'run'}")
    process = start(*command, "trainer.total_training_steps=400")
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["step"] < 2:
        continue
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert errors.splitlines()[-1].startswith("interrupted; the same command goes on")
    (kept,) = (tmp_path / "run").glob("global_step_*")
    done = int(kept.name.removeprefix("global_step_"))
    output, _ = start(*command, f"trainer.total_training_steps={done + 1}").communicate(timeout=60)
    assert [json.loads(line)["step"] for line in output.splitlines()] == [done, done + 1]


def test_every_fault_of_a_file_is_told_at_once(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["rollout.n=many", "actor.clip_ratoi=1", "actor.ppo_epochs=0"]
    assert main([str(config_file), *overrides]) == REFUSED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{config_file}:") and line.count("; ") >= 2 for line in lines)
    assert main([str(config_file), "trainer.use_hccl_checkpoint=true", "trainer.nnodes=2"]) == REFUSED
    assert f"{config_file}:trainer.use_hccl_checkpoint: got True; need no such key: on NPUs" in capsys.readouterr().err
    assert main([str(config_file), "trainer.nnodes=2"]) == REFUSED
    assert f"{config_file}:trainer.nnodes: got 2; need 1 on this machine alone" in capsys.readouterr().err
    assert main([str(config_file), "rollout.n=1", "rollout.tensor_model_parallel_size=3"]) == REFUSED
    told = capsys.readouterr().err
    assert f"{config_file}:rollout.n: got 1; need at least 2" in told
    assert f"{config_file}:rollout.tensor_model_parallel_size: got 3; need at most the 1 device at hand" in told


@pytest.mark.parametrize(
    ("text", "override", "told"),
    [
        ("[1]", "", "got list; need a config of this trainer in YAML"),
        ("{", "", "got a file that can't be read"),
        ("rollout: {n: 4}", "rollout.n", "override: got 'rollout.n'; need dotted.key=value"),
        ("rollout: {n: 4}", "rollout.n.m=1", "override: got 'rollout.n.m=1'; need a key: n is a value"),
        ("rollout: {n: 4}", "rollout.n=[", r"need dotted.key=value"),
    ],
)
def test_what_is_no_config_is_told(tmp_path: Path, text: str, override: str, told: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(DataError) as caught:
        read_config(tmp_path / "c.yaml", [override] if override else [])
    assert told in str(caught.value)


def test_an_exported_file_is_a_config(tmp_path: Path) -> None:
    exported = {"trainer": "dapo", "provenance": {"sweep": "aime"}, "config": {"rollout": {"n": 6}}}
    (tmp_path / "production.yaml").write_text(yaml.safe_dump(exported))
    config = read_config(tmp_path / "production.yaml", ["actor.clip_ratio_high=0.3", "data.train=other.jsonl"])
    assert (config.rollout.n, config.actor.clip_ratio_high, config.data.train) == (6, 0.3, "other.jsonl")
    with pytest.raises(DataError, match="can't be read"):
        read_config(tmp_path / "nosuch.yaml")
