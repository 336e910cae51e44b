"""The same numbers as verl 0.9.1's own functions where verl is right, and the right value beside each known trap."""

import importlib
import math
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from dapo.advantage import relative_advantages
from dapo.batch import EvaluatedSample
from dapo.config import RolloutCorrectionConfig, SamplingConfig
from dapo.config_section import KLEstimate
from dapo.evaluate import evaluation_metrics
from dapo.kl import kl_estimate
from dapo.loss import LOSSES, Clip, LossMode, PolicyLoss, TokenBatch, token_weights
from dapo.packing import micro_batches
from dapo.rollout_correction import corrected_loss, importance_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
LENGTH = 8
"""The constant length of Dr. GRPO."""
CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
CLIP = Clip(0.2, 0.28, 3.0)
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def verl() -> SimpleNamespace:
    """verl's modules; importing them takes seconds, and what its dependencies deprecate is not our doing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return SimpleNamespace(
            algos=importlib.import_module("verl.trainer.ppo.core_algos"),
            balancing=importlib.import_module("verl.utils.seqlen_balancing"),
            correction=importlib.import_module("verl.trainer.ppo.rollout_corr_helper"),
            metrics=importlib.import_module("verl.trainer.ppo.metric_utils"),
            actor=importlib.import_module("verl.workers.config").ActorConfig,
        )


class Padded:
    """Random sequences in verl's layout: [B, R] matrices of log-probs with a mask, advantages per response."""

    def __init__(self, seed: int, *, spread: float = 0.5) -> None:
        draw = torch.Generator().manual_seed(seed)
        rows = int(torch.randint(1, 7, (1,), generator=draw))
        self.lengths: list[int] = torch.randint(1, 9, (rows,), generator=draw).tolist()
        shape = (rows, max(self.lengths))
        self.old = -3 * torch.rand(shape, generator=draw)
        self.new = (self.old + spread * torch.randn(shape, generator=draw)).requires_grad_()
        self.scalars = torch.randn(rows, generator=draw)
        self.mask = torch.arange(shape[1]) < torch.tensor(self.lengths).unsqueeze(1)
        # Some tokens inside a response are not the model's own (a tool's), but at least one is.
        self.mask &= torch.rand(shape, generator=draw) < 0.8
        self.mask[0, 0] = True

    def flat(self, matrix: Tensor) -> Tensor:
        """The tokens of all responses, one after the other, as our functions take them."""
        return torch.cat([row[:length] for row, length in zip(matrix, self.lengths, strict=True)])

    @property
    def masks(self) -> list[list[bool]]:
        return [row[:length].tolist() for row, length in zip(self.mask, self.lengths, strict=True)]

    @property
    def advantages(self) -> Tensor:
        return self.scalars.unsqueeze(1).expand_as(self.old)

    def weighted(self, losses: Tensor, mode: Any) -> Tensor:
        """Our aggregation of flat per-token losses."""
        return (losses * torch.cat(token_weights(self.masks, mode, LENGTH))).sum()

    def tokens(self) -> TokenBatch:
        """All responses as one micro-batch of ours."""
        return TokenBatch(
            self.flat(self.new),
            self.flat(self.old),
            self.flat(self.advantages),
            self.flat(self.mask).float(),
            torch.tensor(self.lengths),
        )

    def gradient(self, loss: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(loss, self.new, retain_graph=True)
        return found


def actor_config(verl: SimpleNamespace, **changes: object) -> Any:
    return verl.actor(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, **CLIPS, **changes)


def verl_loss(verl: SimpleNamespace, loss_mode: str, case: Padded, mode: str, weights: Tensor | None = None) -> Any:
    """What verl registered under this name, and its metrics; `global_batch_info` holds Dr. GRPO's length."""
    config = actor_config(verl, global_batch_info={"loss_scale_factor": LENGTH})
    return verl.algos.get_policy_loss_fn(loss_mode)(
        case.old, case.new, case.advantages, case.mask.float(), mode, config, rollout_is_weights=weights
    )


def assert_same_loss(case: Padded, found: Tensor, expected: Tensor) -> None:
    """Equal value and gradient."""
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(case.gradient(found), case.gradient(expected), rtol=1e-4, atol=1e-6)


def assert_same_shares(case: Padded, found: PolicyLoss, metrics: dict[str, float]) -> None:
    """Equal clip fractions and KL to the old policy, as means over tokens."""
    values = {"actor/pg_clipfrac": found.clipped, "actor/pg_clipfrac_lower": found.clipped_lower}
    values["actor/ppo_kl"] = -found.log_ratio.detach()
    for name, value in values.items():
        assert float(case.weighted(value, "token-mean")) == pytest.approx(metrics[name], rel=1e-4, abs=1e-6)


@given(SEEDS, st.sampled_from(MODES))
def test_aggregation(verl: SimpleNamespace, seed: int, mode: str) -> None:
    case = Padded(seed)
    expected = verl.algos.agg_loss(case.new, case.mask.float(), mode, loss_scale_factor=LENGTH)
    assert float(case.weighted(case.flat(case.new), mode).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


@given(SEEDS, st.sampled_from(["vanilla", "gspo", "cispo"]), st.sampled_from(MODES), st.sampled_from([0.1, 1.0, 3.0]))
def test_policy_loss(verl: SimpleNamespace, seed: int, loss_mode: LossMode, mode: str, spread: float) -> None:
    """Loss, gradient and clip fractions, from mild ratios to ones far beyond every clip."""
    case = Padded(seed, spread=spread)
    expected, metrics = verl_loss(verl, loss_mode, case, mode)
    found = LOSSES[loss_mode](case.tokens(), CLIP)
    assert_same_loss(case, case.weighted(found.loss, mode), expected)
    assert_same_shares(case, found, metrics)


@given(SEEDS, st.sampled_from([0.1, 1.0]), st.booleans())
def test_geometric_mean_loss(verl: SimpleNamespace, seed: int, spread: float, corrected: bool) -> None:
    """verl's is the mean over sequences whatever the mode is called, where each has a token."""
    case = Padded(seed, spread=spread)
    case.mask[:, 0] = True
    weights = torch.rand(case.old.shape, generator=torch.Generator().manual_seed(seed)) + 0.5
    expected, metrics = verl_loss(verl, "geo_mean", case, "token-mean", weights if corrected else None)
    tokens = case.tokens()
    found = LOSSES["geo_mean"](tokens, CLIP)
    loss = corrected_loss(found.loss, case.flat(weights), tokens, "geo_mean") if corrected else found.loss
    assert_same_loss(case, case.weighted(loss, "seq-mean-token-mean"), expected)
    assert_same_shares(case, found, metrics)


def test_trap_geometric_mean_counts_sequences_without_a_token(verl: SimpleNamespace) -> None:
    """Two responses, one masked: verl halves the loss of the other."""
    case = Padded(1)
    case.mask[1:] = False
    assert len(case.lengths) > 1
    expected, _ = verl_loss(verl, "geo_mean", case, "seq-mean-token-mean")
    found = case.weighted(LOSSES["geo_mean"](case.tokens(), CLIP).loss, "seq-mean-token-mean")
    assert float(found.detach()) == pytest.approx(float(expected.detach()) * len(case.lengths), rel=1e-5)


@given(SEEDS, st.sampled_from(["vanilla", "gspo", "cispo"]), st.sampled_from(["token", "sequence"]))
def test_rollout_correction(verl: SimpleNamespace, seed: int, loss_mode: LossMode, level: Any) -> None:
    """The truncated importance weights, and the loss that they weigh."""
    case = Padded(seed)
    rollout = case.old + torch.randn(case.old.shape, generator=torch.Generator().manual_seed(seed))
    weights, _ = verl.correction.compute_rollout_correction_weights(case.old - rollout, case.mask.float(), level, 1.5)
    tokens, config = case.tokens(), RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=1.5)
    found = importance_weights(tokens, case.flat(rollout), config)
    assert torch.allclose(found * tokens.mask, case.flat(weights), rtol=1e-5)
    expected, _ = verl_loss(verl, loss_mode, case, "token-mean", weights)
    loss = corrected_loss(LOSSES[loss_mode](tokens, CLIP).loss, found, tokens, loss_mode)
    assert_same_loss(case, case.weighted(loss, "token-mean"), expected)


@given(SEEDS, st.sampled_from(get_args(KLEstimate)), st.sampled_from([0.1, 3.0, 30.0]))
def test_kl_estimates(verl: SimpleNamespace, seed: int, kind: Any, spread: float) -> None:
    case = Padded(seed, spread=spread)
    expected, found = verl.algos.kl_penalty(case.new, case.old, kind), kl_estimate(case.new, case.old, kind)
    assert torch.allclose(found, expected, rtol=1e-5)
    assert torch.allclose(case.gradient(found.sum()), case.gradient(expected.sum()), rtol=1e-5)


def test_trap_token_mean_of_a_micro_batch_is_no_token_mean(verl: SimpleNamespace) -> None:
    """Lengths 4 and 1, a sequence a micro-batch: verl without `batch_num_tokens` averages averages (verl#1644)."""
    masks, losses = [[True] * 4, [True]], [[1.0] * 4, [10.0]]
    micro = [(torch.tensor([row]), torch.tensor([mask]).float()) for row, mask in zip(losses, masks, strict=True)]
    local = [float(verl.algos.agg_loss(loss, mask, "token-mean")) for loss, mask in micro]
    told = [float(verl.algos.agg_loss(loss, mask, "token-mean", batch_num_tokens=5)) for loss, mask in micro]
    weights = token_weights(masks, "token-mean")
    found = sum(float((w * torch.tensor(row)).sum()) for w, row in zip(weights, losses, strict=True))
    assert sum(local) / 2 == 5.5
    assert found == pytest.approx(sum(told)) == pytest.approx(2.8)


@pytest.mark.parametrize("mode", MODES)
def test_trap_nothing_to_train_on_is_no_loss_rather_than_nan(verl: SimpleNamespace, mode: Any) -> None:
    theirs = float(verl.algos.agg_loss(torch.ones(2, 3), torch.zeros(2, 3), mode))
    assert math.isnan(theirs) or (mode == "token-sum" and theirs == 0.0)
    assert sum(float(weights.sum()) for weights in token_weights([[False] * 3] * 2, mode, LENGTH)) == 0.0


def verl_advantages(verl: SimpleNamespace, groups: Sequence[Sequence[float]], normalize: bool) -> list[float]:
    rewards = torch.tensor([[0.0, reward] for group in groups for reward in group])
    index = np.array([str(number) for number, group in enumerate(groups) for _ in group])
    found, _ = verl.algos.compute_grpo_outcome_advantage(
        rewards, torch.ones_like(rewards), index, norm_adv_by_std_in_grpo=normalize
    )
    return found[:, 1].tolist()


@given(st.lists(st.lists(st.floats(-4, 4, width=16), min_size=2, max_size=8), min_size=1, max_size=4))
def test_rloo_advantage(verl: SimpleNamespace, groups: list[list[float]]) -> None:
    rewards = torch.tensor([[0.0, reward] for group in groups for reward in group])
    index = np.array([str(number) for number, group in enumerate(groups) for _ in group])
    expected, _ = verl.algos.compute_rloo_outcome_advantage(rewards, torch.ones_like(rewards), index)
    found = [value for group in groups for value in relative_advantages(group, estimator="rloo")]
    assert found == pytest.approx(expected[:, 1].tolist(), rel=1e-4, abs=1e-5)


DYADIC = st.integers(-64, 64).map(lambda value: value / 16)


@given(st.lists(st.lists(DYADIC, min_size=2, max_size=8), min_size=1, max_size=4), st.booleans())
def test_grpo_advantage(verl: SimpleNamespace, groups: list[list[float]], normalize: bool) -> None:
    found = [value for group in groups for value in relative_advantages(group, normalize=normalize)]
    assert found == pytest.approx(verl_advantages(verl, groups, normalize), rel=1e-4, abs=1e-5)


def test_trap_equal_rewards_have_no_advantage(verl: SimpleNamespace) -> None:
    """The mean of 0.1 three times is not 0.1 in binary, and its distance is divided by a deviation of zero."""
    phantom = max(
        abs(value)
        for reward in (0.1, 0.3, 0.7, 1 / 3)
        for size in (3, 5, 6, 7)
        for value in verl_advantages(verl, [[reward] * size], True)
    )
    assert phantom > 1e-3
    for reward in (0.1, 0.3, 0.7, 1 / 3):
        assert all(relative_advantages([reward] * size) == [0.0] * size for size in (3, 5, 6, 7))


def test_trap_a_group_of_one_has_nothing_to_be_compared_with(verl: SimpleNamespace) -> None:
    """verl hands a lone response its raw reward as advantage; ours has none."""
    assert verl_advantages(verl, [[3.0]], False) == [3.0]
    assert relative_advantages([3.0], normalize=False) == [0.0]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=24), st.integers(0, 60))
