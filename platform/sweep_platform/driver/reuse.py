"""Results of another sweep that count in this one: what was trained with the same config need not be trained again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from run_ledger import SweepRecord, TrialRecord, TrialState

from sweep_platform.driver.roster import Roster
from sweep_platform.search import Feasibility, Space, params_hash
from sweep_platform.spec import SweepSpec
from sweep_platform.spec.paths import flatten

_PLACES = ("trainer.num_threads", "trainer.default_local_dir")
"""Paths of a trial's config that don't change what it measures."""


def take_over(roster: Roster, spec: SweepSpec, feasibility: Feasibility, source: SweepRecord) -> int:
    """Record the complete trials of `source` that this sweep's space and config could have made; return how many.

    They are complete from the start, with their costs, steps and samples, and count against no budget. Called again, it
    adds what isn't there yet.
    """
    if source.spec.get("trainer") != spec.trainer:
        return 0
    there = {trial.params_hash for trial in roster.candidates}
    space, taken = Space(spec), 0
    for trial in roster.ledger.trials(source.id):
        params = same_params(spec, space, trial)
        values = [trial.metrics[o.metric] for o in spec.objectives if o.metric in trial.metrics]
        if params is None or len(values) < len(spec.objectives) or params_hash(params) in there:
            continue
        if feasibility.violated(trial.metrics) is None and feasibility.refuse(params) is None:
            there.add(params_hash(params))
            roster.copy(
                trial, params, spec.trial_config(params), values, origin=f"from:{source.address}/{trial.number}"
            )
            taken += 1
    return taken


def same_params(spec: SweepSpec, space: Space, trial: TrialRecord) -> dict[str, Any] | None:
    """The params with which this sweep would train just what a complete candidate of another was trained with."""
    if trial.state is not TrialState.COMPLETE or trial.replicate > 0:
        return None
    config = flatten(trial.config)
    try:
        params = space.walk(lambda path, domain: _within(domain, config[path]))
    except (KeyError, ValueError):
        return None
    return params if _measured(flatten(spec.trial_config(params))) == _measured(config) else None


def _within(domain: Any, value: Any) -> Any:
    if not domain.contains(value):
        raise ValueError(value)
    return value


def _measured(config: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in config.items() if path not in _PLACES}


def has_grown(old: Mapping[str, Any], new: SweepSpec) -> bool:
    """Whether a spec differs from a stored one by values and parameters that were added, and by nothing else."""
    lines = new.diff(old)
    if not lines or not all(line.startswith("search.") for line in lines):
        return False
    before: Mapping[str, Any] = old.get("search", {})
    return all(path in new.search and _covers(new.search[path], domain) for path, domain in before.items())


def _covers(domain: Any, stored: Mapping[str, Any]) -> bool:
    """Whether a domain has every value that the stored one had."""
    kind = next((name for name in ("choice", "float", "int") if name in stored), None)
    values: Sequence[Any] = stored[kind] if kind is not None else ()
    return kind is not None and domain.when == stored.get("when") and all(domain.contains(value) for value in values)
