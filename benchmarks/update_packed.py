"""Tokens per second of the policy update, packed and filled by tokens, against padded; and the share of the peak.

The batch has a skewed distribution of lengths: most responses are short, some ten times as long. What it is compared
with are this project's own padded micro-batches of so many responses, and transformers' model under the same loss,
padded the same way, with logits of whole rows: what most trainers run. The peak is that of a matrix product.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from dapo.accounting import update_flops
from dapo.batch import TrainBatch
from dapo.config import Config
from dapo.model import Policy, flops_per_token, load_policy
from dapo.model_folder import resolve_model
from dapo.throughput import measured_peak
from dapo.update import make_optimizer, policy_update

REPEATS = 5
GOAL, PEAK_GOAL = 3.0, 0.5
PROMPT = 32
Once = Callable[[], None]
CASES = {
    "tiny": {"prompts": 32, "n": 8, "shortest": 8, "longest": 480, "budget": 16384, "rows": (16, 64)},
    "smollm2-135m": {"prompts": 4, "n": 8, "shortest": 16, "longest": 480, "budget": 2048, "rows": (4, 16)},
}


def skewed(count: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths whose logarithm is about normal: the median is an eighth of the longest, which one has."""
    chance, median = random.Random(seed), longest / 8
    found = [round(min(max(chance.lognormvariate(0.0, 0.8) * median, shortest), longest)) for _ in range(count - 1)]
    return [*found, longest]


def batch_of(case: dict[str, Any], vocabulary: int) -> TrainBatch:
    """A batch of random tokens of such lengths, with advantages of both signs."""
    chance, batch = random.Random(1), TrainBatch()
    lengths = skewed(case["prompts"] * case["n"], case["shortest"], case["longest"])
    chance.shuffle(lengths)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(4, vocabulary) for _ in range(count)]

    for _ in range(case["prompts"]):
        prompt = tokens(PROMPT)
        for place in range(case["n"]):
            length = lengths.pop()
            batch.sequences.append((prompt, tokens(length)))
            batch.advantages.append(1.0 if place % 2 else -1.0)
            batch.masks.append([True] * length)
            batch.rollout_logprobs.append([-1.0] * length)
            batch.carried.append(False)
        batch.group_sizes.append(case["n"])
    return batch


def config_of(case: dict[str, Any], rows: int | None) -> Config:
    """Packed and filled by tokens; or padded, with so many responses in a micro-batch."""
    padded = rows is not None
    filled = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": rows} if padded else {}
    return Config.model_validate(
        {
            "data": {"train_batch_size": case["prompts"], "max_response_length": case["longest"]},
            "rollout": {"n": case["n"]},
            "model": {"use_remove_padding": not padded},
            "actor": {"ppo_max_token_len_per_gpu": case["budget"], "optim": {"lr": 1e-6}, **filled},
        }
    )


def ours(policy: Policy, case: dict[str, Any], batch: TrainBatch, rows: int | None) -> Once:
    """One update by this project's trainer."""
    config = config_of(case, rows)
    optimizer = make_optimizer(policy, config.actor.optim)

    def once() -> None:
        policy.model.remove_padding = config.model.use_remove_padding
        policy_update(policy, optimizer, batch, config, 1)

    return once


def theirs(folder: str, batch: TrainBatch, rows: int) -> Once:
    """The same loss on transformers' model: right-padded rows, log-probabilities out of whole logits."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    total = sum(len(response) for _, response in batch.sequences)

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        for first in range(0, len(batch.sequences), rows):
            part = slice(first, first + rows)
            _backward(model, batch.sequences[part], batch.advantages[part], total)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return once


def _backward(model: Any, sequences: list[tuple[list[int], list[int]]], advantages: list[float], total: int) -> None:
    longest = max(len(prompt) + len(response) for prompt, response in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    seen, counted = torch.zeros_like(ids), torch.zeros(len(sequences), longest - 1)
    for row, (prompt, response) in enumerate(sequences):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor(prompt + response)
        seen[row, :end] = 1
        counted[row, len(prompt) - 1 : end - 1] = 1.0
    logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    ratio = (logprobs - logprobs.detach()).exp()
    gain = ratio * torch.tensor(advantages)[:, None]
    clipped = ratio.clamp(0.8, 1.28) * torch.tensor(advantages)[:, None]
    (-(torch.minimum(gain, clipped) * counted).sum() / total).backward()


def compare(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Time all of them in turn, after one update each that isn't counted."""
    folder = resolve_model(name)
    policy = load_policy(folder)
    batch = batch_of(case, policy.config.vocab_size)
    tokens = sum(len(prompt) + len(response) for prompt, response in batch.sequences)
    sides = {"packed": ours(policy, case, batch, None)}
    sides |= {f"padded, {rows} rows": ours(policy, case, batch, rows) for rows in case["rows"]}
    sides |= {f"transformers, {rows} rows": theirs(str(folder), batch, rows) for rows in case["rows"]}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(REPEATS + 1):
        for side, once in sides.items():
            start = time.perf_counter()
            once()
            if repeat:
                seconds[side].append(time.perf_counter() - start)
    segments = [(0, len(prompt) + len(response)) for prompt, response in batch.sequences]
    flops = update_flops(segments, 1, lambda context: flops_per_token(policy.config, context))
    peak = measured_peak(torch.device("cpu"), torch.float32, torch.get_num_threads())
    return {"tokens": tokens, "flops": flops, "peak": peak, "seconds": seconds}


def run() -> dict[str, Any]:
    """Compare on both models."""
    runs = {name: compare(name, case) for name, case in CASES.items()}
    told, met = [], True
    for name, found in runs.items():
        median = {side: statistics.median(each) for side, each in found["seconds"].items()}
        padded, peer = (
            min(second for side, second in median.items() if side.startswith(kind))
            for kind in ("padded", "transformers")
        )
        packed, mfu = median["packed"], found["flops"] / median["packed"] / found["peak"]
        met &= padded / packed >= GOAL and peer / packed >= GOAL
        met &= mfu >= PEAK_GOAL or name != "smollm2-135m"
        told.append(
            f"{name}: {found['tokens'] / packed:,.0f} tokens/s, {padded / packed:.1f}x of padded, "
            f"{peer / packed:.1f}x of transformers padded; {mfu:.0%} of the peak ({found['peak'] / 1e9:.0f} GFLOP/s)"
        )
    return {
        "question": f"Update on skewed lengths (float32, {torch.get_num_threads()} threads): packed against padded",
        "goal": f">= {GOAL:.0f}x padded; on SmolLM2-135M {PEAK_GOAL:.0%} of the peak of a matrix product",
        "measured": "; ".join(told),
        "met": met,
        "peers": [{"name": "transformers", "version": transformers.__version__, "figure": "as measured"}],
        "runs": runs,
    }
