"""The float32 Muon against torch's own, and its iteration against singular vectors."""

import copy

import pytest
import torch
from dapo.muon import Muon, orthogonal

SHAPES = [(8, 8), (8, 8), (4, 12), (12, 4)]


def test_it_is_torchs_but_for_the_rounding_of_bfloat16() -> None:
    draw = torch.Generator().manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.01}
    optimisers = Muon(ours, **settings), torch.optim.Muon(theirs, **settings)
    start = [weight.detach().clone() for weight in ours]
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for one, other, first in zip(ours, theirs, start, strict=True):
        assert float((one - other).detach().norm()) < 0.02 * float((other - first).detach().norm())


@pytest.mark.parametrize("shape", [(3, 6, 6), (3, 4, 9), (3, 9, 4)])
def test_singular_values_come_near_one_and_vectors_stay(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(1)
    matrices = torch.randn(shape, generator=draw, dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    core = u.mT @ orthogonal(matrices) @ v.mT
    values = torch.diagonal(core, dim1=1, dim2=2)
    assert bool(((values > 0.3) & (values < 1.3)).all())
    torch.testing.assert_close(core, torch.diag_embed(values), atol=1e-9, rtol=0)


def test_a_matrix_without_gradient_stays_and_zeros_move_nothing() -> None:
    still, zero = (torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    zero.grad = torch.zeros(3, 3)
    Muon([still, zero], lr=0.1, weight_decay=0.0).step()
    assert torch.equal(still, torch.ones(3, 3))
    assert torch.equal(zero, torch.ones(3, 3))


def test_a_closure_is_refused() -> None:
    with pytest.raises(ValueError, match="closure"):
        Muon([torch.nn.Parameter(torch.ones(2, 2))]).step(lambda: 0.0)
