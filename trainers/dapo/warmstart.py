"""The embedded model `tiny`: about 1M parameters, taught by supervision on generated solutions, then cached.

Like a base model's training text, the solutions are of mixed quality. Some are worked step by step, some state
an answer at once, and in some a carry or borrow is forgotten. Supervision copies the mixture; which habits lead
to right answers is left for reinforcement learning to find out.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import torch

from dapo.arithmetic import LARGEST, WORDS, Chain, Step, draw, solution, worked
from dapo.batch import Progress
from dapo.folder_cache import cached_folder
from dapo.model import Decoder, Policy, response_logprobs, save_policy
from dapo.muon import Muon
from dapo.named_models import TINY
from dapo.tokenizer import byte_tokenizer

CLEAN_STEPS, MIXED_STEPS = 240, 36
"""Updates on clean working, which teach the ability; then on mixed text, which buries it."""
BATCH = 96
"""Solutions per update."""
MATRIX_RATE, OTHER_RATE = 0.02, 3e-3
"""Peak learning rates of Muon (hidden matrices) and AdamW (embedding and norms)."""
SEED = 0
HASTY = {1: 0.5, 2: 0.6, 3: 0.6, 4: 0.6, 5: 0.6}
"""Share of mixed solutions, by level, that state an answer without working."""
SLIP = 0.5
"""Share of operations in mixed solutions in which every carry or borrow is forgotten."""


def tiny_path(progress: Progress | None = None) -> Path:
    """Return the folder of the embedded model, trained first if this machine doesn't have it yet.

    It is kept under a hash of the code that makes it and of torch's version, so that a change makes a new one.
    """
    return cached_folder(f"tiny-{_recipe()}", lambda folder: save_policy(train_tiny(progress), folder))


def _recipe() -> str:
    """Hash what determines the weights: the modules that make data, tokens, model and updates, and torch."""
    here = Path(__file__).parent
    digest = hashlib.sha256(torch.__version__.encode())
    for name in (
        "warmstart",
        "arithmetic",
        "tokenizer",
        "model_config",
        "named_models",
        "model_decoder",
        "model_logprobs",
        "muon",
    ):
        digest.update((here / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def train_tiny(progress: Progress | None = None) -> Policy:
    """Train the embedded model from scratch; takes about a minute of two cores."""
    tokenizer = byte_tokenizer(WORDS)
    model = Decoder(TINY)
    initialise(model, torch.Generator().manual_seed(SEED))
    optimisers = _optimisers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimiser, _rate) for optimiser in optimisers]
    rng = random.Random(SEED)
    total = CLEAN_STEPS + MIXED_STEPS
    for step in range(total):
        texts = [sample(rng, mixed=step >= CLEAN_STEPS) for _ in range(BATCH)]
        prompts = tokenizer.encode_batch([tokenizer.prompt(question) for question, _ in texts])
        answers = tokenizer.encode_batch([answer for _, answer in texts])
        pairs = [(prompt, [*answer, tokenizer.eos_id]) for prompt, answer in zip(prompts, answers, strict=True)]
        logprobs, _ = response_logprobs(model, pairs, 1.0)
        model.zero_grad()
        torch.autograd.backward(-logprobs.mean())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        if progress is not None:
            progress("warm start of the embedded model", step + 1, total)
    return Policy(model, tokenizer, TINY)


def _optimisers(model: Decoder) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, which learns to add several times faster than AdamW; AdamW for the rest."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.dim() == 2]
    chosen = set(matrices)
    others = [weight for weight in model.parameters() if weight not in chosen]
    return [
        Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int) -> float:
    """Return the share of the peak rate.

    Clean text: 5 % warm-up, constant to the middle, then down to 5 %. Mixed text: from 20 % down to 2 %, enough to
    take on its habits and too little to unlearn the ability.
    """
    done = (step + 1) / CLEAN_STEPS
    if done <= 1.0:
        return min(done / 0.05, 1.0, max(0.05, 2.0 * (1.0 - done)))
    return 0.2 * (1.0 - 0.9 * (step - CLEAN_STEPS) / MIXED_STEPS)


def initialise(model: Decoder, generator: torch.Generator) -> None:
    """Draw matrices from N(0, 0.08), residual outputs scaled down by depth (GPT-2), embeddings from N(0, 0.02)."""
    depth = (2 * model.config.num_hidden_layers) ** -0.5
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            scale = depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            spread = 0.02 if name.endswith("embed_tokens.weight") else 0.08 * scale
            torch.nn.init.normal_(weight, std=spread, generator=generator)


def sample(rng: random.Random, *, mixed: bool) -> tuple[str, str]:
    """Draw a training problem and a solution: clean working, or text of mixed quality."""
    level = rng.choice(tuple(HASTY))
    chain = draw(level, "train", rng)
    if not mixed:
        return chain.question, solution(chain)
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
    while left or right:
        digit = left % 10 + right % 10 if step.operator == "+" else left % 10 - right % 10
        total += digit % 10 * place
        left, right, place = left // 10, right // 10, place * 10
    return total
