"""From a GGUF file to a Hugging Face folder, by transformers' own reader."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
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
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    try:
        end = GGUFReader(source).get_field("tokenizer.ggml.eos_token_id")
        with redirect_stderr(StringIO()):  # progress bars, which can't be turned off otherwise
            model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(**place)
    except Exception as error:  # readers of damaged files raise whatever comes
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(f"{source}: can't be read ({reason}); need a GGUF of a causal language model") from error
    if end is None:  # transformers would take some other model's
        raise ModelError(f"{source}: names no end token; need tokenizer.ggml.eos_token_id; choose another file")
    eos = int(end.contents())
    pad = eos if model.config.pad_token_id is None else model.config.pad_token_id
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    model.config.eos_token_id = model.generation_config.eos_token_id = eos
    with redirect_stderr(StringIO()):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
