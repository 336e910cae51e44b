import math
from collections.abc import Sequence
from typing import get_args

import pytest
import torch
from dapo.config_actor import ActorConfig, PolicyLossConfig
from dapo.loss import LOSSES, AggregationMode, Clip, LossMode, PolicyLoss, TokenBatch, token_weights, vanilla_loss
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum", "seq-mean-token-sum-norm")
CLIP = Clip(0.2, 0.28, 10.0)
LENGTH = 4
"""The constant length of `seq-mean-token-sum-norm`."""


def batch_of(
    new: Tensor, advantages: Sequence[float], lengths: Sequence[int], mask: Sequence[float] | None = None
) -> TokenBatch:
    """Tokens whose log-probs were zero before the update, so that `new` are their log-ratios."""
    return TokenBatch(
        new,
        torch.zeros_like(new),
        torch.tensor(advantages, dtype=new.dtype),
        torch.ones_like(new) if mask is None else torch.tensor(mask, dtype=new.dtype),
        torch.tensor(lengths),
    )


def clip(ratio: float, advantage: float) -> PolicyLoss:
    return vanilla_loss(batch_of(torch.tensor([ratio], dtype=torch.float64).log(), [advantage], [1]), CLIP)


def test_names_are_the_same_for_user_and_loss() -> None:
    assert (
        set(LOSSES) == set(get_args(LossMode)) == set(get_args(PolicyLossConfig.model_fields["loss_mode"].annotation))
    )
    assert (
        set(MODES)
        == set(get_args(AggregationMode))
        == set(get_args(ActorConfig.model_fields["loss_agg_mode"].annotation))
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "lower"),
    [
        pytest.param(1.0, 2.0, -2.0, False, False, id="on policy"),
        pytest.param(1.5, 1.0, -1.28, True, False, id="clip-higher"),
        pytest.param(1.27, 1.0, -1.27, False, False, id="inside the higher clip"),
        pytest.param(0.5, 1.0, -0.5, False, False, id="a good token may always rise"),
        pytest.param(0.5, -1.0, 0.8, True, False, id="lower clip"),
        pytest.param(1.5, -1.0, 1.5, False, False, id="a bad token may always fall"),
        pytest.param(20.0, -1.0, 10.0, False, True, id="dual clip"),
    ],
)
def test_clipping(ratio: float, advantage: float, loss: float, clipped: bool, lower: bool) -> None:
    found = clip(ratio, advantage)
    assert found.loss.item() == pytest.approx(loss)
    assert (found.clipped.item(), found.clipped_lower.item()) == (clipped, lower)


def test_clipped_tokens_have_no_gradient() -> None:
    new = torch.log(torch.tensor([1.5, 1.0, 20.0])).requires_grad_()
    assert slopes("vanilla", batch_of(new, [1.0, 1.0, -1.0], [3])) == pytest.approx([0.0, -1.0, 0.0])


def slopes(mode: LossMode, tokens: TokenBatch) -> list[float]:
    """The gradient of the sum of all tokens' losses."""
    (found,) = torch.autograd.grad(LOSSES[mode](tokens, CLIP).loss.sum(), tokens.logprobs)
    return found.tolist()


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    """The clipped ratio is only a weight: 1.28 instead of 1.5, and 0.8 instead of 0.5."""
    new = torch.log(torch.tensor([1.5, 1.0, 0.5])).requires_grad_()
    tokens = batch_of(new, [1.0, 1.0, -1.0], [3])
    assert slopes("cispo", tokens) == pytest.approx([-1.28, -1.0, 0.8])
    assert LOSSES["cispo"](tokens, CLIP).clipped.tolist() == [True, False, True]


def test_gspo_clips_whole_sequences() -> None:
    """Log-ratios 0.6 and 0 have the mean 0.3, whose ratio 1.35 is clipped; 0.3 and 0.1 have 0.2, which isn't."""
    new = torch.tensor([0.6, 0.0, 0.3, 0.1], requires_grad=True)
    tokens = batch_of(new, [1.0] * 4, [2, 2])
    found = LOSSES["gspo"](tokens, CLIP)
    ratio = math.exp(0.2)
    assert found.loss.tolist() == pytest.approx([-1.28, -1.28, -ratio, -ratio])
    assert found.clipped.tolist() == [True, True, False, False]
    assert slopes("gspo", tokens) == pytest.approx([0.0, 0.0, -ratio, -ratio])


def test_geo_mean_clips_tokens_and_takes_the_geometric_mean() -> None:
    """Only the clip that lowers the objective holds: 0.6 becomes 0.28 for a good response, -0.6 stays."""
    new = torch.tensor([0.6, -0.6, 0.6, -0.6], requires_grad=True)
    tokens = batch_of(new, [1.0, 1.0, -1.0, -1.0], [2, 2])
    found = LOSSES["geo_mean"](tokens, CLIP)
    good, bad = math.exp((0.28 - 0.6) / 2), math.exp((0.6 - 0.2) / 2)
    assert found.loss.tolist() == pytest.approx([-good, -good, bad, bad])
    assert (found.clipped.tolist(), found.clipped_lower.tolist()) == (
        [True, True, False, False],
        [False, False, True, True],
    )
    assert slopes("geo_mean", tokens) == pytest.approx([0.0, -good, bad, 0.0])


