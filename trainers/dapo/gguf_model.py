"""From a GGUF file to a Hugging Face folder, by transformers' own reader."""

from __future__ import annotations

from pathlib import Path

from dapo.errors import ModelError


def convert_gguf(source: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file as a Hugging Face folder.

    Weights are written as float32: what a quantised file stands for, exactly. What quantisation lost stays lost.
    The end and padding tokens are those that the file names for the model; transformers' tokenizer reader has
    been seen to take another.

    Args:
        source: the .gguf file.
        folder: where `config.json`, `model.safetensors` and the tokenizer go.

    Raises:
        ModelError: it can't be read, or it names no end token.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    try:
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except Exception as error:  # readers of damaged files raise whatever comes
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(f"{source}: can't be read ({reason}); need a GGUF of a causal language model") from error
    config = model.config
    if config.eos_token_id is None:
        raise ModelError(f"{source}: names no end token; need tokenizer.ggml.eos_token_id; choose another file")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    pad = config.eos_token_id if config.pad_token_id is None else config.pad_token_id
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
