"""What a run asks of this machine is told before torch is loaded."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from dapo.config import Config
from dapo.machine import count_devices
from dapo.trainer import machine_faults


def told(**trainer: object) -> dict[str, str]:
    found = machine_faults(Config.model_validate({"trainer": trainer}))
    return {fault.key: f"got {fault.got}; need {fault.need}; {fault.do}" for fault in found}


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_it_counts_what_torch_does(kind: str) -> None:
    module = getattr(torch, kind, None)
    assert count_devices(kind) == (module.device_count() if module is not None else 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU has what is missing here")
@pytest.mark.parametrize(
    ("device", "need"),
    [
        ("cuda", "got 'cuda'; need a cuda device; there is none here; set it to auto"),
        ("cuda:1", "got 'cuda:1'; need a cuda device; there is none here; set it to auto"),
        ("npu", "got 'npu'; need an NPU and torch_npu, which drives it; there is none here; set it to auto"),
    ],
)
def test_a_device_that_is_not_here_is_told(device: str, need: str) -> None:
    assert told(device=device) == {"trainer.device": need}
    assert told(device="auto") == told(device="cpu", n_gpus_per_node=4) == {}


def test_more_processes_than_npus_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    for number in range(4):
        (tmp_path / f"davinci{number}").touch()
    (tmp_path / "davinci_manager").touch()
    monkeypatch.setattr("dapo.machine.DEVICES", tmp_path)
    assert count_devices("npu") == 4
    assert told(device="npu", n_gpus_per_node=4) == {}
    short = "need at most the 4 npu devices of this machine; lower it"
    assert told(device="npu", n_gpus_per_node=8) == {"trainer.n_gpus_per_node": f"got 8; {short}"}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    assert told(device="npu", nnodes=2, n_gpus_per_node=1) == {"nproc-per-node": f"got 6; {short}"}


def test_several_machines_need_somebody_who_starts_them() -> None:
    need = "need 1 on this machine alone, `torchrun -m dapo.train` on every machine, or a sweep on a Ray cluster"
    assert told(nnodes=2) == {"trainer.nnodes": f"got 2; {need}; set it to 1, or start it so"}


def test_it_loads_no_torch() -> None:
    code = (
        "import sys, dapo.trainer as t; t.machine_faults(t.Config.model_validate({'trainer': {'device': 'cuda'}})); "
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
