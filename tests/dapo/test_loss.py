import pytest
import torch
from dapo.loss import ClippedLoss, clipped_loss, token_weights
from hypothesis import given
from hypothesis import strategies as st

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")


def clip(ratio: float, advantage: float, low: float = 0.2, high: float = 0.28, c: float = 10.0) -> ClippedLoss:
    new = torch.tensor([ratio], dtype=torch.float64).log()
    return clipped_loss(
        new,
        torch.zeros_like(new),
        torch.tensor([advantage], dtype=torch.float64),
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=c,
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
    found = clipped_loss(
        new,
        torch.zeros(3),
        torch.tensor([1.0, 1.0, -1.0]),
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=10.0,
    )
    torch.autograd.backward(found.loss.sum())
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, -1.0, 0.0]


def test_far_ratios_stay_finite() -> None:
    found = clipped_loss(
        torch.tensor([0.0, -1e9]),
        torch.tensor([-1e9, 0.0]),
        torch.tensor([-1.0, 1.0]),
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=10.0,
    )
    assert torch.isfinite(found.loss).all()


def weighted(masks: list[list[bool]], losses: list[list[float]], mode: str) -> float:
    weights = token_weights(masks, mode)
    return sum(float((w * torch.tensor(row)).sum()) for w, row in zip(weights, losses, strict=True))


@pytest.mark.parametrize(("mode", "expected"), [(MODES[0], 2.8), (MODES[1], 7.0), (MODES[2], 5.5)])
def test_lengths_four_and_one(mode: str, expected: float) -> None:
    """Four tokens of loss 1 and one of loss 10: a token-mean is 14 / 5, a mean of sequence means 5.5."""
    masks, losses = [[True] * 4, [True]], [[1.0] * 4, [10.0]]
    assert weighted(masks, losses, mode) == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
def test_everything_masked_weighs_nothing(mode: str) -> None:
    assert weighted([[False] * 3, [False]], [[1.0] * 3, [1.0]], mode) == 0.0


@pytest.mark.parametrize(("mode", "expected"), [(MODES[0], 2.0), (MODES[1], 3.0), (MODES[2], 2.0)])
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
        }
        found.append([1.0 / per_token[mode] if flag else 0.0 for flag in mask])
    return found


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6), st.sampled_from(MODES))
def test_weights_follow_the_definitions(masks: list[list[bool]], mode: str) -> None:
    found = [weights.tolist() for weights in token_weights(masks, mode)]
    for row, expected in zip(found, reference(masks, mode), strict=True):
        assert row == pytest.approx(expected, rel=1e-6)
