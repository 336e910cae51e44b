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
from dapo.errors import DapoError, ModelError
from dapo.model_config import DecoderConfig, first_id, heads_of, is_native
from dapo.model_folder import KINDS, find_model, is_hub_id, lacking
from dapo.named_models import NAMED_SHAPES
from dapo.tokenizer import Tokenizer
from dapo.weight_shapes import expected_shapes, misfits, shapes_in

SOME = 3
"""Weights that don't fit are named up to this number."""

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
    folder = find_model(path, revision)
    if folder is None:
        _tell(f"model.path: {path} is no folder here; it is downloaded from the hub before the run")
        return faults, None
    found, heads = _folder_faults(config, folder)
    return faults + found, heads


def _folder_faults(config: Config, folder: Path) -> tuple[list[Fault], tuple[int, int] | None]:
    """Check the folder that `model.path` stands for."""
    path, need, do = config.model.path, f"{KINDS}, of a supported family", "name one of these"
    missing = lacking(folder)
    if missing:
        got = f"{path!r}, without {', '.join(missing)}" if folder.is_dir() else f"{path!r}, which is no folder"
        return [Fault("model.path", got, need, do)], None
    faults = list(_damaged(folder))
    try:
        raw = json.loads((folder / "config.json").read_text("utf-8"))
        if raw.get("quantization_config") is not None:
            need, do = "weights that can be trained: these are quantised", "name the model that they were made from"
            return [*faults, Fault("model.path", f"{path!r}, with a quantization_config", need, do)], None
        if not is_native(raw):
            family = raw.get("model_type")
            _tell(f"model.path: {folder} ({family}) is computed by transformers, slower than by our own decoder")
            return [*faults, *_slow_faults(config), *_positions(config, raw)], heads_of(raw)
        decoder = DecoderConfig.from_dict(raw)
    except (OSError, ValueError, TypeError, AttributeError, DapoError) as error:
        return [*faults, Fault("model.path", f"{path!r} ({error})", need, do)], None
    return faults or list(_misfitting(folder, decoder)), (decoder.num_attention_heads, decoder.num_key_value_heads)


@lru_cache
def _tell(note: str) -> None:
    """Say it once: a search checks hundreds of configs on the same model."""
    logger.warning(note)


def _damaged(folder: Path) -> Iterator[Fault]:
    """Files of weights that end too early, or hold something else, and a tokenizer that can't be read."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "np"):  # reads the header, and holds the file's length against it
                pass
        except (OSError, SafetensorError) as error:
            yield Fault("model.path", f"{path} ({error})", "whole safetensors", "copy or download it again")
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        Tokenizer.load(folder, first_id(settings.get("eos_token_id")), settings.get("pad_token_id"))
    except ModelError as error:
        yield Fault("model.path", str(error), "a tokenizer that can be read", "save or download it again")
    except (OSError, ValueError, AttributeError):  # of config.json, told by itself
        return


def _misfitting(folder: Path, decoder: DecoderConfig) -> Iterator[Fault]:
    """Whole files whose weights, or whose tokens, aren't those that config.json describes."""
    wrong = misfits(expected_shapes(decoder), shapes_in(folder))
    if wrong:
        more = f" and {len(wrong) - SOME} more" if len(wrong) > SOME else ""
        got = f"{folder}, with {', '.join(wrong[:SOME])}{more}"
        yield Fault("model.path", got, "the weights that its config.json describes", "save or download both again")
    tokens = Tokenizer.load(folder, decoder.eos_token_id, decoder.pad_token_id).vocab_size
    if tokens > decoder.vocab_size:
        got = f"{folder}, with a vocab_size of {decoder.vocab_size}"
        need = f"at least the {tokens} tokens of its tokenizer.json"
        yield Fault("model.path", got, need, "save model and tokenizer together")


def _slow_faults(config: Config) -> Iterator[Fault]:
    """Settings that models computed by transformers don't follow."""
    need = "false: this model is computed by transformers, with its dropout off and each sequence for itself"
    if config.model.enable_gradient_checkpointing:
        yield Fault("model.enable_gradient_checkpointing", "true", need, "set it to false")
    if config.actor.use_prefix_grouper:
        yield Fault("actor.use_prefix_grouper", "true", need, "set it to false")
    rollout = config.rollout
    if rollout.name == "builtin" and rollout.dtype not in (None, config.model.dtype):
        need = "null: this model is computed by transformers, which generates in model.dtype"
        yield Fault("rollout.dtype", str(rollout.dtype), need, "leave it out, or set model.dtype")


def _positions(config: Config, raw: Mapping[str, Any]) -> Iterator[Fault]:
    """The longest sequence fits: where positions are learnt, as GPT-2's, there is none beyond their number."""
    limit = raw.get("n_positions") or raw.get("max_position_embeddings")
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    if isinstance(limit, int) and prompt + response > limit:
        got = f"{response}, after prompts of up to {prompt} tokens"
        yield Fault("data.max_response_length", got, f"at most {limit} together, the model's positions", "lower one")