@pytest.mark.parametrize("mode", ["gspo", "geo_mean"])
def test_masked_tokens_are_no_part_of_the_sequence(mode: LossMode) -> None:
    """A tool's tokens have ratios too, which say nothing about the response."""
    alone = LOSSES[mode](batch_of(torch.tensor([0.1, 0.05]), [1.0, 1.0], [2]), CLIP)
    among = LOSSES[mode](batch_of(torch.tensor([0.1, 9.0, 0.05]), [1.0] * 3, [3], [1.0, 0.0, 1.0]), CLIP)
    assert among.loss[[0, 2]].tolist() == pytest.approx(alone.loss.tolist())


@pytest.mark.parametrize("mode", LOSSES)
def test_on_policy_all_losses_have_the_same_gradient_per_sequence(mode: LossMode) -> None:
    """Where nothing has moved yet each is the policy gradient, -A for each token or the same sum over them."""
    new = torch.zeros(5, requires_grad=True)
    assert slopes(mode, batch_of(new, [2.0] * 3 + [-1.0] * 2, [3, 2])) == pytest.approx([-2.0] * 3 + [1.0] * 2)


@pytest.mark.parametrize("mode", LOSSES)
def test_masked_sequences_and_empty_ones_stay_finite(mode: LossMode) -> None:
    new = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    tokens = batch_of(new, [1.0] * 3, [2, 0, 1], [0.0, 0.0, 1.0])
    assert torch.isfinite(LOSSES[mode](tokens, CLIP).loss).all()
    assert all(map(math.isfinite, slopes(mode, tokens)))


@pytest.mark.parametrize("mode", LOSSES)
def test_far_ratios_stay_finite(mode: LossMode) -> None:
    found = LOSSES[mode](batch_of(torch.tensor([1e9, -1e9]), [-1.0, 1.0], [1, 1]), CLIP)
    assert torch.isfinite(found.loss).all()


def weighted(masks: list[list[bool]], losses: list[list[float]], mode: str) -> float:
    weights = token_weights(masks, mode, LENGTH)
    return sum(float((w * torch.tensor(row)).sum()) for w, row in zip(weights, losses, strict=True))


@pytest.mark.parametrize(("mode", "expected"), list(zip(MODES, [2.8, 7.0, 5.5, 14.0, 1.75], strict=True)))
def test_lengths_four_and_one(mode: str, expected: float) -> None:
    """Four tokens of loss 1 and one of loss 10: a token-mean is 14 / 5, a mean of sequence means 5.5.

    Dr. GRPO's mean of sums, 7, is divided by a constant length.
    """
    masks, losses = [[True] * 4, [True]], [[1.0] * 4, [10.0]]
    assert weighted(masks, losses, mode) == pytest.approx(expected)


def test_a_token_mean_is_over_the_batch_and_not_over_groups() -> None:
    """Groups of 10 and of 100 tokens: the second weighs ten times as much. The paper's Eq. 12, as it is written,
    averages within a group; verl's code, and this, over all tokens of the mini-batch.
    """
    masks = [[True] * 5] * 2 + [[True] * 50] * 2
    weights = token_weights(masks, "token-mean")
    assert [float(weight.sum()) for weight in weights] == pytest.approx([5 / 110, 5 / 110, 50 / 110, 50 / 110])


@pytest.mark.parametrize("mode", MODES)
def test_everything_masked_weighs_nothing(mode: str) -> None:
    assert weighted([[False] * 3, [False]], [[1.0] * 3, [1.0]], mode) == 0.0


def test_dr_grpo_needs_its_length() -> None:
    with pytest.raises(ValueError, match="needs a scale factor"):
        token_weights([[True]], "seq-mean-token-sum-norm")


@pytest.mark.parametrize(("mode", "expected"), list(zip(MODES, [2.0, 3.0, 2.0, 6.0, 0.75], strict=True)))
def test_masked_sequences_are_not_counted(mode: str, expected: float) -> None:
    masks = [[True, True], [False, False], [True, False]]
    losses = [[1.0, 3.0], [100.0, 100.0], [2.0, 100.0]]
    assert weighted(masks, losses, mode) == pytest.approx(expected)


def reference(masks: list[list[bool]], mode: str) -> list[list[float]]:
    """Weights by the definition of each mean, written out."""
    used = [mask for mask in masks if any(mask)]
    tokens = sum(sum(mask) for mask in masks)
    found = []
    for mask in masks:
        per_token = {
            "token-mean": tokens,
            "seq-mean-token-sum": len(used),
            "seq-mean-token-mean": len(used) * sum(mask),
            "token-sum": 1,
            "seq-mean-token-sum-norm": len(used) * LENGTH,
        }
        found.append([1.0 / per_token[mode] if flag else 0.0 for flag in mask])
    return found


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6), st.sampled_from(MODES))
def test_weights_follow_the_definitions(masks: list[list[bool]], mode: str) -> None:
    found = [weights.tolist() for weights in token_weights(masks, mode, LENGTH)]
    for row, expected in zip(found, reference(masks, mode), strict=True):
        assert row == pytest.approx(expected, rel=1e-6)
