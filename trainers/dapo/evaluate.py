"""Evaluation: n samples a problem, accuracy with its standard error, pass@k and maj@n.

Every number comes from `EvaluatedSample`s grouped by problem, so that a file of 960 rows (30 problems, 32
times) with n = 1 and one of 30 rows with n = 32 give the same numbers. Problems weigh the same, whatever
their number of samples.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from dapo.accounting import Meter, generation_flops
from dapo.batch import EvaluatedSample
from dapo.config import Config
from dapo.data import Prompts
from dapo.model import Policy, flops_per_token
from dapo.reward import Scorer
from dapo.rollout import generate
from dapo.seeding import generator_for


def evaluate(
    policy: Policy, prompts: Prompts, scorer: Scorer, config: Config, meter: Meter, *, repeats: int = 1
) -> tuple[EvaluatedSample, ...]:
    """Sample and grade `val_kwargs.n` x `repeats` responses to each problem.

    The random numbers depend on the run's seed alone: every evaluation of every trial with that seed meets
    the same noise, and training's own stream is never touched.

    Args:
        policy: what is evaluated.
        prompts: the validation problems.
        scorer: grades; only `acc` is read.
        config: `rollout.val_kwargs` and the length limit.
        meter: charged as evaluation.
        repeats: how often each problem stands in the file.
    """
    sampling = config.rollout.val_kwargs
    n = (1 if sampling.temperature == 0.0 else sampling.n) * repeats
    responses = generate(
        policy,
        list(prompts.tokens),
        n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_response_length=config.data.max_response_length,
        max_num_seqs=config.rollout.max_num_seqs,
        generator=generator_for(config.trainer.seed, "val"),
    )
    answered = [
        (problem, response) for problem, group in zip(prompts.problems, responses, strict=True) for response in group
    ]
    scores = iter(scorer.score_all(answered))
    samples = []
    for problem, tokens, group in zip(prompts.problems, prompts.tokens, responses, strict=True):
        meter.spend_evaluation(
            generation_flops(len(tokens), group, partial(flops_per_token, policy.config)),
            sum(len(response.token_ids) for response in group),
        )
        for index, response in enumerate(group):
            score = next(scores)
            samples.append(
                EvaluatedSample(
                    data_source=problem.data_source,
                    problem_id=problem.problem_id,
                    sample_index=index,
                    prompt=problem.problem,
                    response=response.text,
                    answer=score.answer,
                    ground_truth=problem.ground_truth,
                    correct=score.acc >= 0.5,
                    response_length=len(response.token_ids),
                )
            )
    return tuple(samples)


def evaluation_metrics(samples: Iterable[EvaluatedSample]) -> dict[str, float]:
    """Compute accuracy, its standard error, pass@k, maj@n and lengths, overall and per data source.

    Names are `val/accuracy`, `val/<data_source>/accuracy`, `…/accuracy_se`, `…/pass_at_<k>`, `…/maj_at_<n>`,
    `…/response_length`; k runs over the powers of 2 up to the fewest samples that a problem has.
    """
    problems: dict[tuple[str, str], list[EvaluatedSample]] = defaultdict(list)
    for sample in samples:
        problems[sample.data_source, sample.problem_id].append(sample)
    sources: dict[str, list[list[EvaluatedSample]]] = defaultdict(list)
    for (source, _), group in problems.items():
        sources[metric_name(source)].append(group)
    found = _metrics_of(list(problems.values()), "val")
    for source, groups in sources.items():
        found |= _metrics_of(groups, f"val/{source}")
    return found


def _metrics_of(groups: Sequence[Sequence[EvaluatedSample]], prefix: str) -> dict[str, float]:
    if not groups:
        return {}
    accuracy, error = clustered_mean([_share_right(group) for group in groups])
    found = {f"{prefix}/accuracy": accuracy, f"{prefix}/accuracy_se": error}
    found[f"{prefix}/problems"] = float(len(groups))
    fewest = min(map(len, groups))
    for k in _powers_of_two(fewest):
        chances = [pass_at_k(len(group), sum(sample.correct for sample in group), k) for group in groups]
        found[f"{prefix}/pass_at_{k}"] = _mean(chances)
    if fewest > 1 and any(sample.answer for group in groups for sample in group):
        found[f"{prefix}/maj_at_{fewest}"] = _mean([majority_right(group[:fewest]) for group in groups])
    lengths = [_mean([sample.response_length for sample in group]) for group in groups]
    found[f"{prefix}/response_length"] = _mean(lengths)
    return found


def clustered_mean(shares: Sequence[float]) -> tuple[float, float]:
    """Return the mean of one number a problem, and its standard error.

    Samples of one problem are not independent, so the problem is the unit: the error is the standard
    deviation of the problems' shares over the square root of their number (0 for a single problem, which says
    nothing about it).
    """
    mean = _mean(shares)
    if len(shares) < 2:
        return mean, 0.0
    variance = math.fsum((share - mean) ** 2 for share in shares) / (len(shares) - 1)
    return mean, math.sqrt(variance / len(shares))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right (arXiv 2107.03374, Eq. 1).

    Args:
        n: samples drawn, at least k.
        correct: right ones among them.
        k: samples allowed.
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority_right(group: Sequence[EvaluatedSample]) -> float:
    """Whether the most frequent answer of one problem is right: 1 or 0, or the right ones' share in a tie.

    Samples from which no answer could be read have no vote.
    """
    votes: dict[str, int] = defaultdict(int)
    right: dict[str, bool] = {}
    for sample in group:
        if sample.answer:
            votes[sample.answer] += 1
            right[sample.answer] = sample.correct
    if not votes:
        return 0.0
    most = max(votes.values())
    return _mean([float(right[answer]) for answer, count in votes.items() if count == most])


def metric_name(text: str) -> str:
    """Replace what metric stores refuse in a name (`@`, `(`, …)."""
    return re.sub(r"[^\w\-. ]", "_", text)


def describe(metrics: Mapping[str, float], config: Config) -> str:
    """One line with the accuracy and how it was sampled: a number without that can't be compared."""
    sampling = config.rollout.val_kwargs
    return (
        f"val/accuracy {metrics['val/accuracy']:.4f} ± {metrics['val/accuracy_se']:.4f} "
        f"({metrics['val/problems']:.0f} problems, n={sampling.n}, temperature={sampling.temperature}, "
        f"top_p={sampling.top_p}, top_k={sampling.top_k})"
    )


def _share_right(group: Sequence[EvaluatedSample]) -> float:
    return sum(sample.correct for sample in group) / len(group)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << exponent for exponent in range(limit.bit_length())]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
