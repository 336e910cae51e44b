"""DAPO, as an algorithm (arXiv 2503.14476, Algorithm 1): each line of `train_step` is one of its stages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from dapo.accounting import RolloutStats, update_flops
from dapo.advantage import group_relative_advantages
from dapo.batch import Report, RolloutGroup, TrainBatch
from dapo.config import Config, FilterGroupsConfig
from dapo.diagnosis import RolloutDiagnosis
from dapo.errors import SamplingExhausted
from dapo.health import diagnose
from dapo.model import flops_per_token
from dapo.reference import FORWARD_PASSES, penalise_divergence
from dapo.run import Run
from dapo.sampling import FilterRule, SampledBatch, dynamic_sampling
from dapo.update import policy_update, sequence_lengths

logger = logging.getLogger(__name__)


def train(config: Config, report: Report) -> None:
    """Train from `config`, or from its latest checkpoint, calling `report` after each update.

    A resumed run first reports the checkpoint's step again: whoever it was told to may have died before
    writing it down. A finished run that is called again does that and nothing else.

    Raises:
        DapoError: the run can't go on (see `dapo.errors`).
    """
    run = Run.start(config)
    if run.state.last is None and config.trainer.val_before_train:
        run.record({})
    if run.state.last is not None and run.state.step == run.total_steps and not run.state.last.final:
        run.record(dict(run.state.last.metrics))  # resumed with a shorter plan, which is now complete
    if not _told(run, report):
        return
    while run.state.step < run.total_steps:
        run.record(train_step(run))
        if not _told(run, report):
            return


def _told(run: Run, report: Report) -> bool:
    """Report the last step; return whether to go on. A run that is told to stop leaves a checkpoint."""
    last = run.state.last
    if last is None:
        return True
    go_on = report(last)
    if not go_on and run.saved_step != run.state.step:
        run.save()
    return go_on


def train_step(run: Run) -> dict[str, float]:
    """Do one update: sample until the batch is full, take advantages, update the policy."""
    config, seconds = run.config, run.meter.cost.device_seconds
    stats, diagnosis = RolloutStats(), RolloutDiagnosis()

    def scored_round(size: int) -> list[RolloutGroup]:
        groups = run.generate(size)
        with run.meter.time("reward"):
            run.scorer.score(groups)
        take_off_divergence(run, groups)
        stats.add(groups)
        diagnosis.add(groups)
        return groups

    sampled = sample_batch(run, scored_round)
    batch = group_relative_advantages(
        sampled.groups,
        estimator=config.algorithm.adv_estimator,
        normalize=config.algorithm.norm_adv_by_std_in_grpo,
        overlong_filtering=config.reward.overlong_filtering,
    )
    metrics = update_policy(run, batch)
    run.state.step += 1
    spent = run.meter.cost.device_seconds - seconds
    metrics = {
        **sampled.metrics(),
        **stats.metrics(),
        **diagnosis.metrics(config.data.train_batch_size, config.gen_batch_size),
        **run.scorer.take_agreement("reward"),
        **metrics,
        "actor/skipped_updates": float(run.state.skipped_updates),
        "data/epoch": run.state.prompts_drawn / len(run.train_prompts),
        "perf/throughput": stats.tokens / spent,
        "timing_s/step": spent,
    }
    verdict = diagnose(metrics)
    logger.info("update %d: %s", run.state.step, verdict.words)
    return metrics | verdict.metrics()


def take_off_divergence(run: Run, groups: Sequence[RolloutGroup]) -> None:
    """Put the KL to the reference into the rewards, if it belongs there, and count what that cost."""
    if run.reference is None or not run.config.algorithm.use_kl_in_reward:
        return
    with run.meter.time("ref"):
        lengths = penalise_divergence(groups, run.policy, run.reference, run.config)
    run.meter.spend(update_flops(lengths, 0, FORWARD_PASSES, partial(flops_per_token, run.policy.config)))


def sample_batch(run: Run, scored_round: Callable[[int], list[RolloutGroup]]) -> SampledBatch:
    """Fill one batch by dynamic sampling, leaving a checkpoint if it runs dry."""
    settings = run.config.algorithm.filter_groups
    step = run.state.step + 1
    try:
        sampled = dynamic_sampling(
            scored_round,
            run.config.train_batch_size_at(step),
            round_size=run.config.gen_batch_size_at(step),
            rule=filter_rule(settings),
            metric=settings.metric,
            max_rounds=settings.max_num_gen_batches,
            on_exhausted=settings.on_exhausted,
        )
    except SamplingExhausted:
        run.save()
        raise
    if sampled.exhausted:
        logger.warning("update %d trains on a partial batch: %s", step, sampled.describe())
    return sampled


def filter_rule(settings: FilterGroupsConfig) -> FilterRule | None:
    """Return the rule that a config describes; None if filtering is off."""
    if not settings.enable:
        return None
    return FilterRule(settings.statistic, settings.threshold, settings.upper, settings.tolerance)


def update_policy(run: Run, batch: TrainBatch) -> dict[str, float]:
    """Update the policy on one batch, and count what it cost; a batch with nothing to train on is skipped."""
    config = run.config
    with run.meter.time("update_actor"):
        step = run.state.step + 1
        result = policy_update(run.policy, run.optimizer, batch, config, step, reference=run.reference)
    if result.optimizer_steps == 0:
        run.state.skipped_updates += 1
        logger.warning("update %d is skipped: no group, or no unmasked token, to train on", run.state.step + 1)
        return result.metrics
    run.meter.spend(
        update_flops(
            sequence_lengths(batch),
            config.actor.ppo_epochs,
            result.forward_passes,
            partial(flops_per_token, run.policy.config),
            recomputed=config.model.enable_gradient_checkpointing,
        )
    )
    return result.metrics
