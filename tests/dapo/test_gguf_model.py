"""GGUF files become folders that the trainer, and transformers, read as the same model."""

import json
from pathlib import Path

import pytest
import torch
from dapo.errors import ModelError
from dapo.gguf_model import convert_gguf
from dapo.model import load_policy
from safetensors.torch import load_file
from tiny_gguf import TOKENS, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "<|im_start|>user\nab c1<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("quantised", [False, True])
def test_the_folder_computes_what_transformers_computes_from_the_file(tmp_path: Path, quantised: bool) -> None:
    source = write_gguf(tmp_path / "model.gguf", quantised=quantised)
    (tmp_path / "out").mkdir()
    convert_gguf(source, tmp_path / "out")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=source.name, dtype=torch.float32)
    policy = load_policy(tmp_path / "out")
    ids = torch.tensor([[1, 5, 9, 3, 2, 30], [4, 4, 7, 0, 33, 12]])
    with torch.no_grad():
        ours, theirs = policy.model(ids), reference(ids).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.float32}


def test_the_tokenizer_ends_with_the_models_end_token_and_knows_its_chat(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert_gguf(write_gguf(tmp_path / "model.gguf"), tmp_path / "out")
    tokenizer = load_policy(tmp_path / "out").tokenizer
    assert (tokenizer.eos_id, tokenizer.pad_id) == (2, 2)
    assert tokenizer.prompt("ab c1") == PROMPT
    ids = tokenizer.encode(PROMPT)
    assert [token for token in ids if token < 3] == [1, 2, 1]  # as tokens, not as letters
    assert ids == AutoTokenizer.from_pretrained(tmp_path / "out")(PROMPT)["input_ids"]
    assert tokenizer.encode("ab") == [TOKENS.index("ab")]
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_told(tmp_path: Path, share: float) -> None:
    source = write_gguf(tmp_path / "model.gguf")
    content = source.read_bytes()
    source.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match=r"model\.gguf: can't be read .* need a GGUF of a causal language model"):
        convert_gguf(source, tmp_path)


def test_a_file_without_end_token_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", end_token=False)
    with pytest.raises(ModelError, match="names no end token"):
        convert_gguf(source, tmp_path)
