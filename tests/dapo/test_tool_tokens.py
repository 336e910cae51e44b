"""Tokens that a tool wrote: context of what follows, and a target of nothing. Values by hand."""

import copy
from collections.abc import Sequence

import pytest
import torch
from dapo.advantage import group_relative_advantages
from dapo.batch import Problem, Response, RolloutGroup, Score, TrainBatch, Turns
from dapo.checkpoint import Checkpoints, RunState
from dapo.config import Config, OverlongBufferConfig
from dapo.loss import token_weights
from dapo.model import Policy, response_logprobs
from dapo.reference import penalise_divergence
from dapo.reward import Scorer, overlong_penalty
from dapo.sampling import tokens_of
from dapo.update import compute_logprobs, make_optimizer, policy_update

PROMPT = [5, 6, 7]
MASK = [True, True, False, False, False, True, True]
TOKENS = [20, 21, 30, 31, 32, 22, 23]


def response(mask: Sequence[bool] = MASK, tokens: Sequence[int] = TOKENS, *, finished: bool = True) -> Response:
    logprobs = [-1.5 if sampled else 0.0 for sampled in mask]
    turns = None if all(mask) else Turns(list(mask), 2, "Answer: 2", calls=1)
    return Response(list(tokens), logprobs, finished, "", turns)


def group(*responses: Response, behind: int = 0) -> RolloutGroup:
    scores = [Score(float(index % 2), float(index % 2), float(index % 2), "") for index in range(len(responses))]
    return RolloutGroup(Problem("p", "s", "1+1", "2"), PROMPT, list(responses), scores, behind=behind)


def batch_of(*groups: RolloutGroup, overlong_filtering: bool = False) -> TrainBatch:
    return group_relative_advantages(groups, normalize=False, overlong_filtering=overlong_filtering)


def plain(size: int) -> Response:
    return response([True] * size, list(range(40, 40 + size)))


def moved(policy: Policy, amount: float = 0.05) -> Policy:
    other = copy.deepcopy(policy)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=amount)
    return other


def updated(policy: Policy, batch: TrainBatch, config: Config) -> tuple[torch.Tensor, dict[str, float]]:
    trained = copy.deepcopy(policy)
    optimizer = make_optimizer(trained, config.actor.optim)
    result = policy_update(trained, optimizer, batch, config, 1, reference=moved(policy))
    return torch.cat([p.grad.flatten() for p in trained.model.parameters() if p.grad is not None]), result.metrics


def test_masks_and_denominators() -> None:
    """Four sampled tokens of seven, and three of three: the mean over tokens divides by seven, not by ten."""
    batch = batch_of(group(response(), plain(3)))
    assert batch.masks == [MASK, [True] * 3]
    assert batch.rollout_logprobs[0] == [-1.5, -1.5, 0.0, 0.0, 0.0, -1.5, -1.5]
    weights = token_weights(batch.masks, "token-mean")
    assert [weight.tolist() for weight in weights] == [
        pytest.approx([1 / 7, 1 / 7, 0, 0, 0, 1 / 7, 1 / 7]),
        pytest.approx([1 / 7] * 3),
    ]
    by_sequence = token_weights(batch.masks, "seq-mean-token-mean")
    assert by_sequence[0].tolist() == pytest.approx([1 / 8, 1 / 8, 0, 0, 0, 1 / 8, 1 / 8])
    cut = batch_of(group(response(finished=False), plain(3)), overlong_filtering=True)
    assert cut.masks == [[False] * 7, [True] * 3]


