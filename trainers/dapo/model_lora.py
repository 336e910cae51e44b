"""Low-rank adapters (LoRA, arXiv 2106.09685) by peft: put into a decoder, and merged into its weights.

A decoder with adapters is computed, generated from and saved through `effective_weight`, so nothing else knows of
them. Only the adapters have gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dapo.config import ModelConfig
from dapo.errors import ModelError
from dapo.model_config import LINEAR_LAYERS
from dapo.model_decoder import Decoder, effective_weight
from dapo.seeding import seed_for

_OWN = ".lora_"
"""What the names of an adapter's tensors have in them."""
_BASE = ".base_layer."
"""What peft puts into the names of an adapted layer's own tensors."""


def add_adapters(model: Decoder, config: ModelConfig, seed: int) -> None:
    """Freeze a decoder and give it adapters of rank `lora_rank`, which change nothing yet.

    Args:
        model: gets its layers replaced by peft's.
        config: `lora_rank`, `lora_alpha` and `target_modules`.
        seed: of the run; the adapters begin the same for the same seed.

    Raises:
        ModelError: peft isn't installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ModelError(
            f"model.lora_rank: got {config.lora_rank} without the package peft; need it for adapters; "
            "install sweep-platform[lora]"
        ) from error
    names = LINEAR_LAYERS if config.target_modules == "all-linear" else config.target_modules
    settings = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=list(names))
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "lora"))
        inject_adapter_in_model(settings, model.model)


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapters' own tensors by name; empty without adapters."""
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if _OWN in name}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a decoder's weights under Hugging Face's names, adapters merged into them."""
    tensors = model.state_dict().items()
    state = {name.replace(_BASE, "."): tensor.detach() for name, tensor in tensors if _OWN not in name}
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight"):
            state[f"{name}.weight"] = effective_weight(module).detach()
    return state


def load_adapters(model: nn.Module, adapters: dict[str, Tensor], merged: dict[str, Tensor]) -> None:
    """Put saved adapters into a decoder that has been given new ones.

    Args:
        model: has adapters, on the weights that the saved ones were trained on.
        adapters: as `adapter_state` returned them.
        merged: as `merged_state` returned them; what no adapter touches must be the model's own.

    Raises:
        ModelError: the adapters are those of other layers, or of other weights.
    """
    own = adapter_state(model)
    if {name: tensor.shape for name, tensor in own.items()} != {name: t.shape for name, t in adapters.items()}:
        raise ModelError("got adapters of other layers or another rank; need those that the config describes")
    untouched = {name: tensor for name, tensor in model.state_dict().items() if _OWN not in name and _BASE not in name}
    for name, tensor in untouched.items():
        if name not in merged or not torch.equal(merged[name].to(tensor), tensor):
            raise ModelError(f"model.path: got other weights than the adapters were trained on ({name} differs)")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(adapters[name])
