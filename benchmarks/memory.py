"""Estimated peak memory of a run against what it had: models with random weights, whose responses reach the limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROMPT, RESPONSE = 48, 80
MODERN = {"num_attention_heads": 8, "num_key_value_heads": 2, "bos_token_id": None}
MODELS: dict[str, dict[str, Any]] = {
    "llama 45M": {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        **MODERN,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "gpt2 30M": {
        "model_type": "gpt2",
        "n_embd": 512,
        "n_layer": 8,
        "n_head": 8,
        "n_positions": 256,
        "vocab_size": 8000,
    },
}
"""By name: what `config.json` says."""
BATCH = {"train_batch_size": 4, "val_size": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "embedded, default": ("tiny", {}),
    "embedded, 64 prompts": ("tiny", {"data.train_batch_size": 64}),
    "llama": ("llama 45M", {}),
    "llama, checkpointing": ("llama 45M", {"model.enable_gradient_checkpointing": True}),
    "llama, small micro-batches": ("llama 45M", {"actor.ppo_max_token_len_per_gpu": 256}),
    "llama, KL": ("llama 45M", {"actor.use_kl_loss": True}),
    "llama, LoRA": ("llama 45M", {"model.lora_rank": 8}),
    "llama, bfloat16": ("llama 45M", {"model.dtype": "bfloat16"}),
    "gpt2 by transformers": ("gpt2 30M", {}),
}
_RUN = """
import json, sys
from dapo.memory import estimate_memory
from dapo.trainer import Config, train
config, peaks = Config.model_validate(json.loads(sys.argv[1])), []
def report(step):
    peaks.append(step.metrics["perf/peak_memory_gb"])
    return True
train(config, report)
estimate = estimate_memory(config)
print(json.dumps({"measured": max(peaks), "estimated": estimate.total_gb, "told": str(estimate)}))
"""


def _make_model(raw: dict[str, Any], folder: Path) -> None:
    """Save a model with random weights, and a tokenizer that has the embedded task's words."""
    import torch
    from dapo.arithmetic import WORDS
    from dapo.tokenizer import byte_tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = byte_tokenizer(WORDS)
    torch.manual_seed(0)
    settings = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    config = AutoConfig.for_model(**raw, **settings)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save(folder)


def _measure(model: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Train one update in a process of its own."""
    config: dict[str, Any] = {
        "model": {"path": model},
        "data": {} if model == "tiny" else {**BATCH, "max_prompt_length": PROMPT, "max_response_length": RESPONSE},
        "algorithm": {"filter_groups": {"enable": False}},
        "trainer": {"total_training_steps": 2, "test_freq": 0, "num_threads": 1},
    }
    for key, value in keys.items():
        section, name = key.split(".")
        config.setdefault(section, {})[name] = value
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _RUN, json.dumps(config)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run() -> dict[str, Any]:
    """Hold the estimate against `perf/peak_memory_gb` in each case."""
    runs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        paths = {"tiny": "tiny"}
        for name, raw in MODELS.items():
            paths[name] = str(Path(work) / name.replace(" ", "-"))
            _make_model(raw, Path(paths[name]))
        for case, (model, keys) in CASES.items():
            runs[case] = _measure(paths[model], keys)
            sys.stderr.write(f"{case}: {runs[case]}\n")
    ratios = {case: found["estimated"] / found["measured"] for case, found in runs.items()}
    low, high = min(ratios, key=lambda case: ratios[case]), max(ratios, key=lambda case: ratios[case])
    return {
        "question": "Estimated peak memory of a run on a CPU, as a multiple of what it had",
        "goal": "0.75-1.35x in every case",
        "measured": f"{ratios[low]:.2f}x ({low}) to {ratios[high]:.2f}x ({high}), {len(runs)} cases",
        "met": 0.75 <= ratios[low] and ratios[high] <= 1.35,
        "peers": [],
        "runs": runs,
    }
