"""The embedded model `tiny`: about 1M parameters, taught by supervision on generated solutions, then cached.

Like a base model's training text, the solutions are of mixed quality. Some are worked step by step, some state
an answer at once, and in some a carry or borrow is forgotten. Supervision copies the mixture; which habits lead
to right answers is left for reinforcement learning to find out.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from dapo.arithmetic import LARGEST, Chain, Step, draw, worked
from dapo.batch import Progress
from dapo.model import Decoder, DecoderConfig, Policy, response_logprobs
from dapo.tokenizer import byte_tokenizer

WORDS = (
    *("Find ", "Compute ", "What ", "is ", "the ", "value ", "of ", "Evaluate "),
    *("Answer: ", "; "),
)
"""Whole words of the generated task: one token each."""
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
"""Of the decoder; about 0.8M parameters."""
STEPS = 400
"""Supervised updates."""
BATCH = 96
"""Solutions per update."""
LEARNING_RATE = 3e-3
"""Peak; 5 % warm-up, then cosine to a tenth."""
SEED = 0
HASTY = {1: 0.3, 2: 0.4, 3: 0.5, 4: 0.5, 5: 0.5}
"""Share of solutions, by level, that state an answer without working."""
SLIP = 0.4
"""Share of operations in which every carry or borrow is forgotten."""


def train_tiny(progress: Progress | None = None) -> Policy:
    """Train the embedded model from scratch; takes about a minute of two cores."""
    tokenizer = byte_tokenizer(WORDS)
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.eos_id, pad_token_id=tokenizer.pad_id, **SHAPE
    )
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(SEED))
    rng = random.Random(SEED)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, LEARNING_RATE, STEPS, pct_start=0.05, div_factor=10, final_div_factor=1, cycle_momentum=False
    )
    for step in range(STEPS):
        texts = [sample(rng) for _ in range(BATCH)]
        prompts = tokenizer.encode_batch([tokenizer.prompt(question) for question, _ in texts])
        answers = tokenizer.encode_batch([answer for _, answer in texts])
        pairs = [(prompt, [*answer, tokenizer.eos_id]) for prompt, answer in zip(prompts, answers, strict=True)]
        logprobs, _ = response_logprobs(model, pairs, 1.0)
        optimiser.zero_grad()
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if progress is not None:
            progress("warm start of the embedded model", step + 1, STEPS)
    return Policy(model, tokenizer, config)


def initialise(model: Decoder, generator: torch.Generator) -> None:
    """Draw the weight matrices from N(0, 0.02), the residual outputs scaled down by depth (GPT-2)."""
    depth = (2 * model.config.num_hidden_layers) ** -0.5
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            scale = depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            torch.nn.init.normal_(weight, std=0.02 * scale, generator=generator)


def sample(rng: random.Random) -> tuple[str, str]:
    """Draw a training problem and a solution of mixed quality."""
    level = rng.choice(tuple(HASTY))
    chain = draw(level, "train", rng)
    if rng.random() < HASTY[level]:
        return chain.question, f"Answer: {chain.answer}"
    return chain.question, worked(_with_slips(chain, rng))


def _with_slips(chain: Chain, rng: random.Random) -> list[tuple[Step, int]]:
    """Work a chain, forgetting carries now and then; a wrong result is carried on consistently."""
    steps: list[tuple[Step, int]] = []
    left = chain.numbers[0]
    for operator, right in zip(chain.operators, chain.numbers[1:], strict=True):
        step = Step(left, operator, right)
        result = without_carries(step) if rng.random() < SLIP else step.result
        steps.append((step, result if 0 <= result <= LARGEST else without_carries(step)))
        left = steps[-1][1]
    return steps


def without_carries(step: Step) -> int:
    """Return the result of an operation in which no carry or borrow passes from one digit to the next."""
    total, place, left, right = 0, 1, step.left, step.right
    while left or (right and step.operator != "*"):
        digit = left % 10
        if step.operator == "*":
            digit *= right
        else:
            digit += right % 10 if step.operator == "+" else -(right % 10)
            right //= 10
        total += digit % 10 * place
        left, place = left // 10, place * 10
    return total
