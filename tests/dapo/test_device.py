import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from dapo.device import BACKENDS, choose_device
from dapo.errors import DapoError


class FakeNpu:
    """What torch_npu adds to torch, of a machine with so many."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.chosen: list[int] = []

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.chosen.append(index)


def plugin(monkeypatch: pytest.MonkeyPatch, count: int) -> FakeNpu:
    """Have a module torch_npu that adds `torch.npu` and a device of this name."""
    module = FakeNpu(count)
    monkeypatch.setattr(torch, "npu", module, raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "device", lambda kind, index=None: SimpleNamespace(type=kind, index=index))
    return module


def test_an_npu_speaks_hccl_and_a_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = plugin(monkeypatch, 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    device = choose_device("npu")
    assert (device.torch.type, device.torch.index, device.backend) == ("npu", 3, "hccl")
    assert choose_device("npu:1").torch.index == 1
    assert choose_device("auto").torch.type == "npu"
    assert module.chosen == [3, 1, 3]


@pytest.mark.parametrize(
    ("count", "name", "told"),
    [
        (
            0,
            "npu",
            r"trainer\.device: got npu, and there is none here; need a npu device and torch_npu, which drives it",
        ),
        (2, "npu:2", r"trainer\.device: got npu:2; need one of the 2 of this machine, from 0; start fewer processes"),
        (2, "tpu", r"trainer\.device: got 'tpu'; need auto or one of \['cpu', 'cuda', 'npu'\]"),
    ],
)
def test_what_is_not_here_is_told(monkeypatch: pytest.MonkeyPatch, count: int, name: str, told: str) -> None:
    plugin(monkeypatch, count)
    with pytest.raises(DapoError, match=told):
        choose_device(name)


def test_without_its_plug_in_there_is_no_npu() -> None:
    assert "torch_npu" not in sys.modules
    with pytest.raises(DapoError, match="got npu, and there is none here"):
        choose_device("npu")
    assert choose_device("cpu").backend == BACKENDS["cpu"] == "gloo"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU has what is missing here")
def test_no_gpu_is_told_and_auto_means_the_cpu() -> None:
    assert choose_device("auto").torch == torch.device("cpu")
    with pytest.raises(DapoError, match="got cuda, and there is none here; need a cuda device; set it to auto"):
        choose_device("cuda")
