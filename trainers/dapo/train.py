"""DAPO, as an algorithm (arXiv 2503.14476, Algorithm 1): each line of `train_step` is one of its stages."""

from __future__ import annotations

import logging
from functools import partial

from dapo.accounting import RolloutStats, pass_flops, tokens_passed, update_flops
from dapo.advantage import group_relative_advantages
from dapo.batch import Report, RolloutGroup, TrainBatch
from dapo.config import Config
from dapo.diagnosis import RolloutDiagnosis
from dapo.errors import SamplingExhausted
from dapo.health import diagnose
from dapo.interrupt import Interrupt, interrupts_wait
from dapo.model import flops_per_token
from dapo.packing import scored_segments, trained_segments
from dapo.plan import describe_outcome, describe_plan, progress_metrics
from dapo.rounds import scored_round
from dapo.run import Run
from dapo.sampling import Gathering, NextRound, RoundRequest, SampledBatch, dynamic_sampling
from dapo.update import policy_update

logger = logging.getLogger(__name__)


def train(config: Config, report: Report) -> None:
    """Train from `config`, or from its latest checkpoint, calling `report` after each update.

    A resumed run first reports the checkpoint's step again: whoever it was told to may have died before
    writing it down. A finished run that is called again does that and nothing else.

    Raises:
        DapoError: the run can't go on (see `dapo.errors`).
        KeyboardInterrupt: on Ctrl-C, after the update that it came in and a checkpoint; on a second one, at once.
    """
    run = Run.start(config)
    logger.info(describe_plan(config, len(run.train_prompts)))
    if run.state.last is None and config.trainer.val_before_train:
        run.record({})
    if run.state.last is not None and run.state.step == run.total_steps and not run.state.last.final:
        run.record(dict(run.state.last.metrics))  # resumed with a shorter plan, which is now complete
    with interrupts_wait() as interrupt:
        if not _told(run, report, interrupt):
            return
        while run.state.step < run.total_steps:
            run.record(train_step(run))
            if not _told(run, report, interrupt):
                return
    logger.info(describe_outcome(run.state, config, len(run.train_prompts)))


def _told(run: Run, report: Report, interrupt: Interrupt) -> bool:
    """Report the last step; return whether to go on. A run that is to stop leaves a checkpoint."""
    last = run.state.last
    if last is None:
        return True
    world = run.policy.world
    go_on = world.all((report(last) if world.leads else True) and interrupt.number is None)
    if not go_on and run.saved_step != run.state.step:
        run.save()
    return go_on


def train_step(run: Run) -> dict[str, float]:
    """Do one update: sample until the batch is full, take advantages, update the policy."""
    config, seconds = run.config, run.meter.cost.device_seconds
    stats, diagnosis = RolloutStats(), RolloutDiagnosis()

    def next_round(request: RoundRequest) -> list[RolloutGroup]:
        groups = scored_round(run, request)
        stats.add(groups)
        diagnosis.add(groups)
        return groups

    sampled = sample_batch(run, next_round)
    batch = group_relative_advantages(
        sampled.groups,
        estimator=config.algorithm.adv_estimator,
        normalize=config.algorithm.norm_adv_by_std_in_grpo,
        overlong_filtering=config.reward.overlong_filtering,
    )
    metrics = update_policy(run, batch)
    run.state.close_update(sampled, trained_tokens=sum(map(sum, batch.masks)))
    spent = run.meter.cost.device_seconds - seconds
    metrics = {
        **sampled.metrics(),
        **stats.metrics(),
        **diagnosis.metrics(config.train_batch_size_at(run.state.step), config.gen_batch_size_at(run.state.step)),
        **run.scorer.take_agreement("reward"),
        **metrics,
        **progress_metrics(run.state, config, run.train_prompts),
        "perf/throughput": stats.tokens / spent,
        "timing_s/step": spent / run.meter.devices,
    }
    verdict = diagnose(metrics)
    logger.info("update %d: %s", run.state.step, verdict.words)
    return metrics | verdict.metrics()


def sample_batch(run: Run, next_round: NextRound) -> SampledBatch:
    """Fill one batch by dynamic sampling, leaving a checkpoint if it runs dry."""
    filtering = run.config.algorithm.filter_groups
    gathering = Gathering.of(run.config, len(run.train_prompts), run.state.step + 1)
    sampled = dynamic_sampling(next_round, gathering, carried=run.state.carried, lowered=run.state.lowered)
    if sampled.exhausted and filtering.on_exhausted == "error":
        message = gathering.explain(sampled)
        run.state.give_up(sampled, carry=filtering.surplus == "carry")
        run.save()
        raise SamplingExhausted(message)
    if sampled.exhausted:
        logger.warning("update %d ran out of rounds: %s", run.state.step + 1, sampled.describe())
    return sampled


def update_policy(run: Run, batch: TrainBatch) -> dict[str, float]:
    """Update the policy on one batch, and count what it cost; a batch with nothing to train on is skipped."""
    config = run.config
    with run.meter.time("update_actor"):
        step = run.state.step + 1
        result = policy_update(run.policy, run.optimizer, batch, config, step, reference=run.reference)
        run.optimizer.zero_grad(set_to_none=True)  # or generation would have to do without their memory
    if result.optimizer_steps == 0:
        run.state.skipped_updates += 1
        logger.warning("update %d is skipped: no group, or no unmasked token, to train on", run.state.step + 1)
        return result.metrics
    flops = partial(flops_per_token, run.policy.config)
    recomputed, epochs = config.model.enable_gradient_checkpointing, config.actor.ppo_epochs
    trained = trained_segments(batch, config, run.policy.world.dp.size)
    spent = update_flops(trained, epochs, flops, recomputed=recomputed)
    repeated = spent - update_flops(trained, epochs, flops)
    run.meter.spend("update_actor", spent, epochs * tokens_passed(trained), repeated=repeated)
    if passes := result.forward_passes:
        scored = scored_segments(batch.sequences, config, run.policy.world.dp.size)
        run.meter.spend("old_log_prob", passes * pass_flops(scored, flops), passes * tokens_passed(scored))
        run.meter.note_part("old_log_prob", result.scoring_s)
    return result.metrics


if __name__ == "__main__":
    from dapo.command import main

    raise SystemExit(main())
