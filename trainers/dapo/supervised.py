"""A supervised warm start of any model: teach it solutions of training problems, so that reinforcement has a start.

A row's solution is taught as it stands; where there is none, or the grader doesn't find the answer in it, the
answer is stated in a template. What is taught is what the grader calls right, or it isn't taught.
"""

from __future__ import annotations

import logging
import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dapo.accounting import Meter
from dapo.batch import Fault, Problem, Progress, Response
from dapo.config import Config
from dapo.config_actor import OptimConfig
from dapo.config_warmstart import WarmstartConfig
from dapo.data import Dataset, Prompts, announce, load_dataset, tokenize
from dapo.device import choose_device
from dapo.durable import flush
from dapo.errors import DapoError, DataError, NonFinite
from dapo.evaluate import describe, evaluate, evaluation_metrics
from dapo.model import Policy, response_logprobs, save_policy
from dapo.overlap import held_apart
from dapo.packing import lengths_of, micro_batches
from dapo.reward import Scorer
from dapo.run import load_initial_policy
from dapo.update import make_optimizer

logger = logging.getLogger(__name__)

Pair = tuple[list[int], list[int]]
"""Prompt tokens, and target tokens with the end token."""


@dataclass(frozen=True, slots=True)
class WarmstartResult:
    """What a warm start did."""

    folder: Path
    """Hugging Face folder, for `model.path`."""
    before: dict[str, float]
    """Metrics of the evaluation before; `val/accuracy`, `val/accuracy_se` and more."""
    after: dict[str, float]
    steps: int
    examples: int
    """Training problems taught."""
    solutions: int
    """Of these, those with a worked solution."""
    left_out: int
    """Training problems that weren't taught because they are among the validation problems."""
    tokens: int
    """Taught, repeats included."""
    losses: tuple[float, ...]
    """Mean negative log-likelihood of a token, by update."""


@dataclass(frozen=True, slots=True)
class Example:
    """One problem to learn from."""

    problem: Problem
    target: str
    """What the response should be."""
    worked: bool
    """It has a solution, not the answer alone."""


def warmstart(
    config: Config, settings: WarmstartConfig, out: str | Path, progress: Progress | None = None
) -> WarmstartResult:
    """Teach the model of `config` its training problems' solutions, and save it as a Hugging Face folder.

    The folder is written whole or not at all. The validation set is only evaluated on, before and after.

    Args:
        config: of the run that the warm start is for.
        settings: of the warm start.
        out: the folder to write; must not exist.
        progress: told how far it is.

    Raises:
        DataError: a data set can't be used, or `out` is there.
        ModelError: the model can't be loaded.
        NonFinite: the loss is NaN or infinite.
    """
    target = Path(out)
    if target.exists():
        raise DataError(Fault("out", f"{target}, which exists", "a folder to write", "name another, or remove it"))
    if config.trainer.num_threads is not None:
        torch.set_num_threads(config.trainer.num_threads)
    policy = load_initial_policy(config, choose_device(config.trainer.device).torch)
    policy.model.gradient_checkpointing = config.model.enable_gradient_checkpointing
    scorer = Scorer(config.reward, config.data.max_response_length)
    val_set = load_dataset(config.data.val, config.reward.grader)
    evaluated = load_dataset(config.data.val, config.reward.grader, config.data.val_size)
    val_prompts = tokenize(evaluated, policy.tokenizer, config, "data.val")

    told = progress or (lambda *_: None)

    def measure(when: str) -> dict[str, float]:
        told(f"evaluation {when} the warm start", 0, 1)
        samples = evaluate(policy, val_prompts, scorer, config, Meter(), repeats=evaluated.repeats)
        metrics = evaluation_metrics(samples, config.rollout.val_kwargs)
        told(f"evaluation {when} the warm start", 1, 1)
        logger.info("%s the warm start: %s", when, describe(metrics))
        return metrics

    if config.model.lora_rank:
        logger.warning("model.lora_rank: the warm start teaches all weights; the adapter is the run's that follows it")
    examples, left_out = choose_examples(config, settings, scorer, val_set)
    pairs = tokenized(examples, policy, config)
    before = measure("before")
    losses, tokens = _teach(policy, pairs, config, settings, told)
    after = measure("after")
    _save(policy, target)
    return WarmstartResult(
        folder=target,
        before=before,
        after=after,
        steps=len(losses),
        examples=len(pairs),
        solutions=sum(example.worked for example in examples),
        left_out=left_out,
        tokens=tokens,
        losses=tuple(losses),
    )


