import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dapo.config import Config
from dapo.model_config import DecoderConfig
from dapo.model_decoder import Decoder
from dapo.named_models import TINY
from dapo.preflight import preflight
from dapo.weight_shapes import expected_shapes, misfits, shapes_in
from safetensors.torch import load_file, save_file


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_they_are_the_decoders_own(family: str, tied: bool) -> None:
    config = DecoderConfig.from_dict(TINY.to_dict() | {"model_type": family, "tie_word_embeddings": tied})
    with torch.device("meta"):
        state = Decoder(config).state_dict()
    assert expected_shapes(config) == {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_a_folders_shapes_are_read_without_frequencies_that_its_config_states(model_folder: Path) -> None:
    config = DecoderConfig.from_dict(json.loads((model_folder / "config.json").read_text()))
    assert misfits(expected_shapes(config), shapes_in(model_folder)) == []
    weights = load_file(model_folder / "model.safetensors")
    (model_folder / "model.safetensors").unlink()
    head = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(weights, model_folder / "a.safetensors")
    save_file(head | frequencies, model_folder / "b.safetensors")
    assert misfits(expected_shapes(config), shapes_in(model_folder)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": 9}, "with no model.layers.2.input_layernorm.weight"),
        ({"num_hidden_layers": 1}, "which config.json doesn't have"),
        ({"intermediate_size": 96}, "where config.json says [96, 32]"),
        ({"model_type": "qwen3"}, "with no model.layers.0.self_attn.q_norm.weight"),
        ({"vocab_size": 999}, "with model.embed_tokens.weight of [259, 32] where config.json says [999, 32]"),
    ],
)
def test_weights_of_another_shape_are_told_before_the_run(
    model_folder: Path, change: dict[str, Any], told: str
) -> None:
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (fault,) = preflight(Config.model_validate({"model": {"path": str(model_folder)}}))
    assert fault.key == "model.path"
    assert told in fault.got and len(fault.got) < 600
    assert fault.need == "the weights that its config.json describes"


def test_a_vocabulary_that_lacks_tokens_is_told_before_the_run(model_folder: Path) -> None:
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 100}))
    weights = load_file(model_folder / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:100].clone()
    save_file(weights, model_folder / "model.safetensors")
    (fault,) = preflight(Config.model_validate({"model": {"path": str(model_folder)}}))
    assert fault.got.endswith("with a vocab_size of 100")
    assert "tokens of its tokenizer.json" in fault.need
