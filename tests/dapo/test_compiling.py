"""`actor.use_torch_compile`: the same numbers from code that torch compiled."""

import copy
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dapo.config import Config
from dapo.model import response_logprobs
from dapo.trainer import machine_faults, train
from hearing import heard

pytestmark = [
    # Torch's compiler says so of torch itself, or hides it, which an error can't be.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
SEQUENCES = [([5, 6, 7], [9, 8, 7, 6]), ([5], [4]), ([9, 8, 7, 6, 5, 4, 3], [3, 2, 9, 9, 4, 8, 7]), ([7, 7], [2, 3])]


@pytest.mark.slow
def test_the_numbers_and_gradients_are_the_same_at_any_length(policy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "torch._dynamo")
    for checkpointing, chosen in ((False, SEQUENCES), (False, SEQUENCES[1:3]), (True, SEQUENCES * 3)):
        found = []
        for compiled in (False, True):
            model = copy.deepcopy(policy.model)
            model.compiled, model.gradient_checkpointing = compiled, checkpointing
            with torch.no_grad():
                scored, _ = response_logprobs(model, chosen, 0.7)
            logprobs, entropy = response_logprobs(model, chosen, 0.7)
            torch.autograd.backward((logprobs * torch.arange(len(logprobs)) + entropy).sum())
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            found.append((scored, logprobs.detach(), entropy.detach(), gradient))
        (*ours, our_gradient), (*theirs, their_gradient) = found
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(other, one, atol=1e-5, rtol=0)
        assert float((our_gradient - their_gradient).norm()) < 1e-5 * float(our_gradient.norm())
    assert "torch._inductor.graph" in sys.modules, "something was compiled"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not warned, "it isn't compiled anew for each model and length, until torch gives up"


@pytest.mark.slow
def test_a_run_on_two_processes_is_the_same_compiled(make_config) -> None:
    plain, compiled = (
        heard(train, make_config(trainer__n_gpus_per_node=2, actor__use_torch_compile=use)) for use in (False, True)
    )
    for one, other in zip(plain, compiled, strict=True):
        assert one.cost.tokens == other.cost.tokens
        for name in ("actor/pg_loss", "actor/entropy", "actor/grad_norm", "critic/score/mean"):
            assert other.metrics.get(name, 0.0) == pytest.approx(one.metrics.get(name, 0.0), rel=1e-5, abs=1e-6)


def test_it_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = Config.model_validate({"actor": {"use_torch_compile": True}})
    assert list(machine_faults(config)) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    (fault,) = machine_faults(config)
    assert fault.key == "actor.use_torch_compile" and "need a C++ compiler on this machine (g++ or clang++)" in (
        f"need {fault.need}"
    )


@pytest.mark.slow
def test_no_process_is_left_that_compiles(policy) -> None:
    code = (
        "import psutil, torch, small_policy; from dapo.model import response_logprobs\n"
        "model = small_policy.small_policy().model; model.compiled = True\n"
        "response_logprobs(model, [([5, 6], [7, 8])], 1.0); print(psutil.Process().children())"
    )
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "[]\n", done.stderr
