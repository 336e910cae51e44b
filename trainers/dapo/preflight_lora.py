"""Checks of a LoRA adapter's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec

from dapo.batch import Fault
from dapo.config import Config
from dapo.errors import ModelError
from dapo.model_config import DecoderConfig, is_native
from dapo.model_folder import find_model
from dapo.named_models import NAMED_SHAPES
from dapo.weight_shapes import Shape, projection_shapes


def _projections(config: Config) -> dict[str, Shape]:
    """Names that `target_modules` may have, and [out, in] of each; none of a model that transformers computes."""
    named = NAMED_SHAPES.get(config.model.path)
    if named is not None:
        return projection_shapes(named)
    folder = find_model(config.model.path, config.model.revision)
    try:
        raw = {} if folder is None else json.loads((folder / "config.json").read_text("utf-8"))
        return projection_shapes(DecoderConfig.from_dict(raw)) if raw and is_native(raw) else {}
    except (OSError, ValueError, TypeError, AttributeError, ModelError):  # told as a fault of model.path
        return {}


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
    known = _projections(config)
    unknown = [name for name in model.target_modules if known and name not in known]
    if model.target_modules != "all-linear" and (unknown or not model.target_modules):
        need = f"all-linear, or some of {', '.join(known)}"
        yield Fault("model.target_modules", str(list(model.target_modules)), need, "name some of these")
        return
    chosen = known if model.target_modules == "all-linear" else model.target_modules
    smallest = min((min(known[name]) for name in chosen if known), default=model.lora_rank)
    if model.lora_rank > smallest:
        need = f"at most {smallest}, the smallest side of the projections: beyond it nothing more can be learnt"
        yield Fault("model.lora_rank", str(model.lora_rank), need, "lower it, or set it to 0 to train all weights")
