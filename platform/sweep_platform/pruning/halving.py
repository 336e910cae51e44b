"""Asynchronous successive halving (ASHA, arXiv 1810.05934) for several objectives.

A rung is a share of a trial's own length. At its first evaluation there a trial is compared with all that were ever
evaluated at that rung: by non-domination rank, then by hypervolume contribution. The best 1 / `reduction` of them go
on, the others pause with a checkpoint. A paused trial goes on as soon as it is among the best, since more trials came
to the rung; nothing waits for a rung to fill.

Costs are projected to the trial's full length, so that a candidate is judged by what it would cost, not by how little
it was trained. The trial in question is judged by an optimistic bound, `optimism` standard errors better than measured:
noise alone should not stop it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweep_platform.frontier import Goal
from sweep_platform.hypervolume import Losses, order
from sweep_platform.spec.model import Pruning


@dataclass(frozen=True, slots=True)
class Standing:
    """What one trial showed at one rung."""

    step: int
    values: tuple[float, ...]
    """As measured, costs projected to the trial's full length."""
    losses: Losses
    """The same, less is better."""
    optimistic: Losses
    """The same, `optimism` standard errors better."""


class Halving:
    """The rungs of one sweep. Told a trial's evaluations in any process, it comes to the same standings."""

    def __init__(self, goals: Sequence[Goal], settings: Pruning) -> None:
        self._goals = tuple(goals)
        self._settings = settings
        self._rungs: tuple[dict[int, Standing], ...] = tuple({} for _ in settings.rungs)
        self._promoted: set[tuple[int, int]] = set()
        self._ended: dict[int, tuple[float, ...]] = {}
        self._changes: dict[int, tuple[float, ...]] = {}

    def observe(self, number: int, step: int, total_steps: int, metrics: Mapping[str, float]) -> int | None:
        """Take a step's metrics; return the highest rung that the trial stands at with it, or None.

        Steps that didn't evaluate every objective are passed over. The first evaluation at or after a rung is the one
        that counts; told again, it stands there again.
        """
        if step <= 0 or total_steps <= 0 or any(goal.metric not in metrics for goal in self._goals):
            return None
        if step == total_steps:
            self._ended[number] = tuple(metrics[goal.metric] for goal in self._goals)
            self._changes.clear()
        found = None
        for rung, share in enumerate(self._settings.rungs):
            if step < share * total_steps - 1e-9:  # 0.1 * 30 is a little more than 3
                break
            standings = self._rungs[rung]
            if number not in standings or standings[number].step >= step:
                standings[number] = self._standing(step, total_steps, metrics)
                found = rung
        return found

    def goes_on(self, number: int, rung: int) -> bool:
        """Whether the trial is among those that go on from the rung; once it is, it stays so."""
        if (number, rung) in self._promoted:
            return True
        standings = self._rungs[rung]
        others = [standing.losses for other, standing in standings.items() if other != number]
        place = order([standings[number].optimistic, *others]).index(0)
        if place >= math.ceil(len(standings) / self._settings.reduction):
            return False
        self._promoted.add((number, rung))
        return True

    def rung_of(self, number: int) -> int | None:
        """The highest rung that a trial has come to."""
        return max((rung for rung, standings in enumerate(self._rungs) if number in standings), default=None)

    def next_of(self, paused: Sequence[int]) -> int | None:
        """Which paused trial goes on first: the one at the highest rung that may; None if none may."""
        at = [(rung, -number) for number in paused if (rung := self.rung_of(number)) is not None]
        return next((-negative for rung, negative in sorted(at, reverse=True) if self.goes_on(-negative, rung)), None)

    def projected(self, number: int) -> tuple[float, ...] | None:
        """What a stopped trial would have come to; None before any rung.

        That is what it showed last, costs projected to its full length, and on top what the trials that went on from
        there came to beside what they had shown: a stopped one would have risen too.
        """
        rung = self.rung_of(number)
        if rung is None:
            return None
        changes = self._changes.get(rung) or self._changes.setdefault(rung, self._change(rung))
        shown = self._rungs[rung][number].values
        return tuple(
            value * change if goal.is_cost else value + change
            for goal, value, change in zip(self._goals, shown, changes, strict=True)
        )

    def _change(self, rung: int) -> tuple[float, ...]:
        """From a rung to the end, over all that ended: the mean difference, and of costs the ratio."""
        pairs = [(at.values, self._ended[number]) for number, at in self._rungs[rung].items() if number in self._ended]
        found = []
        for index, goal in enumerate(self._goals):
            before, after = (sum(pair[side][index] for pair in pairs) for side in (0, 1))
            if goal.is_cost:
                found.append(after / before if before > 0 else 1.0)
            else:
                found.append((after - before) / len(pairs) if pairs else 0.0)
        return tuple(found)

    def explain(self, number: int) -> str:
        """Why a trial stopped where it did."""
        rung = self.rung_of(number)
        if rung is None:
            return "stopped before its first rung"
        share, peers = self._settings.rungs[rung], len(self._rungs[rung])
        best = math.ceil(peers / self._settings.reduction)
        return f"at {share:g} of its length it wasn't among the best {best} of {peers} trials evaluated there"

    def _standing(self, step: int, total_steps: int, metrics: Mapping[str, float]) -> Standing:
        length = total_steps / step
        values = tuple(metrics[goal.metric] * (length if goal.is_cost else 1.0) for goal in self._goals)
        losses = tuple(goal.loss(value) for goal, value in zip(self._goals, values, strict=True))
        errors = [metrics.get(f"{goal.metric}_se", 0.0) for goal in self._goals]
        optimistic = tuple(loss - self._settings.optimism * error for loss, error in zip(losses, errors, strict=True))
        return Standing(step, values, losses, optimistic)