@settings(deadline=None)
def test_token_budget(verl: SimpleNamespace, lengths: list[int], slack: int) -> None:
    """The packings differ, their properties don't: each sequence once, none over budget, no more than are needed."""
    budget = max(lengths) + slack
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()
    data = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=len(lengths))
    _, theirs = verl.balancing.rearrange_micro_batches(data, budget)
    ours = micro_batches(lengths, budget)
    fewest = -(-sum(lengths) // budget)
    for packed in (ours, theirs):
        assert sorted(index for micro in packed for index in micro) == list(range(len(lengths)))
        assert all(0 < sum(lengths[index] for index in micro) <= budget for micro in packed)
        assert fewest <= len(packed) <= len(lengths)
    assert len(ours) <= 2 * fewest  # two neighbours can't both be less than half full


def test_trap_the_number_of_micro_batches_is_not_tokens_over_budget(verl: SimpleNamespace) -> None:
    """Eight rows of seven under a budget of eight (verl PR#7553): seven would hold them by their sum alone."""
    ones = torch.ones(8, 7, dtype=torch.long)
    data = TensorDict({"input_ids": ones, "attention_mask": ones}, batch_size=8)
    assert len(verl.balancing.rearrange_micro_batches(data, 8)[0]) == len(micro_batches([7] * 8, 8)) == 8


def evaluated(rows: Sequence[tuple[str, str, bool]]) -> list[EvaluatedSample]:
    """One sample for each (problem, answer, right)."""
    return [
        EvaluatedSample("set", problem, index, "", "", answer, "", right, 1)
        for index, (problem, answer, right) in enumerate(rows)
    ]


def verl_validation(verl: SimpleNamespace, rows: Sequence[tuple[str, str, bool]]) -> dict[str, float]:
    infos = {"acc": [float(right) for _, _, right in rows], "pred": [answer for _, answer, _ in rows]}
    found = verl.metrics.process_validation_metrics(["set"] * len(rows), [row[0] for row in rows], infos)
    return dict(found["set"]["acc"])


@pytest.mark.parametrize("seed", range(3))
def test_validation_accuracy(verl: SimpleNamespace, seed: int) -> None:
    """avg@n is the same number; std@n is verl's spread within a problem, and no error of the mean."""
    draw = np.random.default_rng(seed)
    rows = [(f"p{number}", str(answer), answer == 0) for number in range(5) for answer in draw.integers(0, 3, 8)]
    theirs, ours = verl_validation(verl, rows), evaluation_metrics(evaluated(rows), SamplingConfig())
    assert ours["val/accuracy"] == pytest.approx(theirs["mean@8"])
    assert ours["val/set/accuracy"] == pytest.approx(theirs["mean@8"])


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_majority_vote(verl: SimpleNamespace, answers: list[str]) -> None:
    """The same vote where one answer leads; in a tie verl takes whichever came first, ours the chance of a draw."""
    counts = sorted((answers.count(answer) for answer in set(answers)), reverse=True)
    rows = [("p", answer, answer == "a") for answer in answers]
    theirs = verl.metrics.calc_maj_val(
        [{"pred": answer, "val": float(right)} for _, answer, right in rows], vote_key="pred", val_key="val"
    )
    ours = evaluation_metrics(evaluated(rows), SamplingConfig()).get(f"val/maj_at_{len(rows)}", theirs)
    leaders = [answer for answer in set(answers) if answers.count(answer) == counts[0]]
    assert ours == (theirs if len(leaders) == 1 else pytest.approx(("a" in leaders) / len(leaders)))


def test_trap_best_of_32_draws_the_same_sample_twice(verl: SimpleNamespace) -> None:
    """One right of 32: some one of 32 is right for certain, but a bootstrap with replacement says 1 - 1/e."""
    rows = [("p", str(number), number == 0) for number in range(32)]
    assert verl_validation(verl, rows)["best@32/mean"] == pytest.approx(1 - math.exp(-1), abs=0.05)
    assert evaluation_metrics(evaluated(rows), SamplingConfig())["val/pass_at_32"] == 1.0
