"""An Optuna study's trials as earlier results of a sweep.

Params go by their names, values by the study's metric names (or by order, where it has none). An imported trial is a
candidate of the sweep like one that `--from` takes over: it informs the sampler, its params are never trained again,
and it counts against no budget. It has no checkpoint and no samples. It can be on the front only if the study told its
costs and its standard errors (`sweep_platform.frontier`): the user attributes `cost` and `standard_errors`, by metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from run_ledger import CostRecord, ResultRecord, TrialState

from sweep_platform import units
from sweep_platform.errors import BadInput, Fault
from sweep_platform.frontier import CURRENCIES, IMPORTED
from sweep_platform.search import Limits, Space, params_hash
from sweep_platform.spec import SweepSpec
from sweep_platform.studies.export import STATE
from sweep_platform.studies.storage import opened, readable

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from sweep_platform.driver.roster import Roster

_KEPT = (TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.FAILED, TrialState.PRUNED)


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a study's trials."""

    taken: Mapping[str, int]
    """How many, by the state that they have now."""
    left_out: Mapping[str, int]
    """How many, by the reason."""


@dataclass(frozen=True)
class _Outside(Exception):
    """The space doesn't have a trial's params."""

    fault: Fault
    """Its `got` is without the trials."""


@dataclass(frozen=True, slots=True)
class Found:
    """One trial of a study, as this sweep has it."""

    number: int
    params: Mapping[str, Any]
    state: TrialState
    reason: str | None
    result: ResultRecord


def read_study(spec: SweepSpec, url: str, name: str, *, partial: bool = False) -> tuple[list[Found], Counter[str]]:
    """Read a study as results for a spec; nothing is written.

    Args:
        spec: The sweep's.
        url: Of the storage.
        name: Of the study.
        partial: Leave out trials whose params the spec's space doesn't have.

    Returns:
        What can be taken, by number, and how many trials are left out for which reason.

    Raises:
        BadInput: no such storage or study, other objectives, or params that the space doesn't have: all at once.
    """
    import optuna

    with opened(url, must_exist=True) as storage, readable(url):
        names = sorted(study.study_name for study in storage.get_all_studies())
        if name not in names:
            got, need = f"{name!r}", f"one of {names}" if names else "a storage with a study"
            raise BadInput([Fault("--study-name", got, need, "name one of them")])
        study = optuna.load_study(study_name=name, storage=storage)
        order, faults = _order(spec, study)
        trials = study.get_trials(deepcopy=False)
        count = len(study.directions)
    found: list[Found] = []
    left: Counter[str] = Counter()
    outside: dict[Fault, list[FrozenTrial]] = {}
    space = Space(spec)
    for trial in trials:
        if (why := _useless(trial, count)) is not None:
            left[why] += 1
            continue
        try:
            params = _params(space, spec, trial)
        except _Outside as error:
            outside.setdefault(error.fault, []).append(trial)
            continue
        found.append(_found(spec, trial, params, order))
    if partial:
        left["with params that the space doesn't have"] = sum(map(len, outside.values()))
    else:
        faults += [_counted(fault, among) for fault, among in outside.items()]
    if faults:
        raise BadInput(faults)
    return found, +left


def import_study(roster: Roster, spec: SweepSpec, study: str, found: Sequence[Found], left: Counter[str]) -> Imported:
    """Record a study's results as trials of a sweep. Called again, it adds what isn't there yet."""
    there = {trial.params_hash for trial in roster.candidates}
    taken: Counter[str] = Counter()
    for item in found:
        digest = params_hash(item.params)
        if digest in there:
            left["with params that are there already"] += 1
            continue
        if item.state is TrialState.PRUNED and spec.pruning is not None:
            left["pruned, where paused ones would go on from a checkpoint"] += 1
            continue
        there.add(digest)
        taken[item.state.value] += 1
        roster.add(
            roster.next_number,
            item.params,
            spec.trial_config(item.params),
            params_hash=digest,
            origin=f"{IMPORTED}{study}",
            sampler_state={},
            state=item.state,
            reason=item.reason,
            result=item.result,
        )
    return Imported(taken, left)


def _order(spec: SweepSpec, study: Study) -> tuple[list[int], list[Fault]]:
    """Where each objective's value stands among a study's, and what doesn't fit."""
    names = study.metric_names or [objective.metric for objective in spec.objectives]
    ways = [direction.name.lower() for direction in study.directions]
    if len(names) != len(ways):
        got = f"{len(ways)} objectives without names"
        need = f"{len(names)}, as the spec has, in its order"
        return [], [Fault("objectives", got, need, "name the study's by set_metric_names, or change the spec's")]
    order, faults = [], []
    for objective in spec.objectives:
        where = f"objectives.{objective.metric}"
        if objective.metric not in names:
            faults.append(
                Fault(where, f"a study of {', '.join(names)}", "a study that has it", "take it out of the spec")
            )
            continue
        place = names.index(objective.metric)
        if ways[place] != objective.direction:
            need = f"{objective.direction}, as in the spec"
            faults.append(Fault(where, f"{ways[place]} in the study", need, "change the spec's direction"))
        order.append(place)
    return order, faults


