"""What a spec says about its trainer, held against the trainer's Config class."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sweep_platform.errors import BadInput, Fault
from sweep_platform.spec import metrics
from sweep_platform.spec.domains import Domain
from sweep_platform.spec.expressions import Expression, ExpressionError
from sweep_platform.spec.faults import OVERRIDE, Where, from_pydantic, from_trainer, show
from sweep_platform.spec.model import Hardware, SweepSpec
from sweep_platform.spec.paths import did_you_mean, flatten, leaves, put, refuse_value
from sweep_platform.spec.remaining import remaining_faults
from sweep_platform.trainers import Trainer, TrainerFault, confirming_faults, held_out, load_trainer, unreported_metrics

_OWN = ("model", "data")
"""Sections of the trainer's config that are keys of the spec; the others are under `config`."""


def user_key(path: str) -> str:
    """A path in the trainer's config as the spec's key."""
    return path if path.split(".", 1)[0] in _OWN else f"config.{path}"


class TrainerChecks:
    """Checks against one trainer; each adds its faults to a list."""

    def __init__(self, trainer: Trainer, where: Where) -> None:
        self.trainer = trainer
        self.config: type[BaseModel] = trainer.Config
        self.where = where
        self.fields = dict(leaves(self.config))
        self.paths = frozenset(self.fields)
        self._refused: tuple[dict[str, Any], ValidationError] | None = None

    def base_config(self, tree: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any] | None:
        """The base config with every default filled in; None where it is not valid."""
        own = {key: tree[key] for key in _OWN if key in tree}
        config = tree.get("config", {})
        if not isinstance(config, Mapping):
            return None
        for key in set(config) & set(_OWN):
            need = f"{key} as a key of the spec"
            faults.append(Fault(self.where(f"config.{key}"), show(config[key]), need, "move it out of config"))
        sections = {key: value for key, value in config.items() if key not in _OWN}
        self._seed(sections, tree.get("seed"))
        written = {**own, **sections}
        try:
            valid = self.config.model_validate(written)
        except ValidationError as error:
            self._refused = written, error
            faults += from_pydantic(
                error, self.config, self.where, lambda loc: user_key(".".join(str(part) for part in loc))
            )
            return None
        return valid.model_dump(mode="json")

    def _seed(self, sections: dict[str, Any], seed: Any) -> None:
        """The sweep's seed seeds the trials too, unless their config names one."""
        trainer = sections.get("trainer", {})
        if "trainer.seed" in self.paths and isinstance(trainer, Mapping) and isinstance(seed, int) and seed >= 0:
            sections["trainer"] = {"seed": seed, **trainer}

    def preflight(
        self, base: Mapping[str, Any] | None, domains: Mapping[str, Domain], hardware: Any, faults: list[Fault]
    ) -> None:
        """The trainer's own checks of the base config, as far as it is valid and the spec says on what it runs."""
        devices = _devices(hardware)
        if devices is None:
            return
        if base is not None:
            faults += preflight_faults(self.trainer, base, domains, devices, self.where)
        elif self._refused is not None:
            faults += _of_base(remaining_faults(self.trainer, *self._refused, devices), domains, self.where)

    def reported(
        self, base: Mapping[str, Any], domains: Mapping[str, Domain], tree: Mapping[str, Any], faults: list[Fault]
    ) -> None:
        """Objectives and bounds are on metrics that the trials report, whose end would else show it.

        A metric that the base config lacks may be one that a value of the search brings.
        """
        wanted = dict(_metrics_of(tree))
        lacking = {fault.key: fault for fault in self._unreported(base, list(wanted.values()))}
        for path, value in ((path, value) for path, domain in domains.items() for value in domain.samples()):
            if not lacking:
                return
            candidate = copy.deepcopy(dict(base))
            put(candidate, path, value)
            still = {fault.key for fault in self._unreported(candidate, list(lacking))}
            lacking = {key: fault for key, fault in lacking.items() if key in still}
        for key, metric in wanted.items():
            if (fault := lacking.get(metric)) is not None:
                faults.append(Fault(self.where(key), f"{metric}, {fault.got}", fault.need, fault.do))

    def _unreported(self, config: Mapping[str, Any], metrics: Sequence[str]) -> Sequence[TrainerFault]:
        """What the trainer says; a config that isn't valid may report anything, and is told as such."""
        try:
            return unreported_metrics(self.trainer, self.config.model_validate(config), metrics)
        except ValidationError:
            return ()

    def search(self, domains: Mapping[str, Domain], faults: list[Fault]) -> None:
        """Each searched path exists, and its field takes each value."""
        for path, domain in domains.items():
            key = f"search.{path}"
            info = self.fields.get(path)
            if info is None:
                advice = did_you_mean(path, sorted(self.paths), "name a field of the trainer's config")
                faults.append(Fault(self.where(key), f"unknown path {path!r}", "a field of the config", advice))
                continue
            for value in domain.samples():
                if (need := refuse_value(info, value)) is not None:
                    place = self.where(f"{key}.{domain.kind}")
                    faults.append(Fault(place, show(value), f"{need}, as {path} takes", "take it out of the search"))

    def held_out(self, base: Mapping[str, Any] | None, domains: Mapping[str, Domain], faults: list[Fault]) -> None:
        """What is kept for the final evaluation is no part of a search, which would choose by it."""
        values = {} if base is None else flatten(base)
        for path, kept in held_out(self.trainer).items():
            domain = domains.get(path)
            used = [] if domain is not None and domain.when is None else [(user_key(path), values.get(path))]
            if domain is not None:
                used += [(f"search.{path}.{domain.kind}", value) for value in domain.samples()]
            for key, value in used:
                if value in kept:
                    need = "what the search may see: this is held out for the final evaluation"
                    do = f"name another; platform train may set {path} to it"
                    faults.append(Fault(self.where(key), show(value), need, do))

    def confirmation(self, confirm: Any, faults: list[Fault]) -> None:
        """Each path that the confirming runs set exists, and its field takes the value."""
        config = confirm.get("config") if isinstance(confirm, Mapping) else None
        for path, value in config.items() if isinstance(config, Mapping) else ():
            place = self.where(f"confirm.config.{path}")
            if path not in self.fields:
                advice = did_you_mean(str(path), sorted(self.paths), "name a field of the trainer's config")
                faults.append(Fault(place, f"unknown path {path!r}", "a field of the config", advice))
            elif (need := refuse_value(self.fields[path], value)) is not None:
                faults.append(Fault(place, show(value), f"{need}, as {path} takes", "set such a value"))

    def confirmed(
        self, base: Mapping[str, Any], domains: Mapping[str, Domain], tree: Mapping[str, Any], faults: list[Fault]
    ) -> None:
        """The trainer's own checks of a confirming run's config, and whether it holds out what the search sees.

        A search over data sets has each of them taken for the base's. Faults that the base has too are told as its own.
        """
        confirm, devices = tree.get("confirm"), _devices(tree.get("hardware", {}))
        config = confirm.get("config") if isinstance(confirm, Mapping) else None
        if not isinstance(config, Mapping) or devices is None:
            return
        own = {path: value for path, value in config.items() if self._takes(path, value)}
        searched = {path for path, domain in domains.items() if domain.when is None} - own.keys()
        for candidate in _over_data(base, domains) if own else ():
            faults += self._confirmed(candidate, own, searched, devices)

    def _takes(self, path: str, value: Any) -> bool:
        return path in self.fields and refuse_value(self.fields[path], value) is None

    def _confirmed(
        self, candidate: Mapping[str, Any], own: Mapping[str, Any], searched: Set[str], devices: int
    ) -> list[Fault]:
        """Faults of the config of a confirming run of `candidate`, `own` being what it changes."""
        changed = copy.deepcopy(dict(candidate))
        for path, value in own.items():
            put(changed, path, value)

        def where(key: str) -> str:
            return self.where(f"confirm.config.{key}")

        try:
            config = self.config.model_validate(candidate)
        except ValidationError:
            return []  # a candidate that is never run
        try:
            confirming = self.config.model_validate(changed)
        except ValidationError as error:
            return list(from_pydantic(error, self.config, where, lambda loc: ".".join(map(str, loc))))
        known = {(fault.key, fault.got, fault.need) for fault in self.trainer.preflight(config, devices)}
        found = [
            fault
            for fault in self.trainer.preflight(confirming, devices)
            if fault.key not in searched and (fault.key, fault.got, fault.need) not in known
        ]
        open_keys = own.keys() - {fault.key for fault in found}
        unseen = [fault for fault in confirming_faults(self.trainer, config, confirming) if fault.key in open_keys]
        return from_trainer([*found, *unseen], where)

    def overridden(self, domains: Mapping[str, Domain], faults: list[Fault]) -> None:
        """A value given by hand for what every trial draws anew would be ignored without a word."""
        for path, domain in domains.items():
            key = path if path.startswith(("model.", "data.")) else f"config.{path}"
            place = self.where(key)
            if domain.when is None and place.startswith(OVERRIDE):
                got = f"a value for {path}, which is searched"
                do = f"set search.{path} to change its values, or take it out of the search with ~search.{path}"
                faults.append(Fault(place, got, "a path that isn't searched", do))

    def conditions(
        self,
        domains: Mapping[str, Domain],
        constraints: Any,
        base: Mapping[str, Any] | None,
        faults: list[Fault],
    ) -> None:
        """`when` and constraints parse, name what exists, can be evaluated, and don't go round in circles."""
        values = None if base is None else flatten(base)
        depends: dict[str, frozenset[str]] = {}
        for path, domain in domains.items():
            if domain.when is not None:
                found = self._expression(domain.when, f"search.{path}.when", values, faults)
                depends[path] = found.names if found else frozenset()
        for path in _cycle(depends):
            need = "conditions that don't depend on each other in a circle"
            faults.append(Fault(self.where(f"search.{path}.when"), show(domains[path].when), need, "drop one of them"))
        for index, text in enumerate(constraints if isinstance(constraints, list) else ()):
            if isinstance(text, str):
                self._constraint(text, f"constraints.{index}", values, faults)

    def _constraint(self, text: str, key: str, values: Mapping[str, Any] | None, faults: list[Fault]) -> None:
        bound = metrics.MetricBound.parse(text)
        if bound is None:
            self._expression(text, key, values, faults)
        elif not metrics.exists(bound.metric):
            faults.append(Fault(self.where(key), repr(bound.metric), metrics.NEED, metrics.advice(bound.metric)))

    def _expression(
        self, text: str, key: str, values: Mapping[str, Any] | None, faults: list[Fault]
    ) -> Expression | None:
        try:
            expression = Expression.parse(text)
        except ExpressionError as error:
            faults.append(Fault(self.where(key), show(text), str(error), "rewrite it"))
            return None
        unknown = sorted(expression.names - self.paths)
        for name in unknown:
            advice = did_you_mean(name, sorted(self.paths), "name a field, or quote a string: 'mean'")
            faults.append(Fault(self.where(key), f"unknown name {name!r}", "fields of the trainer's config", advice))
        if not unknown and values is not None:
            try:
                expression.evaluate(values)
            except ExpressionError as error:
                faults.append(Fault(self.where(key), show(text), f"values that compare ({error})", "rewrite it"))
        return expression


