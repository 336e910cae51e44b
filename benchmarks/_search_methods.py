"""The methods of the search benchmark. Each spends one problem's budget and tells what it completed, and when.

Ours run as the product does: a sweep in a ledger, through driver and executor. The peers are asked and told by their
own interfaces, with their own defaults, on the same space. They are told costs as logarithms, which suits their models
better. A candidate that breaks a constraint of the space costs nobody anything; Optuna's samplers are told of it as a
violated constraint with the values of the median, as ours are. Ray Tune's searcher knows no constraints, and told of an
error it asks for the same region for ever: it is told the worst values that count, the usual penalty.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sweep_platform.search import Feasibility, Space
from sweep_platform.search.samplers import _ask as suggested
from sweep_platform.trainers import load_trainer

from benchmarks._search_problems import GOALS, LOSSES, Problem, problem

Event = tuple[float, LOSSES]
"""FLOPs spent when a trial was complete, and its true losses."""
OURS = {"ehvi": ("ehvi", False), "ehvi, pruning": ("ehvi", True), "tpe, ours": ("tpe", False)}
PEERS = ("optuna tpe", "optuna multivariate tpe", "optuna gp", "optuna nsga2", "ray tune optuna", "random")
_REFUSALS = 200
"""Refused candidates in a row before one at random is taken."""


@dataclass
class Diary:
    """An observer of a sweep that notes what was complete after how much compute."""

    problem: Problem
    spent: dict[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def trial_reported(self, trial: Any, step_metrics: Any) -> None:
        self.spent[trial.number] = step_metrics.cost.flops

    def trial_finished(self, trial: Any) -> None:
        if trial.state == "complete":
            self.events.append((sum(self.spent.values()), self.problem.truth(trial.params)))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def run(method: str, name: str, seed: int, share: float) -> list[Event]:
    """Spend the budget by one method."""
    if method in OURS:
        sampler, pruning = OURS[method]
        return _sweep(problem(name, seed, sampler, pruning=pruning, share=share))
    there = problem(name, seed, share=share)
    return list(_asked(there, _proposals(method, there, seed)))


def _sweep(there: Problem) -> list[Event]:
    from run_ledger import Ledger
    from sweep_platform.driver import open_sweep
    from sweep_platform.executors import make_executor
    from sweep_platform.home import Home

    logging.getLogger("sweep_platform").setLevel(logging.ERROR)
    diary = Diary(there)
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        with Ledger.open(home.ledger_url) as ledger, open_sweep(ledger, there.spec, home, observers=[diary]) as driver:
            make_executor("inline").run(driver)
    return diary.events


Tell = Callable[[LOSSES | None], None]
"""Takes a candidate's losses as measured, costs as logarithms; None: it can't run."""


def _asked(there: Problem, proposals: Iterator[tuple[Mapping[str, Any], Tell]]) -> Iterator[Event]:
    """Train what is proposed until the budget is spent."""
    trainer = load_trainer(there.spec.trainer)
    feasibility, spent, refused = Feasibility(there.spec, trainer), 0.0, 0
    for params, tell in proposals:
        if feasibility.refuse(params) is not None:
            tell(None)
            refused += 1
            if refused == _REFUSALS:
                raise RuntimeError(f"{there.name}: {_REFUSALS} candidates in a row that can't run")
            continue
        refused = 0
        last: list[Any] = []
        trainer.train(
            trainer.Config.model_validate(there.spec.trial_config(params)), lambda s, last=last: not last.append(s)
        )
        metrics = {**last[-1].metrics, "cost/flops": last[-1].cost.flops}
        tell(tuple(goal.loss(metrics[goal.metric]) for goal in GOALS))
        spent += last[-1].cost.flops
        yield spent, there.truth(params)
        if spent >= there.budget:
            return


def _proposals(method: str, there: Problem, seed: int) -> Iterator[tuple[Mapping[str, Any], Tell]]:
    space = Space(there.spec)
    if method == "random":
        number = seed * 10**6
        while True:
            number += 1
            yield space.uniform(number), lambda losses: None
    elif method == "ray tune optuna":
        yield from _ray(there, space, seed)
    else:
        yield from _optuna(method, space, seed)


def _optuna(method: str, space: Space, seed: int) -> Iterator[tuple[Mapping[str, Any], Tell]]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    samplers = optuna.samplers
    sampler = {
        "optuna tpe": lambda: samplers.TPESampler(seed=seed),
        "optuna multivariate tpe": lambda: samplers.TPESampler(seed=seed, multivariate=True, group=True),
        "optuna gp": lambda: samplers.GPSampler(seed=seed),
        "optuna nsga2": lambda: samplers.NSGAIISampler(seed=seed),
    }[method]()
    study = optuna.create_study(sampler=sampler, directions=["minimize"] * len(GOALS))
    seen: list[LOSSES] = []
    while True:
        trial = study.ask()
        params = space.walk(lambda path, domain, trial=trial: suggested(trial, path, domain))

        def tell(losses: LOSSES | None, trial: Any = trial) -> None:
            trial.set_constraint("feasible", 1.0 if losses is None else -1.0)
            if losses is not None:
                seen.append(losses)
            neutral = [median(column) for column in zip(*seen, strict=True)] or [0.0] * len(GOALS)
            study.tell(trial, neutral if losses is None else list(losses))

        yield params, tell


def _ray(there: Problem, space: Space, seed: int) -> Iterator[tuple[Mapping[str, Any], Tell]]:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = [goal.metric for goal in GOALS]
    held: dict[str, Mapping[str, Any]] = {}

    def define(trial: Any) -> None:
        held["params"] = space.walk(lambda path, domain: suggested(trial, path, domain))

    searcher, number = OptunaSearch(define, metric=names, mode=["min"] * len(names), seed=seed), 0
    while True:
        number += 1
        identity = str(number)
        searcher.suggest(identity)

        def tell(losses: LOSSES | None, identity: str = identity) -> None:
            searcher.on_trial_complete(identity, dict(zip(names, losses or there.reference, strict=True)))

        yield held["params"], tell


def hypervolumes(events: list[Event], reference: LOSSES, amounts: list[float]) -> list[float]:
    """Hypervolume of what was complete by each amount of compute."""
    from sweep_platform.hypervolume import hypervolume

    return [hypervolume([losses for spent, losses in events if spent <= amount], reference) for amount in amounts]
