"""One generation round: prompts are selected, responses sampled and scored, all at once or pilot first.

Pilot-then-commit (compare arXiv 2605.26606): of each group `pilot_n` responses are sampled first, and the rest only
where these pass the filter already. With `surplus: drop` no more groups are completed than the batch lacks.

What it changes: a group is trained on if its first `pilot_n` responses pass, not if all `n` do, so prompts at which
the policy is nearly always right or wrong are trained on less often than under plain DAPO (a share 1 - p^k - (1-p)^k
of them at pass rate p and k pilots, in the place of 1 - p^n - (1-p)^n). As in plain DAPO the choice looks at the
responses that are then trained on; the committed part of a group is an independent sample. For prompts that are
solved rarely the share falls as fast as the cost, so that nothing is gained there: pilots save where groups are
hopeless or all right, and where surplus would be thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from dapo.accounting import pass_flops, tokens_passed
from dapo.batch import RolloutGroup, Score
from dapo.filter_rule import FilterRule, metric_values
from dapo.model import flops_per_token
from dapo.reference import FORWARD_PASSES, penalise_divergence
from dapo.run import Run
from dapo.sampling import RoundRequest
from dapo.selection import select


def scored_round(run: Run, request: RoundRequest) -> list[RolloutGroup]:
    """Generate and score one round, and note in the run's history what was found."""
    config, state = run.config, run.state
    state.rounds += 1
    indices, taken = select(
        run.train_prompts,
        config.data.selection,
        state.history,
        count=request.size,
        position=state.prompts_drawn,
        step=state.step,
        round_number=state.rounds,
        seed=config.trainer.seed,
    )
    state.prompts_drawn += taken
    state.prompts_chosen += len(indices) - taken
    pilot = config.rollout.pilot_n
    groups = _scored(run, indices, pilot or config.rollout.n, "rollout", state.rounds)
    if pilot is not None and request.rule is not None:
        _commit(run, indices, groups, request.rule, request.missing)
    if config.data.selection.strategy == "thompson":
        for index, group in zip(indices, groups, strict=True):
            state.history.observe(index, group.scores, state.step, config.data.selection.forgetting)
    return groups


def _commit(run: Run, indices: Sequence[int], groups: list[RolloutGroup], rule: FilterRule, missing: int) -> None:
    """Complete the groups whose pilots pass the rule; the others stay as they are, marked."""
    filtering, rollout = run.config.algorithm.filter_groups, run.config.rollout
    passing = [place for place, group in enumerate(groups) if rule.keeps(metric_values(group, filtering.metric))]
    committed = passing if filtering.surplus == "carry" else passing[:missing]
    for group in groups:
        group.pilot_only = True
    rest = _scored(
        run, [indices[place] for place in committed], rollout.n - len(groups[0].responses), "commit", run.state.rounds
    )
    for place, more in zip(committed, rest, strict=True):
        groups[place].responses += more.responses
        groups[place].scores += more.scores
        groups[place].pilot_only = False


def _scored(run: Run, indices: Sequence[int], n: int, *purpose: object) -> list[RolloutGroup]:
    groups = run.generate(indices, n, *purpose)
    with run.meter.time("reward"):
        _score(run, groups)
    _take_off_divergence(run, groups)
    return groups


def _score(run: Run, groups: Sequence[RolloutGroup]) -> None:
    """Score groups: the leading process does, and all go on with what it found."""
    world = run.policy.world
    if world.leads:
        run.scorer.score(groups)
    if world.size == 1:
        return
    told = world.told_by_leader([[asdict(score) for score in group.scores] for group in groups])
    for group, scores in zip(groups, told, strict=True):
        group.scores = [Score(**score) for score in scores]


def _take_off_divergence(run: Run, groups: Sequence[RolloutGroup]) -> None:
    """Put the KL to the reference into the rewards, if it belongs there, and count what that cost."""
    if run.reference is None or not run.config.algorithm.use_kl_in_reward:
        return
    with run.meter.time("ref"):
        segments = penalise_divergence(groups, run.policy, run.reference, run.config)
    flops = FORWARD_PASSES * pass_flops(segments, partial(flops_per_token, run.policy.config))
    run.meter.spend("ref", flops, FORWARD_PASSES * tokens_passed(segments))