def _over_data(base: Mapping[str, Any], domains: Mapping[str, Domain]) -> Iterator[dict[str, Any]]:
    """The base config with each choice of the searched data sets, or of what else of the data goes by a name."""
    values, named = flatten(base), {}
    for path, domain in domains.items():
        names = [value for value in domain.samples() if isinstance(value, str)]
        if path.startswith("data.") and names:
            named[path] = names if domain.when is None else [*names, values.get(path)]
    for choice in itertools.product(*named.values()):
        candidate = copy.deepcopy(dict(base))
        for path, value in zip(named, choice, strict=True):
            put(candidate, path, value)
        yield candidate


def _devices(hardware: Any) -> int | None:
    """Devices of one trial; None where the spec's hardware is at fault, which is told as such."""
    try:
        return Hardware.model_validate(hardware).devices
    except ValidationError:
        return None


def _cycle(depends: Mapping[str, frozenset[str]]) -> list[str]:
    """The parameters whose conditions lead back to themselves."""
    return [path for path in depends if path in _reach(path, depends)]


def _reach(start: str, depends: Mapping[str, frozenset[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(depends.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += depends.get(name, ())
    return seen


def _metrics_of(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The metrics that a spec's objectives and bounds name, by the spec's key."""
    objectives, constraints = tree.get("objectives"), tree.get("constraints")
    for index, objective in enumerate(objectives if isinstance(objectives, list) else ()):
        metric = objective.get("metric") if isinstance(objective, Mapping) else None
        if isinstance(metric, str):
            yield f"objectives.{index}.metric", metric
    for index, text in enumerate(constraints if isinstance(constraints, list) else ()):
        bound = metrics.MetricBound.parse(text) if isinstance(text, str) else None
        if bound is not None:
            yield f"constraints.{index}", bound.metric


def objective_faults(objectives: Any, where: Where) -> list[Fault]:
    """Objectives whose metric no trial reports."""
    names = [
        (i, o.get("metric"))
        for i, o in enumerate(objectives if isinstance(objectives, list) else ())
        if isinstance(o, Mapping)
    ]
    return [
        Fault(where(f"objectives.{i}.metric"), repr(name), metrics.NEED, metrics.advice(name))
        for i, name in names
        if isinstance(name, str) and not metrics.exists(name)
    ]


def grid_faults(sampler: Any, domains: Mapping[str, Domain], where: Where) -> list[Fault]:
    """Continuous ranges, of which a grid has no finite number of values."""
    name = sampler.get("name") if isinstance(sampler, Mapping) else sampler
    if name != "grid":
        return []
    return [
        Fault(where(f"search.{path}"), "a continuous range", "a finite one with sampler: grid", "give it a step")
        for path, domain in domains.items()
        if domain.size is None
    ]


def preflight_faults(
    trainer: Trainer, config: Mapping[str, Any], search: Mapping[str, Domain], devices: int, where: Where
) -> list[Fault]:
    """What the trainer's preflight finds in a base config: files, lengths, sizes against the devices.

    A value that every trial replaces is left to the search.

    Args:
        trainer: whose config it is.
        config: the base config, valid and whole.
        search: the search space.
        devices: devices of one trial.
        where: places the spec's keys.
    """
    return _of_base(trainer.preflight(trainer.Config.model_validate(config), devices), search, where)


def _of_base(found: Sequence[TrainerFault], search: Mapping[str, Domain], where: Where) -> list[Fault]:
    """The faults of a base config, but for values that every trial replaces."""
    replaced = {path for path, domain in search.items() if domain.when is None}
    return from_trainer([fault for fault in found if fault.key not in replaced], lambda key: where(user_key(key)))


def check_spec(spec: SweepSpec, devices: int | None = None, source: str | Path | None = None) -> None:
    """Run the trainer's preflight on a spec that is loaded; `load_spec` does it too, if asked.

    Args:
        spec: a loaded spec.
        devices: devices of one trial; None takes the spec's `hardware.devices`.
        source: the spec's file, for the messages; None names the sweep.

    Raises:
        BadInput: with all faults, under the spec's keys.
    """
    place = source or spec.name
    faults = preflight_faults(
        load_trainer(spec.trainer),
        spec.trial_config({}),
        spec.search,
        devices or spec.hardware.devices,
        lambda key: f"{place}:{key}",
    )
    if faults:
        raise BadInput(faults)
