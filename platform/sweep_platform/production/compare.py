"""Two configs side by side, wherever each of them stands: a file, a trial, a promotion or a sweep's spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep_platform import units
from sweep_platform.errors import BadInput, Fault
from sweep_platform.evidence import judged_frontier
from sweep_platform.frontier import CURRENCIES, goals
from sweep_platform.home import find_sweep
from sweep_platform.production.document import load_production, portable
from sweep_platform.production.promotion import current, evidence_line, is_alias, unknown_alias
from sweep_platform.spec import load_spec
from sweep_platform.spec.compose import read_yaml
from sweep_platform.spec.paths import flatten, put

if TYPE_CHECKING:
    from run_ledger import SweepRecord, TrialRecord

    from sweep_platform.home import Home

_TRIAL = re.compile(r"(?P<sweep>[^:]+):(?P<number>\d+)", re.ASCII)
Measured = Mapping[str, tuple[float, float | None]]
"""By metric: value and standard error."""


@dataclass(frozen=True, slots=True)
class Side:
    """A config, where it is from, and what is known of it."""

    title: str
    config: Mapping[str, Any]
    """Dotted path -> value, the trainer's name as `trainer`."""
    measured: Measured = field(default_factory=dict)
    basis: str = ""
    """What the measured values rest on."""


def side_of(home: Home, text: str) -> Side:
    """What a user names: a production file, a spec, SWEEP:TRIAL, or the alias of a promotion.

    Raises:
        BadInput: it is none of these, or two of them.
    """
    path = Path(text)
    if path.is_file():
        if is_alias(text) and home.has_ledger and _alias(home, text) is not None:
            do = f"write ./{text} for the file, or rename it for the promotion"
            raise BadInput([Fault("diff", f"{text!r}, a file and the alias of a promotion", "one of them", do)])
        tree = read_yaml(path)
        return _spec(path) if "search" in tree and "provenance" not in tree else _file(path)
    if (match := _TRIAL.fullmatch(text)) is not None:
        return _trial(home, match["sweep"], int(match["number"]))
    if is_alias(text) and (side := _alias(home, text)) is not None:
        return side
    need = "a file, SWEEP:TRIAL such as aime:3, or the alias of a promotion"
    if not is_alias(text):
        raise BadInput([Fault("diff", f"{text!r}, which is no file here", need, "check the name")])
    with home.ledger() as ledger:
        if ledger.find_sweep(text) is not None:
            do = f"say which trial: {text}:N, as platform status {text} lists them"
            raise BadInput([Fault("diff", f"{text!r}, a sweep", need, do)])
        raise BadInput([Fault("diff", repr(text), need, unknown_alias(ledger, text, "diff").do)])


def differences(a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    """Values at which two configs differ, in A's order and then B's; what one lacks is `ABSENT` there."""
    both = _pairs(a, b)
    return {path: pair for path, pair in both.items() if not _equal(*pair)}


def alike(a: Side, b: Side) -> dict[str, Any]:
    """Values that two configs share."""
    return {path: pair[0] for path, pair in _pairs(a, b).items() if _equal(*pair)}


ABSENT = object()
"""Stands where a config has no such path."""


def _pairs(a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    return {path: (a.config.get(path, ABSENT), b.config.get(path, ABSENT)) for path in {**a.config, **b.config}}


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _flat(trainer: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"trainer": trainer, **flatten(portable(config))}


def _file(path: Path) -> Side:
    """A production file, with the trainer's defaults for what it leaves out."""
    production = load_production(path)
    origin = production.file.provenance
    config = _flat(production.file.trainer, production.config.model_dump(mode="json"))
    if origin is None:
        return Side(str(path), config)
    measured: dict[str, tuple[float, float | None]] = {}
    if origin.accuracy_metric is not None and origin.accuracy is not None:
        measured[origin.accuracy_metric] = origin.accuracy, origin.accuracy_se
    if origin.cost_metric is not None and origin.cost is not None:
        measured[origin.cost_metric] = origin.cost, None
    title = f"{path} (trial {origin.trial} of {origin.sweep}@{origin.version})"
    return Side(title, config, measured, _runs(origin.confirming_runs))


def _spec(path: Path) -> Side:
    """A sweep's spec: its base config, and domains in the place of what is searched."""
    spec = load_spec(path)
    tree: dict[str, Any] = spec.base
    for name, domain in spec.search.items():
        put(tree, name, f"searched: {domain}")
    return Side(f"{path} (sweep spec)", _flat(spec.trainer, tree))


def _trial(home: Home, address: str, number: int) -> Side:
    with home.ledger() as ledger:
        sweep = find_sweep(ledger, address)
        trials = {trial.number: trial for trial in ledger.trials(sweep.id)}
        if number not in trials:
            need = f"a trial of {sweep.address}: 0 to {max(trials)}" if trials else "a sweep with trials"
            raise BadInput([Fault("diff", f"{address}:{number}", need, f"see platform status {address}")])
        trial = trials[number]
        measured, basis = _observed(sweep, trial), f"one run, {trial.state}"
        if trial.values is not None and trial.state == "complete" and trial.replicate == 0:
            found = judged_frontier(ledger, sweep, list(trials.values())).points
            for point in found:
                if point.number == number:
                    names = [goal.metric for goal in point.goals]
                    values = zip(point.values, point.errors, strict=True)
                    measured, basis = {**measured, **dict(zip(names, values, strict=True))}, _runs(point.runs)
    return Side(f"trial {number} of {sweep.address}", _flat(str(sweep.spec["trainer"]), trial.config), measured, basis)


def _observed(sweep: SweepRecord, trial: TrialRecord) -> Measured:
    """The objectives as far as the trial told them, and what it cost in every currency."""
    told = {}
    for goal in goals(sweep):
        if goal.metric in trial.metrics:
            told[goal.metric] = trial.metrics[goal.metric], trial.metrics.get(f"{goal.metric}_se")
    costs = {f"cost/{name}": float(getattr(trial.cost, name)) for name in CURRENCIES}
    return told | {name: (value, None) for name, value in costs.items() if value}


def _alias(home: Home, alias: str) -> Side | None:
    with home.ledger() as ledger:
        held = current(ledger, alias)
    if held is None:
        return None
    known = held.record.evidence
    errors = known.get("errors", {})
    measured = {name: (value, errors.get(name)) for name, value in known.get("values", {}).items()}
    costs = {f"cost/{name}": (value, None) for name, value in known.get("cost", {}).items() if value}
    config = _flat(str(held.sweep.spec["trainer"]), held.trial.config)
    return Side(f"{alias} ({held.title})", config, {**costs, **measured}, evidence_line(held.record))


def _runs(confirming: int) -> str:
    return f"confirmed by {units.count(confirming, 'run')}" if confirming else "one run, not confirmed"
