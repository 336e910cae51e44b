"""The problems of the search benchmark: a spec each, what a candidate is truly worth, and where counting begins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from sweep_platform.frontier import Goal
from sweep_platform.search import Feasibility, Space
from sweep_platform.spec import SweepSpec, load_spec
from sweep_platform.trainers import load_trainer

from benchmarks import _analytic

ROOT = Path(__file__).parent.parent
GOALS = (Goal("val/accuracy", "maximize"), Goal("cost/flops", "minimize"))
LOSSES = tuple[float, ...]
TRIALS = {"recorded": 20, "mixed": 24, "zdt1": 24, "zdt3": 24, "dtlz2": 24, "zdt2": 24, "dtlz7": 24}
"""The budget, as what so many random trials cost."""
UNSEEN = ("zdt2", "dtlz7")
"""Problems that `ehvi` was never tried on before its rules were settled; they were on the others, under other seeds."""
_X = {f"knobs.x{index}": {"float": [0.0, 1.0]} for index in range(1, 6)}
_MIXED = {
    "knobs.kind": {"choice": ["plain", "wide", "deep"]},
    "knobs.width": {"int": [8, 256], "log": True},
    "knobs.depth": {"int": [1, 8]},
    "knobs.rate": {"float": [1e-4, 1.0], "log": True},
    "knobs.skip": {"float": [0.0, 1.0], "when": "knobs.kind == 'deep'"},
}
SAMPLED = 256
"""Candidates at random that say what a trial costs on average, and what is worst."""
_REFERENCES = {
    **dict.fromkeys(("zdt1", "zdt2", "zdt3"), (6.0, 1.1)),
    "dtlz2": (2.0, 2.0),
    "dtlz7": (13.0, 1.1),
    "mixed": (0.75, 2.6),
}
"""Of shortfall and of the first objective: what is worse counts as nothing."""


@dataclass(frozen=True)
class Problem:
    """One problem, under one seed."""

    name: str
    spec: SweepSpec
    reference: LOSSES
    """Losses beyond which a point counts as nothing."""
    budget: float
    """FLOPs."""

    def truth(self, params: Mapping[str, Any]) -> LOSSES:
        """The losses of a candidate without noise; costs as logarithms."""
        return truth(self.name, self.spec, params)


def truth(name: str, spec: SweepSpec, params: Mapping[str, Any]) -> LOSSES:
    """The losses of a candidate without noise."""
    tree = spec.trial_config(params)
    if name == "recorded":
        from recorded.limits import knobs
        from recorded.surrogate import expected
        from recorded.trainer import Config

        config = Config.model_validate(tree)
        curve, last = expected(knobs(config)), config.planned_updates(0)
        return -float(curve["accuracy"][last]), math.log(float(curve["flops"][last]))
    first, second = _analytic.objectives(name, _analytic.Config.model_validate(tree).knobs)
    return second - 1, math.log(10) * (9 + _analytic.DECADES[name] * first)


def problem(name: str, seed: int, sampler: str = "random", *, pruning: bool = False, share: float = 1.0) -> Problem:
    """Return a problem; `share` of its budget."""
    spec, budget = _spec(name), _mean_cost(name) * TRIALS[name] * share
    tree = spec.to_dict()
    tree |= {"seed": seed, "sampler": {"name": sampler}, "pruning": {} if pruning else None}
    tree["budget"] = {"trials": 10 * TRIALS[name], "flops": budget}
    tree["config"]["trainer"]["seed"] = seed
    return Problem(name, SweepSpec.model_validate(tree), _reference(name), budget)


@cache
def _spec(name: str) -> SweepSpec:
    if name == "recorded":
        trainer = ["trainer=recorded.trainer", "config.trainer.test_at=[0.25, 0.5]", "config.trainer.test_freq=0"]
        single = ["~search.rollout.tensor_model_parallel_size", "~search.actor.ulysses_sequence_parallel_size"]
        return load_spec(ROOT / "sweeps" / "aime.yaml", [*trainer, *single, "priors=[]"])
    base = _analytic.Config.model_validate({"problem": name}).model_dump(exclude={"model", "data"})
    return SweepSpec.model_validate(
        {
            "name": name,
            "trainer": "benchmarks._analytic",
            "config": base,
            "objectives": [{"metric": goal.metric, "direction": goal.direction} for goal in GOALS],
            "search": _MIXED if name == "mixed" else _X,
        }
    )


@cache
def _sampled(name: str) -> list[LOSSES]:
    """The true losses of candidates at random that can run."""
    spec = _spec(name)
    space, feasibility = Space(spec), Feasibility(spec, load_trainer(spec.trainer))
    drawn = (space.uniform(seed) for seed in range(4 * SAMPLED))
    return [truth(name, spec, params) for params in drawn if feasibility.refuse(params) is None][:SAMPLED]


@cache
def _mean_cost(name: str) -> float:
    return mean(math.exp(losses[1]) for losses in _sampled(name))


@cache
def _reference(name: str) -> LOSSES:
    if name in _REFERENCES:
        second, first = _REFERENCES[name]
        return second - 1, math.log(10) * (9 + _analytic.DECADES[name] * first)
    columns = list(zip(*_sampled(name), strict=True))
    return tuple(max(column) for column in columns)
