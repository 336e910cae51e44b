"""Tokens per second of `dapo.rollout.generate` against transformers' `generate`: same weights, batch and lengths."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from dapo.arithmetic import WORDS, problems
from dapo.model import Decoder, DecoderConfig, Policy, load_policy, save_policy
from dapo.rollout import generate
from dapo.tokenizer import Tokenizer, byte_tokenizer
from dapo.warmstart import SHAPE, initialise, tiny_path

PROMPTS, N, LENGTH = 32, 8, 48
REPEATS = 9
GOAL = 3.0


def untrained(folder: Path) -> Path:
    """Save the embedded model's shape with random weights."""
    tokenizer = byte_tokenizer(WORDS)
    ids = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    config = DecoderConfig(vocab_size=tokenizer.vocab_size, **ids, **SHAPE)
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(0))
    save_policy(Policy(model, tokenizer, config), folder)
    return folder


def ours(folder: Path, prompts: list[list[int]], endless: bool) -> Callable[[int], int]:
    """Return a function of a seed that generates and returns the number of response tokens."""
    policy = load_policy(folder)
    if endless:
        policy.tokenizer.eos_id = -1

    def once(seed: int) -> int:
        groups = generate(
            policy,
            prompts,
            N,
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_response_length=LENGTH,
            max_num_seqs=PROMPTS * N,
            generator=torch.Generator().manual_seed(seed),
        )
        return sum(len(response.token_ids) for group in groups for response in group)

    return once


def theirs(folder: Path, prompts: list[list[int]], endless: bool) -> Callable[[int], int]:
    """The same with transformers: left padding, a dynamic cache, rows that ended are padded to the last one's end."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.load(folder)
    if endless:
        model.generation_config.eos_token_id = None
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_id] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    def once(seed: int) -> int:
        torch.manual_seed(seed)
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                num_return_sequences=N,
                max_new_tokens=LENGTH,
                pad_token_id=tokenizer.pad_id,
            )[:, longest:]
        if endless:
            return found.numel()
        ends = found == tokenizer.eos_id
        return int((ends.cumsum(1) - ends.int() == 0).sum())

    return once


def compare(folder: Path, endless: bool) -> dict[str, list[float]]:
    """Time both, in turn, after one run each that isn't counted."""
    tokenizer = Tokenizer.load(folder)
    prompts = tokenizer.encode_batch([tokenizer.prompt(row.problem) for row in problems("train", PROMPTS, seed=0)])
    sides = {"ours": ours(folder, prompts, endless), "transformers": theirs(folder, prompts, endless)}
    found: dict[str, list[float]] = {f"{side}_{what}": [] for side in sides for what in ("tokens", "tokens_per_s")}
    for seed in range(REPEATS + 1):
        for side, once in sides.items():
            start = time.perf_counter()
            tokens = once(seed)
            seconds = time.perf_counter() - start
            if seed > 0:
                found[f"{side}_tokens"].append(tokens)
                found[f"{side}_tokens_per_s"].append(round(tokens / seconds, 1))
    return found


def run() -> dict[str, Any]:
    """Compare on the warm-started model, whose rows end by themselves, and with no end token, up to the limit."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "rows_end": compare(tiny_path(), endless=False),
            "equal_lengths": compare(untrained(Path(folder)), endless=True),
        }
    speed = {
        case: {side: statistics.median(found[f"{side}_tokens_per_s"]) for side in ("ours", "transformers")}
        for case, found in runs.items()
    }
    ratio = {case: each["ours"] / each["transformers"] for case, each in speed.items()}
    threads = torch.get_num_threads()
    return {
        "question": (
            f"Rollouts of the tiny model ({PROMPTS} prompts x {N}, up to {LENGTH} tokens, {threads} threads): "
            "tokens/s as a multiple of transformers' `generate`"
        ),
        "goal": f">= {GOAL:.0f}x",
        "measured": (
            f"{ratio['rows_end']:.1f}x ({speed['rows_end']['ours']:,.0f} tokens/s); "
            f"{ratio['equal_lengths']:.1f}x if no row ended before the limit "
            f"({speed['equal_lengths']['ours']:,.0f} tokens/s)"
        ),
        "met": ratio["rows_end"] >= GOAL,
        "peers": [
            {
                "name": "transformers generate",
                "version": transformers.__version__,
                "figure": f"{speed['rows_end']['transformers']:,.0f} tokens/s; "
                f"{speed['equal_lengths']['transformers']:,.0f} if no row ended before the limit",
            }
        ],
        "runs": {"threads": threads, **runs},
    }
