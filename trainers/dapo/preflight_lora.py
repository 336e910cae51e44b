"""Checks of a LoRA adapter's settings."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from dapo.batch import Fault
from dapo.config import Config
from dapo.model_projections import ALL_LINEAR


def lora_faults(config: Config) -> Iterator[Fault]:
    """A package that lacks, projections that no model here has, and settings that nothing reads."""
    model = config.model
    if not model.lora_rank:
        for name in ("lora_alpha", "target_modules"):
            value = getattr(model, name)
            if value != type(model).model_fields[name].default:
                need = "its default with lora_rank: 0, which doesn't read it"
                yield Fault(f"model.{name}", str(value), need, "leave it out, or set a rank")
        return
    if find_spec("peft") is None:
        do = "pip install 'sweep-platform[lora]', or set it to 0"
        yield Fault("model.lora_rank", str(model.lora_rank), "the package peft, which isn't installed", do)
    unknown = [name for name in model.target_modules if name not in ALL_LINEAR]
    if model.target_modules != "all-linear" and (unknown or not model.target_modules):
        need = f"all-linear, or some of {', '.join(ALL_LINEAR)}"
        yield Fault("model.target_modules", str(list(model.target_modules)), need, "name some of these")
