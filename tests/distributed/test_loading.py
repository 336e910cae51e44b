"""Several processes load a model in parts: each reads and holds its own rows, and together they have the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dapo.model import Decoder, DecoderConfig, Policy, save_policy
from mesh_start import started_together
from small_policy import small_policy

MB = 2**20


def model_of(folder: Path, width: int, layers: int) -> tuple[Path, float]:
    """A random Llama in bfloat16, its vocabulary odd; its folder, and the MB that it takes in float32."""
    small = small_policy()
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    config = DecoderConfig.from_dict(small.config.to_dict() | shape | {"head_dim": width // 2, "vocab_size": 1001})
    model = Decoder(config).to(torch.bfloat16)
    save_policy(Policy(model, small.tokenizer, config), folder)
    return folder, 4 * sum(weight.numel() for weight in model.parameters()) / MB


def loaded(processes: int, folder: Path, small: Path, *, when: str, fsdp_size: int = -1, compare: bool = False) -> dict:
    said = started_together(
        processes, "loading_rank", folder, when, fsdp_size, "compare" if compare else "measure", small
    )
    found: dict[str, float] = json.loads(said)
    return found


@pytest.mark.parametrize(("processes", "fsdp_size"), [(2, -1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_the_parts_are_the_model_bit_for_bit(tmp_path: Path, processes: int, fsdp_size: int) -> None:
    folder, _ = model_of(tmp_path / "model", 36, 3)
    assert loaded(processes, folder, folder, when="first", fsdp_size=fsdp_size, compare=True)["same"]


@pytest.mark.slow
def test_a_process_holds_its_part_of_a_large_model_and_never_more(tmp_path: Path) -> None:
    small, _ = model_of(tmp_path / "small", 36, 3)
    folder, whole = model_of(tmp_path / "model", 1024, 8)
    assert whole > 400
    after, first = (loaded(2, folder, small, when=when)["grown"] for when in ("after", "first"))
    assert after > whole, "the measure sees a whole copy"
    assert first < 0.8 * whole, "half of the weights, and half of the file's pages"
