"""Checks of `model.path`: what is there, what computes it, and what that can't do."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from dapo.batch import Fault
from dapo.config import Config
from dapo.errors import DapoError
from dapo.model_config import DecoderConfig, heads_of, is_native
from dapo.model_folder import KINDS, find_model, is_hub_id, lacking
from dapo.named_models import NAMED_SHAPES

logger = logging.getLogger(__name__)


def model_faults(config: Config) -> tuple[list[Fault], tuple[int, int] | None]:
    """Check the model folder, and return its numbers of heads."""
    path, revision = config.model.path, config.model.revision
    faults = []
    if revision is not None and not is_hub_id(path):
        need = "a model on the hub in model.path: nothing else has revisions"
        faults.append(Fault("model.revision", repr(revision), need, "leave it out"))
    named = NAMED_SHAPES.get(path)
    if named is not None:
        return faults, (named.num_attention_heads, named.num_key_value_heads)
    need, do = f"{KINDS}, of a supported family", "name one of these"
    folder = find_model(path, revision)
    if folder is None:  # an id, downloaded by `prepare`
        return faults, None
    missing = lacking(folder)
    if missing:
        got = f"{path!r}, without {', '.join(missing)}" if folder.is_dir() else f"{path!r}, which is no folder"
        return [*faults, Fault("model.path", got, need, do)], None
    try:
        raw = json.loads((folder / "config.json").read_text("utf-8"))
        if not is_native(raw) and raw.get("quantization_config") is None:
            _tell(folder, str(raw.get("model_type")))
            return [*faults, *_slow_faults(config), *_positions(config, raw)], heads_of(raw)
        decoder = DecoderConfig.from_dict(raw)
    except (OSError, ValueError, TypeError, AttributeError, DapoError) as error:
        return [*faults, Fault("model.path", f"{path!r} ({error})", need, do)], None
    return faults, (decoder.num_attention_heads, decoder.num_key_value_heads)


@lru_cache
def _tell(folder: Path, family: str) -> None:
    """Say once per folder that the slower way will be taken."""
    logger.warning(
        "model.path: %s (%s) is computed by transformers, which is slower than our own decoder", folder, family
    )


def _slow_faults(config: Config) -> Iterator[Fault]:
    """Settings that models computed by transformers don't follow."""
    need = "false: this model is computed by transformers, with its dropout off and each sequence for itself"
    if config.model.enable_gradient_checkpointing:
        yield Fault("model.enable_gradient_checkpointing", "true", need, "set it to false")
    if config.actor.use_prefix_grouper:
        yield Fault("actor.use_prefix_grouper", "true", need, "set it to false")


def _positions(config: Config, raw: Mapping[str, Any]) -> Iterator[Fault]:
    """The longest sequence fits: where positions are learnt, as GPT-2's, there is none beyond their number."""
    limit = raw.get("n_positions") or raw.get("max_position_embeddings")
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    if isinstance(limit, int) and prompt + response > limit:
        got = f"{response}, after prompts of up to {prompt} tokens"
        yield Fault("data.max_response_length", got, f"at most {limit} together, the model's positions", "lower one")
