"""Evaluation: n samples a problem; accuracy (avg@n), pass@k and maj@k, each with its standard error.

Every number comes from `EvaluatedSample`s grouped by problem, so that a file of 960 rows (30 problems, 32
times) with n = 1 and one of 30 rows with n = 32 give the same numbers. Problems weigh the same, whatever
their number of samples.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from dapo.accounting import Meter, generation_flops
from dapo.batch import EvaluatedSample, Problem, Response, Score
from dapo.config import Config, SamplingConfig
from dapo.data import Prompts
from dapo.draws import Sampling
from dapo.metric_names import majority_sizes, metric_name, pass_sizes, samples_per_problem
from dapo.model import Policy, flops_per_token
from dapo.multi_turn import converse
from dapo.reward import Scorer
from dapo.seeding import generator_for
from dapo.tools import Toolbox


def evaluate(
    policy: Policy,
    prompts: Prompts,
    scorer: Scorer,
    config: Config,
    meter: Meter,
    *,
    repeats: int = 1,
    toolbox: Toolbox | None = None,
) -> tuple[EvaluatedSample, ...]:
    """Sample and grade `samples_per_problem` responses to each problem; of several processes, the leading one grades.

    The random numbers depend on the run's seed alone: every evaluation of every trial with that seed meets
    the same noise, and training's own stream is never touched.

    Args:
        policy: what is evaluated.
        prompts: the validation problems.
        scorer: grades; only `acc` is read.
        config: `rollout.val_kwargs` and the length limit.
        meter: charged as evaluation.
        repeats: how often each problem stands in the file.
        toolbox: the tools that are offered with every prompt; None makes the config's own.

    Raises:
        DapoError: the process that grades can't be started.
    """
    sampling = config.rollout.val_kwargs
    n = samples_per_problem(sampling, repeats)
    toolbox = toolbox or Toolbox.of(config)
    tools = toolbox is not None
    asked = [prompts.prompt(index, tools=tools) for index in range(len(prompts))]
    responses = converse(
        policy,
        asked,
        [tools] * len(asked),
        n,
        sampling=Sampling(sampling.temperature, sampling.top_p, sampling.top_k),
        config=config,
        toolbox=toolbox,
        generator=generator_for(config.trainer.seed, "val"),
    )
    if not policy.world.leads:
        return ()
    answered = [
        (problem, response) for problem, group in zip(prompts.problems, responses, strict=True) for response in group
    ]
    scores = iter(scorer.score_all(answered))
    samples = []
    for problem, tokens, group in zip(prompts.problems, asked, responses, strict=True):
        meter.spend_evaluation(
            generation_flops(len(tokens), group, partial(flops_per_token, policy.config)),
            sum(response.sampled_tokens for response in group),
        )
        samples += [_sample(problem, index, response, next(scores)) for index, response in enumerate(group)]
    return tuple(samples)


def _sample(problem: Problem, index: int, response: Response, score: Score) -> EvaluatedSample:
    return EvaluatedSample(
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


def evaluation_metrics(samples: Iterable[EvaluatedSample], sampling: SamplingConfig) -> dict[str, float]:
    """Compute accuracy, pass@k, maj@k, their standard errors and lengths, overall and per data source.

    Names are `val/accuracy`, `val/<data_source>/accuracy`, `…/pass_at_<k>`, `…/maj_at_<k>`, each with `…_se` (unless
    there is but one problem), and `…/response_length`; k runs over the powers of 2 up to the fewest samples that a
    problem has, and that number.
    verl's names for avg@n and maj@n, as it spells them for MLflow, are there too:
    `val-core/<data_source>/acc/mean_at_<n>` and `…/maj_at_<n>/mean`. Its `best@k` is a bootstrap that is biased
    low, so pass@k doesn't go by that name. How the samples were drawn is in `val/sampling/…`.
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
        n = min(map(len, groups))
        found[f"val-core/{source}/acc/mean_at_{n}"] = found[f"val/{source}/accuracy"]
        if (majority := found.get(f"val/{source}/maj_at_{n}")) is not None:
            found[f"val-core/{source}/acc/maj_at_{n}/mean"] = majority
    return found | {
        "val/sampling/n": float(min(map(len, problems.values()), default=0)),
        "val/sampling/temperature": sampling.temperature,
        "val/sampling/top_p": sampling.top_p,
        "val/sampling/top_k": float(sampling.top_k),
    }


def _metrics_of(groups: Sequence[Sequence[EvaluatedSample]], prefix: str) -> dict[str, float]:
    if not groups:
        return {}
    found: dict[str, float] = {}

    def note(name: str, per_problem: Sequence[float]) -> None:
        found[f"{prefix}/{name}"], error = clustered_mean(per_problem)
        if error is not None:
            found[f"{prefix}/{name}_se"] = error

    note("accuracy", [_share_right(group) for group in groups])
    found[f"{prefix}/problems"] = float(len(groups))
    fewest = min(map(len, groups))
    for k in pass_sizes(fewest):
        note(f"pass_at_{k}", [pass_at_k(len(group), sum(sample.correct for sample in group), k) for group in groups])
    if any(sample.answer for group in groups for sample in group):
        for k in majority_sizes(fewest):
            note(f"maj_at_{k}", [majority_at_k(group, k) for group in groups])
    lengths = [_mean([sample.response_length for sample in group]) for group in groups]
    found[f"{prefix}/response_length"] = _mean(lengths)
    return found


def clustered_mean(shares: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of one number a problem, and its standard error.

    Samples of one problem are not independent, so the problem is the unit: the error is the standard
    deviation of the problems' shares over the square root of their number. A single problem says nothing about it:
    None then, since 0 would claim that the number is exact.
    """
    mean = _mean(shares)
    if len(shares) < 2:
        return mean, None
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


def majority_at_k(group: Sequence[EvaluatedSample], k: int) -> float:
    """Unbiased estimate of the chance that the majority of k samples is right: the mean over disjoint blocks of k.

    Args:
        group: at least k samples of one problem; those beyond the last full block are left out.
        k: votes.
    """
    blocks = [group[start : start + k] for start in range(0, len(group) - k + 1, k)]
    return _mean([majority_right(block) for block in blocks])


def majority_right(group: Sequence[EvaluatedSample]) -> float:
    """Whether the most frequent answer of one problem is right: 1 or 0, or the right ones' share in a tie.

    Samples from which no answer could be read have no vote.
    """
    votes: dict[str, list[bool]] = defaultdict(list)
    for sample in group:
        if sample.answer:
            votes[sample.answer].append(sample.correct)
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    return _mean([_mean(right) for right in votes.values() if len(right) == most])


def describe(metrics: Mapping[str, float]) -> str:
    """One line with the accuracy and how it was sampled: a number without that can't be compared."""
    sampling = ", ".join(
        f"{name}={metrics[f'val/sampling/{name}']:g}" for name in ("n", "temperature", "top_p", "top_k")
    )
    error = metrics.get("val/accuracy_se")
    return (
        f"val/accuracy {metrics['val/accuracy']:.4f}{'' if error is None else f' ± {error:.4f}'} "
        f"({metrics['val/problems']:.0f} problems, {sampling})"
    )


def _share_right(group: Sequence[EvaluatedSample]) -> float:
    return sum(sample.correct for sample in group) / len(group)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