def _useless(trial: FrozenTrial, objectives: int) -> str | None:
    """Why a trial says nothing, whatever the spec, if its study has so many objectives; None if it does."""
    if trial.user_attrs.get("replicate"):
        return "confirming runs, which are of other problems"
    if not trial.state.is_finished():
        return "not finished"
    if trial.state.name == "COMPLETE":
        values = trial.values or []  # a damaged study may lack some
        if len(values) != objectives or not all(isinstance(v, float | int) and math.isfinite(v) for v in values):
            return "without a finite value of each objective"
    if trial.state.name == "FAIL" and _state(trial) not in _KEPT:
        return "failed, which may have been the machine's fault"
    return None


def _state(trial: FrozenTrial) -> TrialState | None:
    """A trial's state here; None where nothing says whose fault a failure was."""
    told = trial.user_attrs.get(STATE)
    if told in {state.value for state in TrialState}:
        return TrialState(told)
    broken = any(value > 0 for value in trial.constraints.values())
    states = {"COMPLETE": TrialState.COMPLETE, "PRUNED": TrialState.PRUNED}
    return TrialState.INFEASIBLE if broken else states.get(trial.state.name)


def _params(space: Space, spec: SweepSpec, trial: FrozenTrial) -> dict[str, Any]:
    """A trial's params, canonical.

    Raises:
        _Outside: the space doesn't have them.
    """

    def value(path: str, domain: Any) -> Any:
        where = f"search.{path}"
        if path not in trial.params:
            do = "give the study's parameter this name, or take it out of search"
            raise _Outside(Fault(where, "no value", str(domain), do))
        got = trial.params[path]
        if isinstance(got, float) and got.is_integer() and domain.kind == "int":
            got = int(got)
        if not domain.contains(got):
            raise _Outside(Fault(where, repr(got), str(domain), "widen it, or leave such trials out by --partial"))
        return got

    for path in trial.params:
        if path not in spec.search:
            need = "a parameter that search has"
            raise _Outside(Fault(f"search.{path}", "a parameter of the study", need, "add it, or rename the study's"))
    return space.walk(value)


def _counted(fault: Fault, among: Sequence[FrozenTrial]) -> Fault:
    """The fault with the trials that have it."""
    numbers = ", ".join(str(trial.number) for trial in among[:5]) + (", …" if len(among) > 5 else "")
    return replace(fault, got=f"{fault.got} in {units.count(len(among), 'trial')} of the study ({numbers})")


def _found(spec: SweepSpec, trial: FrozenTrial, params: Mapping[str, Any], order: Sequence[int]) -> Found:
    told = trial.user_attrs
    values = tuple(float(trial.values[place]) for place in order) if trial.values and len(order) else None
    metrics = _numbers(told.get("metrics"))
    if values is not None:
        metrics |= {objective.metric: value for objective, value in zip(spec.objectives, values, strict=False)}
    metrics |= {f"{metric}_se": error for metric, error in _numbers(told.get("standard_errors")).items()}
    state, reason = _state(trial) or TrialState.FAILED, told.get("reason")
    broken = {
        text: value
        for text, value in Limits.of(spec).violations(spec.trial_config(params), metrics).items()
        if value > 0
    }
    if state is TrialState.COMPLETE and broken:
        state, reason = TrialState.INFEASIBLE, f"{next(iter(broken))} does not hold"
    steps = _numbers({key: told.get(key) for key in ("step", "total_steps")})
    result = ResultRecord(
        values if state in (TrialState.COMPLETE, TrialState.INFEASIBLE) else None,
        metrics,
        _cost(told.get("cost"), metrics),
        step=int(steps.get("step", 0)),
        total_steps=int(steps.get("total_steps", 0)),
        started_at=_zoned(trial.datetime_start),
        ended_at=_zoned(trial.datetime_complete),
    )
    return Found(trial.number, params, state, None if reason is None else str(reason), result)


def _numbers(told: Any) -> dict[str, float]:
    """The finite numbers of an attribute that may be anything."""
    if not isinstance(told, Mapping):
        return {}
    named = {str(key): value for key, value in told.items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in named.items() if math.isfinite(value)}


def _cost(told: Any, metrics: Mapping[str, float]) -> CostRecord:
    """What a trial cost, by its attribute or, of what is an objective, by its value."""
    found = {name: metrics[f"cost/{name}"] for name in CURRENCIES if f"cost/{name}" in metrics} | _numbers(told)

    def amount(name: str) -> float:
        return max(0.0, found.get(name, 0.0))

    return CostRecord(
        flops=amount("flops"),
        tokens=round(amount("tokens")),
        device_seconds=amount("device_seconds"),
        evaluation_flops=amount("evaluation_flops"),
        evaluation_tokens=round(amount("evaluation_tokens")),
        evaluation_device_seconds=amount("evaluation_device_seconds"),
    )


def _zoned(at: datetime | None) -> datetime | None:
    """A moment of Optuna's, by the clock on the wall, with its zone."""
    return None if at is None else at.astimezone(UTC)
