"""LoRA (arXiv 2106.09685) through peft: a run trains low-rank additions to the projections, and nothing else.

A checkpoint's `model/` has the additions merged into the weights, so that it is a model like any other; a run that
resumes starts from its first weights and the additions themselves, since merging rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dapo.config import ModelConfig
from dapo.errors import ModelError
from dapo.model import Policy
from dapo.model_base import PolicyModel
from dapo.model_decoder import adapter_state
from dapo.seeding import seed_for

ADAPTER = "default"
"""peft's name for the only adapter."""
FILE = "adapter.safetensors"
ROUNDING = 16
"""Times the precision of a number: by so much of the largest weight a merge may differ on another device."""


def add_adapter(policy: Policy, config: ModelConfig, seed: int) -> None:
    """Freeze a policy's weights and add an adapter to its projections; it changes nothing before it is trained.

    Args:
        policy: changed in place.
        config: rank, alpha and which projections.
        seed: of the adapter's random half.

    Raises:
        ModelError: peft isn't installed, or a name is no projection of this model.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ModelError("model.lora_rank: needs the package peft; install the extra lora, or set it to 0") from error
    known = policy.model.projections
    targets = known if config.target_modules == "all-linear" else config.target_modules
    if unknown := sorted({*targets} - {*known}):
        need = f"all-linear, or some of {', '.join(known)}"
        raise ModelError(f"model.target_modules: got {', '.join(unknown)}; need {need}; name some of these")
    settings = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=list(targets))
    device = policy.model.head_weight.device
    policy.model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft sees by itself which way GPT-2's weights lie
        torch.manual_seed(seed_for(seed, "lora"))
        inject_adapter_in_model(settings, policy.model, adapter_name=ADAPTER)
    policy.model.to(device)


def save_adapter(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write an adapter's tensors into a checkpoint's folder, if there are any."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if state:
        save_file(state, folder / FILE)


def load_adapter(model: PolicyModel, folder: Path) -> None:
    """Put a checkpoint's adapter in the place of a fresh one.

    Raises:
        ModelError: it isn't there, is another model's, or was trained on other weights.
    """
    try:
        state: Mapping[str, Tensor] = load_file(folder / FILE)
        merged = load_file(folder / "model" / "model.safetensors")
    except OSError as error:
        raise ModelError(f"{folder / FILE}: can't be read ({error}); need the adapter that the run trains") from error
    if state.keys() != adapter_state(model).keys():
        raise ModelError(f"{folder / FILE}: got the adapter of another model; need one that fits model.path")
    fresh = model.saved_state()
    model.load_state_dict(dict(state), strict=False)
    for name, tensor in model.saved_state().items():
        # What the adapter doesn't change is the same bit for bit in its checkpoint, or the first weights aren't;
        # what it does may be merged on another device, which rounds in its own way.
        slack = 0.0 if torch.equal(tensor, fresh[name]) else ROUNDING * torch.finfo(tensor.dtype).eps
        size = merged[name].abs().max().item()
        if not torch.allclose(tensor.cpu(), merged[name], rtol=0.0, atol=slack * size):
            raise ModelError(
                f"model.path: got other weights than {folder / FILE} was trained on ({name} differs); need those that "
                "the run started from; put them back, or set trainer.resume_mode: disable"
            )