def test_the_loss_is_that_of_sampled_tokens_alone(policy: Policy, make_config) -> None:
    """Over seven tokens by hand; advantages are -0.5 and 0.5."""
    batch = batch_of(group(response(), plain(3)))
    config = make_config(actor__grad_clip=1e6, actor__entropy_coeff=0.3, actor__use_kl_loss=True)
    found, metrics = updated(policy, batch, config)
    model = copy.deepcopy(policy.model)
    logprobs, entropy = response_logprobs(model, batch.sequences, 1.0)
    mask = torch.tensor([*MASK, True, True, True])
    frozen = torch.cat(compute_logprobs(moved(policy), batch.sequences, config))
    negative = (frozen - logprobs)[mask]
    divergence = (negative.exp() - negative - 1).sum() / 7
    advantages = torch.tensor([-0.5] * 7 + [0.5] * 3)
    policy_loss = -(advantages * logprobs)[mask].sum() / 7
    torch.autograd.backward(policy_loss - 0.3 * entropy[mask].sum() / 7 + 0.001 * divergence)
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert float((found - expected).norm()) < 1e-5 * float(expected.norm())
    assert float(expected.norm()) > 1e-3
    assert metrics["actor/pg_loss"] == pytest.approx(-(4 * -0.5 + 3 * 0.5) / 7)
    assert metrics["actor/entropy"] == pytest.approx(entropy[mask].mean().item(), rel=1e-5)
    assert metrics["actor/kl_loss"] == pytest.approx(divergence.item(), rel=1e-4)
    mismatch = (logprobs[mask] + 1.5).abs()
    assert metrics["rollout/logprob_diff_mean"] == pytest.approx(mismatch.mean().item(), rel=1e-5)
    assert metrics["rollout/logprob_diff_max"] == pytest.approx(mismatch.max().item(), rel=1e-5)


EVERYTHING = {
    "actor__grad_clip": 1e6,
    "actor__entropy_coeff": 0.01,
    "actor__use_kl_loss": True,
    "actor__ppo_epochs": 2,
    "actor__optim": {"lr": 1e-2, "lr_warmup_steps": 0},
}


