"""Muon, an optimiser of hidden matrices, with its products in float32: fast on every processor.

`torch.optim.Muon` makes them in bfloat16, which a processor without AMX multiplies ten times more slowly than float32.
Source: https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration."""
ITERATIONS = 5


class Muon(torch.optim.Muon):
    """`torch.optim.Muon`, with Nesterov momentum and the rate adjusted by shape, matrices of one shape at a time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient.

        Raises:
            ValueError: a closure is given.
        """
        if closure is not None:
            raise ValueError("closure: got one; need none")
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes.setdefault(weight.shape, []).append(weight)
            for shape, weights in shapes.items():
                updates = orthogonal(torch.stack([self._momentum(weight, group["momentum"]) for weight in weights]))
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, update in zip(weights, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _momentum(self, weight: Tensor, momentum: float) -> Tensor:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        average = state.setdefault("momentum_buffer", torch.zeros_like(gradient)).lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices [N, rows, columns] near one by a Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    found = matrices if wide else matrices.mT
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        square = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(square, square, square, beta=b, alpha=c), found, beta=a)
    return found if wide else found.mT
