"""Tokens per second of the rollout engine against transformers' `generate` and its continuous batching.

Same weights, prompts and lengths: each response has a limit of its own, most of them short and a few long, and no end
token. `generate` takes all rows at once and stops each at its limit; the others take rows as places become free. Ours
reads the weights anew each time, as a trainer must; the peers keep theirs.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from dapo.arithmetic import problems
from dapo.config import Config
from dapo.draws import Sampling
from dapo.engine_base import Rows
from dapo.model import load_policy, save_policy
from dapo.model_folder import resolve_model
from dapo.rollout import engine_of
from dapo.tokenizer import Tokenizer

NO_END = -1
MEDIAN_SHARE, SPREAD = 0.15, 0.9
"""Of the limits, which are log-normal: the median as a share of the longest, and the deviation of the logarithm."""


@dataclass(frozen=True)
class Case:
    """What is generated."""

    model: str
    prompts: int
    n: int
    longest: int
    """Tokens of a response, at most."""
    repeats: int
    goal: float


CASES = {
    "tiny": Case("tiny", 32, 8, 160, 7, 5.0),
    "smollm2-135m": Case("smollm2-135m", 12, 4, 96, 5, 3.0),
}
Generate = Callable[[int], None]


def limits_of(case: Case) -> torch.Tensor:
    """Tokens of each response [prompts * n]; one of them has as many as there may be."""
    drawn = torch.randn(case.prompts * case.n, generator=torch.Generator().manual_seed(0)) * SPREAD
    limits = (case.longest * MEDIAN_SHARE * drawn.exp()).round().clamp(1, case.longest).long()
    limits[0] = case.longest
    return limits


def ours(folder: Path, case: Case, prompts: list[list[int]], limits: torch.Tensor) -> Generate:
    """The engine, made anew from the trainer's weights each time."""
    policy, config = load_policy(folder), Config()
    owners = torch.arange(case.prompts).repeat_interleave(case.n)

    def once(seed: int) -> None:
        uniforms = torch.rand(len(owners), case.longest, generator=torch.Generator().manual_seed(seed))
        rows = Rows(prompts, owners, uniforms, limits)
        found = engine_of(policy, config).sample(rows, Sampling(1.0, 1.0, -1), NO_END)
        assert [len(row.token_ids) for row in found] == limits.tolist()

    return once


class AtTheirLimits(transformers.StoppingCriteria):
    """Each row stops at its own."""

    def __init__(self, limits: torch.Tensor) -> None:
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Whether each row [N] has its tokens."""
        return input_ids.shape[1] - self.prompt >= self.limits

    prompt = 0


def generate(folder: Path, case: Case, prompts: list[list[int]], limits: torch.Tensor) -> Generate:
    """`model.generate`: left padding, a dynamic cache, all rows until the last one's limit."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pad = Tokenizer.load(folder).pad_id
    model.generation_config.eos_token_id = None
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    stop = AtTheirLimits(limits)
    stop.prompt = longest
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "num_return_sequences": case.n}
    stopping = {"max_new_tokens": case.longest, "pad_token_id": pad, "stopping_criteria": [stop]}

    def once(seed: int) -> None:
        torch.manual_seed(seed)
        with torch.inference_mode():
            found = model.generate(input_ids=ids, attention_mask=mask, **sampling, **stopping)
        assert found.shape[1] == longest + case.longest

    return once


def continuous(folder: Path, case: Case, prompts: list[list[int]], limits: torch.Tensor) -> Generate:
    """`init_continuous_batching`: a paged cache, rows that enter as others end; its manager is kept."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    settings = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=case.longest, eos_token_id=NO_END
    )
    manager = model.init_continuous_batching(generation_config=settings)
    manager.start()
    rows = [prompt for prompt in prompts for _ in range(case.n)]

    def once(seed: int) -> None:
        torch.manual_seed(seed)
        wanted = {
            manager.add_request(row, max_new_tokens=limit): limit
            for row, limit in zip(rows, limits.tolist(), strict=True)
        }
        while wanted:
            found = manager.get_result(timeout=60)
            assert found is not None and found.error is None, found
            if found.is_finished():
                assert len(found.generated_tokens) == wanted.pop(found.request_id)

    return once


SIDES = {"ours": ours, "generate": generate, "continuous batching": continuous}


def compare(case: Case, folder: Path) -> dict[str, list[float]]:
    """Tokens per second of all sides, in turn, after one run each that isn't counted."""
    policy = load_policy(resolve_model(case.model))
    save_policy(policy, folder)
    tokenizer = policy.tokenizer
    texts = [tokenizer.prompt(row.problem) for row in problems("train", case.prompts, seed=0)]
    prompts, limits = tokenizer.encode_batch(texts), limits_of(case)
    sides = {name: make(folder, case, prompts, limits) for name, make in SIDES.items()}
    found: dict[str, list[float]] = {side: [] for side in sides}
    for seed in range(case.repeats + 1):
        for side, once in sides.items():
            start = time.perf_counter()
            once(seed)
            if seed > 0:
                found[side].append(round(int(limits.sum()) / (time.perf_counter() - start), 1))
    return found


def run() -> dict[str, Any]:
    """Compare on both models."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    runs = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            runs[name] = compare(case, Path(folder))
    speed = {name: {side: statistics.median(each) for side, each in found.items()} for name, found in runs.items()}
    ratios = {
        name: {side: each["ours"] / each[side] for side in SIDES if side != "ours"} for name, each in speed.items()
    }
    sizes = {name: f"{case.prompts} x {case.n} rows of up to {case.longest} tokens" for name, case in CASES.items()}
    threads = torch.get_num_threads()
    told = [
        f"{name}: {ratios[name]['generate']:.1f}x `generate`, {ratios[name]['continuous batching']:.1f}x continuous "
        f"batching ({speed[name]['ours']:,.0f} tokens/s)"
        for name in CASES
    ]
    return {
        "question": f"Generation, most rows short and a few long, {threads} threads, tokens/s as a multiple of "
        f"transformers' ({'; '.join(f'{name}: {size}' for name, size in sizes.items())})",
        "goal": "; ".join(f"{name} >= {case.goal:.0f}x" for name, case in CASES.items()) + " the faster peer's",
        "measured": "; ".join(told),
        "met": all(min(ratios[name].values()) >= case.goal for name, case in CASES.items()),
        "peers": [
            {"name": f"transformers {side}", "version": transformers.__version__, "figure": f"{rate:,.0f} tokens/s"}
            for each in speed.values()
            for side, rate in each.items()
            if side != "ours"
        ],
        "runs": {"threads": threads, **runs},
    }