@pytest.mark.parametrize("behind", [0, 1], ids=["fresh", "carried"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo", "cispo", "geo_mean"])
@pytest.mark.parametrize("noise", [1.0, 1e30, float("nan"), float("-inf")])
def test_log_probs_that_were_never_drawn_are_never_read(
    policy: Policy, make_config, loss_mode: str, level: str, behind: int, noise: float
) -> None:
    """Whatever stands in their places, every gradient and metric is the same."""
    mode = {"actor__policy_loss": {"loss_mode": loss_mode}}
    correction = {"algorithm__rollout_correction": {"rollout_is": level, "rollout_is_threshold": 5.0}}
    config = make_config(**EVERYTHING, **mode, **correction)
    clean = batch_of(group(response(), plain(3), behind=behind), group(plain(4), response(), behind=0))
    soiled = copy.deepcopy(clean)
    for row, mask in zip(soiled.rollout_logprobs, soiled.masks, strict=True):
        row[:] = [value if sampled else noise for value, sampled in zip(row, mask, strict=True)]
    one, metrics = updated(policy, clean, config)
    other, others = updated(policy, soiled, config)
    assert torch.equal(one, other)
    assert float(one.norm()) > 1e-4
    assert metrics == others


@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo", "cispo", "geo_mean"])
def test_tool_tokens_at_the_end_change_nothing(policy: Policy, make_config, loss_mode: str) -> None:
    """Behind the last sampled token they condition nothing either: as if they weren't there."""
    config = make_config(**EVERYTHING, actor__policy_loss={"loss_mode": loss_mode})
    short = batch_of(group(plain(4), plain(3)))
    longer = copy.deepcopy(short)
    longer.sequences[0][1].extend([90, 91])
    longer.masks[0] += [False] * 2
    longer.rollout_logprobs[0] += [0.0] * 2
    one, metrics = updated(policy, short, config)
    other, others = updated(policy, longer, config)
    # The second epoch's gradient follows a step of Adam, which makes a sign of each rounding error near zero.
    assert float((one - other).norm()) < 1e-4 * float(one.norm())
    assert others == pytest.approx(metrics, rel=1e-3, abs=1e-6)


def test_tool_tokens_are_no_targets_and_condition_what_follows(policy: Policy) -> None:
    """Of one sequence by hand: with another tool token, turn one scores as before, and turn two doesn't."""
    changed = [*TOKENS[:3], 99, *TOKENS[4:]]
    sequences = [(PROMPT, TOKENS), (PROMPT, changed)]
    with torch.no_grad():
        logprobs, _ = response_logprobs(policy.model, sequences, 1.0)
    one, other = logprobs.split(7)
    torch.testing.assert_close(one[:2], other[:2])
    assert float((one[5:] - other[5:]).abs().min()) > 1e-6
    batch = batch_of(group(response(), plain(3)))
    model = copy.deepcopy(policy.model)
    logprobs, _ = response_logprobs(model, batch.sequences[:1], 1.0)
    logprobs.retain_grad()
    (weights, _) = token_weights(batch.masks, "token-mean")
    torch.autograd.backward((logprobs * weights).sum())
    assert logprobs.grad is not None
    assert (logprobs.grad != 0).tolist() == MASK


def test_clip_fractions_are_of_sampled_tokens(policy: Policy, make_config) -> None:
    """A carried response whose old log-probs are far off: all four sampled tokens are clipped, or none."""
    for value, share in ((-50.0, 0.0), (50.0, 1.0)):
        # At a negative advantage the ratio pi / pi_old is clipped from below alone: where pi_old is the larger one.
        far = response()
        far.rollout_logprobs = [value if sampled else -value for sampled in MASK]
        batch = batch_of(group(far, plain(2), behind=1))
        batch.masks[1] = [False] * 2
        _, metrics = updated(policy, batch, make_config(actor__grad_clip=1e6, actor__clip_ratio_c=1e9))
        assert metrics["actor/pg_clipfrac"] == share


def test_kl_in_the_reward_is_of_sampled_tokens(policy: Policy, make_config) -> None:
    config = make_config(algorithm__use_kl_in_reward=True, algorithm__kl_ctrl={"kl_coef": 0.5})
    groups = [group(response(), plain(3))]
    segments = penalise_divergence(groups, policy, moved(policy), config)
    assert segments == [(0, 10), (0, 6)], "a pass is over every token"
    sequences = [(PROMPT, one.token_ids) for one in groups[0].responses]
    current, frozen = (torch.cat(compute_logprobs(model, sequences, config)) for model in (policy, moved(policy)))
    differences = current - frozen
    first = differences[:7][torch.tensor(MASK)].sum().item()
    assert groups[0].scores[0].kl_penalty == pytest.approx(0.5 * first, rel=1e-5)
    assert groups[0].scores[1].kl_penalty == pytest.approx(0.5 * differences[7:].sum().item(), rel=1e-5)
    assert abs(first - differences[:7].sum().item()) > 1e-3


def test_the_overlong_penalty_is_by_the_length_that_the_limit_counts() -> None:
    buffer = OverlongBufferConfig(enable=True, len=4, penalty_factor=1.0)
    config = Config.model_validate({"reward": {"overlong_buffer": buffer.model_dump()}})
    score = Scorer(config.reward, 8).score_all([(Problem("p", "s", "1+1", "2"), response())])[0]
    assert score.score == 1.0
    assert score.seq_reward == 1.0 + overlong_penalty(7, 8, buffer) == 0.25


def test_only_sampled_tokens_are_accounted_for() -> None:
    assert response().sampled_tokens == 4
    assert plain(3).sampled_tokens == 3
    assert tokens_of(group(response(), plain(3))) == 7


def test_masks_come_back_from_a_checkpoint(policy: Policy, tmp_path) -> None:
    state = RunState(step=1, carried=[group(response(), plain(3), behind=1)])
    Checkpoints(tmp_path, 1).save(state, policy, make_optimizer(policy, Config().actor.optim), Config())
    found = Checkpoints(tmp_path, 1).latest(Config())
    assert found is not None
    assert found.state == state
    assert found.state.carried[0].responses[0].mask == MASK


def test_a_checkpoint_from_before_there_were_turns_is_read() -> None:
    from dataclasses import asdict

    from dapo.checkpoint import _state_from

    content = asdict(RunState(step=1, carried=[group(plain(3), plain(2))]))
    for one in content["carried"]:
        del one["problem"]["messages"]
        for item in one["responses"]:
            del item["turns"]
    state = _state_from(content)
    assert state.carried == [group(plain(3), plain(2))]