def choose_examples(
    config: Config, settings: WarmstartConfig, scorer: Scorer, val_set: Dataset
) -> tuple[list[Example], int]:
    """Return what is taught, and how many training problems are left out for being validation problems.

    Args:
        config: of the run.
        settings: of the warm start.
        scorer: grades what would be taught.
        val_set: the whole validation set, also where `data.val_size` evaluates on a part of it.

    Raises:
        DataError: the training set can't be used, or nothing in it can be taught.
    """
    train_set = load_dataset(config.data.train, config.reward.grader)
    announce(config.data.train, train_set, config.reward.grader)
    allowed = list(held_apart(train_set, val_set, config).problems)
    left_out = len(train_set.problems) - len(allowed)
    random.Random(f"warm start {config.trainer.seed}").shuffle(allowed)
    allowed = allowed[: max(1, round(settings.share * len(allowed)))]
    examples = [_example(problem, settings, scorer) for problem in allowed]
    if "field" in settings.model_fields_set and not any(example.worked for example in examples):
        need = f"a column of {config.data.train} with solutions: none of {len(examples)} rows has one in this"
        raise DataError(Fault("warmstart.field", repr(settings.field), need, "correct it, or leave it out"))
    right = _graded(examples, scorer)
    if unread := len(examples) - sum(right):
        logger.warning("%d problems aren't taught: the grader doesn't read the answer from what would be", unread)
    chosen = [example for example, is_right in zip(examples, right, strict=True) if is_right]
    if not chosen:
        need = "a template in which the grader finds the answer"
        raise DataError(Fault("warmstart.template", repr(settings.template), need, "correct it"))
    return chosen, left_out


def tokenized(examples: Sequence[Example], policy: Policy, config: Config) -> list[Pair]:
    """Return pairs (prompt tokens, target tokens with the end token); prompts and targets that are too long are out.

    Raises:
        DataError: a prompt is too long and may not be left out, or nothing is left.
    """
    dataset = Dataset(tuple(example.problem for example in examples))
    prompts: Prompts = tokenize(dataset, policy.tokenizer, config, "data.train")
    targets = {example.problem.identity: example.target for example in examples}
    texts = [targets[problem.identity] for problem in prompts.problems]
    answers = [[*ids, policy.tokenizer.eos_id] for ids in policy.tokenizer.encode_batch(texts)]
    limit = config.data.max_response_length
    pairs = [pair for pair in zip(prompts.tokens, answers, strict=True) if len(pair[1]) <= limit]
    if len(pairs) < len(answers):
        logger.warning("%d solutions are longer than %d tokens and are left out", len(answers) - len(pairs), limit)
    if not pairs:
        shortest = str(min(map(len, answers)))
        raise DataError(Fault("data.max_response_length", str(limit), f"at least {shortest} tokens", "raise it"))
    return pairs


def _example(problem: Problem, settings: WarmstartConfig, scorer: Scorer) -> Example:
    stated = settings.template.replace("{answer}", problem.ground_truth)
    solution = problem.extra.get(settings.field)
    if not isinstance(solution, str) or not solution.strip():
        return Example(problem, stated, worked=False)
    (right,) = _graded([Example(problem, solution, worked=True)], scorer)
    return Example(problem, solution if right else f"{solution.rstrip()}\n{stated}", worked=True)


def _graded(examples: Sequence[Example], scorer: Scorer) -> list[bool]:
    scores = scorer.score_all([(example.problem, Response([], [], True, example.target)) for example in examples])
    return [score.acc >= 0.5 for score in scores]


def _teach(
    policy: Policy, pairs: Sequence[Pair], config: Config, settings: WarmstartConfig, progress: Progress
) -> tuple[list[float], int]:
    """Train on the pairs, each epoch in another order; return the loss of each update, and tokens taught."""
    steps = settings.steps or max(1, math.ceil(settings.epochs * len(pairs) / settings.batch_size))
    optimizer = make_optimizer(policy, OptimConfig(lr=settings.lr, betas=(0.9, 0.98)))
    rng = random.Random(f"warm start order {config.trainer.seed}")
    order: list[int] = []
    losses, tokens = [], 0
    for step in range(steps):
        while len(order) < settings.batch_size:
            order += rng.sample(range(len(pairs)), len(pairs))
        batch, order = [pairs[index] for index in order[: settings.batch_size]], order[settings.batch_size :]
        count = sum(len(target) for _, target in batch)
        loss = 0.0
        optimizer.zero_grad(set_to_none=True)
        for micro in micro_batches(lengths_of(batch), settings.max_token_len):
            logprobs, _ = response_logprobs(policy.model, [batch[index] for index in micro], 1.0)
            part = -logprobs.sum() / count
            torch.autograd.backward(part)
            loss += part.item()
        norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), config.actor.grad_clip).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFinite(f"warm start: got a loss of {loss}; need a finite one; lower warmstart.lr")
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _rate(step, steps)
        optimizer.step()
        losses.append(loss)
        tokens += count
        progress("warm start", step + 1, steps)
    return losses, tokens


def _rate(step: int, steps: int) -> float:
    """Share of the peak rate at update `step` (0, 1, …)."""
    rising = (step + 1) / max(1.0, 0.1 * steps)
    return min(1.0, rising, 0.1 + 0.9 * (1.0 - step / steps) / 0.9)


def _save(policy: Policy, target: Path) -> None:
    """Write the folder beside its place, then rename it."""
    work = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(work, ignore_errors=True)
        save_policy(policy, work)
        for path in (*work.iterdir(), work):
            flush(path)
        work.rename(target)
        flush(target.resolve().parent)
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        raise DapoError(f"out: got {target} ({error.strerror}); need a folder that can be written") from error
