"""Optuna's samplers behind one function: the told trials in, one candidate out.

The study is built afresh for every suggestion, from the records, with a sampler seeded for that trial number:
a suggestion is then a pure function of spec, seed, number and results, whatever process asks for it. Optuna's
own way, one sampler that lives as long as the process, repeats its suggestions after a resume.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sweep_platform.search.space import Space
from sweep_platform.spec import Choice, Domain, FloatRange, SweepSpec

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

FEASIBLE = "feasible"
"""Name of the one constraint that samplers are told: above 0 is violated."""
_GENERATION = ":generation"


class Verdict(StrEnum):
    """What a sampler should make of a candidate."""

    PENDING = "pending"
    """Not known yet: suggest something else."""
    GOOD = "good"
    """Measured and allowed."""
    PRUNED = "pruned"
    """Stopped early: it was not promising. Its values are what it showed, costs projected to its full length."""
    UNKNOWN = "unknown"
    """Lost with what ran it: says nothing, and isn't suggested again."""
    BAD = "bad"
    """Refused, failed or outside a constraint: keep away."""


@dataclass(frozen=True, slots=True)
class Told:
    """One candidate as the samplers see it."""

    number: int
    params: Mapping[str, Any]
    params_hash: str
    origin: str
    verdict: Verdict
    values: tuple[float, ...] | None = None
    """Measured objectives; a bad or stopped candidate may have none."""
    errors: tuple[float, ...] = ()
    """Their standard errors, 0 where they have none."""
    sampler_state: Mapping[str, Any] = field(default_factory=dict)


def suggest(
    spec: SweepSpec, space: Space, told: Sequence[Told], seed: int, fixed: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask Optuna for one candidate.

    Args:
        spec: names the sampler and the objectives.
        space: the search space.
        told: all candidates so far, by number.
        seed: of this suggestion alone.
        fixed: values that are given (a prior's).

    Returns:
        Canonical params, and what the sampler needs to be told with them again.
    """
    study = _study(spec, space, told, seed)
    if fixed:
        study.enqueue_trial(dict(fixed))
    trial = study.ask()
    params = space.walk(lambda path, domain: _ask(trial, path, domain))
    attributes = study.get_trials(deepcopy=False)[trial.number].system_attrs
    state = {key: value for key, value in attributes.items() if key.endswith(_GENERATION)}
    return params, state


def _study(spec: SweepSpec, space: Space, told: Sequence[Told], seed: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        sampler=_sampler(spec, told, seed), directions=[objective.direction for objective in spec.objectives]
    )
    study.add_trials(_frozen(spec, space, told))
    return study


def _sampler(spec: SweepSpec, told: Sequence[Told], seed: int) -> BaseSampler:
    from optuna import samplers

    started = has_started(spec, told)
    match spec.sampler.name:
        case "tpe" if started:
            # Multivariate: half the duplicates of the default in small discrete spaces.
            return samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)
        case "gp" if started:
            return samplers.GPSampler(seed=seed, n_startup_trials=1)
        case "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=spec.sampler.population)
        case _:
            return samplers.RandomSampler(seed=seed)


def has_started(spec: SweepSpec, told: Sequence[Told]) -> bool:
    """Whether a model is used by now. Bad candidates don't count: of nothing but those it would have nothing to say."""
    return sum(item.verdict is Verdict.GOOD for item in told) >= spec.sampler.n_startup


def _frozen(spec: SweepSpec, space: Space, told: Sequence[Told]) -> list[FrozenTrial]:
    """The candidates as Optuna's trials.

    Optuna's samplers ignore failed trials, so a bad region would be tried for ever. A bad candidate is told
    as complete with a violated constraint; where it has no values it gets the median of the measured ones,
    which bends the models of the objectives least.
    """
    from optuna.trial import TrialState, create_trial

    measured = [item.values for item in told if item.verdict is Verdict.GOOD and item.values]
    neutral = [statistics.median(column) for column in zip(*measured, strict=True)] or [0.0] * len(spec.objectives)
    constrained = any(item.verdict is Verdict.BAD for item in told)
    # TPE ranks pruned trials behind all others. The other samplers ignore them, and learn from what they showed.
    ranks_pruned = spec.sampler.name == "tpe"
    trials = []
    for item in told:
        if item.verdict is Verdict.UNKNOWN or (item.verdict is Verdict.PRUNED and not (ranks_pruned or item.values)):
            continue
        state, values, constraints = TrialState.COMPLETE, item.values, None
        if item.verdict is Verdict.PENDING:
            state, values = TrialState.RUNNING, None
        elif item.verdict is Verdict.PRUNED and ranks_pruned:
            state, values = TrialState.PRUNED, None
        elif constrained:
            constraints = {FEASIBLE: 1.0 if item.verdict is Verdict.BAD else -1.0}
            values = values or tuple(neutral)
        trials.append(
            create_trial(
                state=state,
                values=values,
                params=dict(item.params),
                distributions={path: distribution(spec.search[path]) for path in item.params},
                system_attrs=dict(item.sampler_state),
                constraints=constraints,
            )
        )
    return trials


def distribution(domain: Domain) -> BaseDistribution:
    """A domain as Optuna has it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.choice)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.bounds[0], domain.top, log=domain.log, step=domain.step)
    return IntDistribution(domain.bounds[0], domain.top, log=domain.log, step=domain.step)


def _ask(trial: Trial, path: str, domain: Domain) -> Any:
    if isinstance(domain, Choice):
        return trial.suggest_categorical(path, domain.choice)
    if isinstance(domain, FloatRange):
        return trial.suggest_float(path, domain.bounds[0], domain.top, log=domain.log, step=domain.step)
    return trial.suggest_int(path, domain.bounds[0], domain.top, log=domain.log, step=domain.step)
