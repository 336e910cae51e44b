"""`load_spec`: a file and overrides in, a checked `SweepSpec` or all faults out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sweep_platform.errors import BadInput, Fault
from sweep_platform.spec.check import TrainerChecks, grid_faults, objective_faults
from sweep_platform.spec.compose import Composed, compose
from sweep_platform.spec.domains import Domain
from sweep_platform.spec.faults import from_pydantic, show, spec_key
from sweep_platform.spec.groups import presets_dir
from sweep_platform.spec.model import SweepSpec
from sweep_platform.spec.priors import read_priors
from sweep_platform.trainers import load_trainer

_DOMAIN: TypeAdapter[Domain] = TypeAdapter(Domain)


def load_spec(path: str | Path, overrides: Sequence[str] = (), *, preflight: bool = False) -> SweepSpec:
    """Compose, check and freeze a sweep spec. Reads no data and loads no model.

    Args:
        path: a .yaml file.
        overrides: Hydra's `key=value` and `group=choice`, e.g. `budget.trials=4`, `model=tiny`.
        preflight: also run the trainer's own checks: data files, lengths, sizes against the devices.

    Raises:
        BadInput: with all faults found.
    """
    composed = compose(Path(path), overrides)
    tree = composed.tree
    faults: list[Fault] = []
    domains = _domains(tree.get("search"))
    checks = _trainer_checks(tree, composed, faults)
    sections: set[str] = set()
    if checks is not None:
        sections = set(checks.config.model_fields)
        resolved = checks.base_config(tree, faults)
        checks.search(domains, faults)
        checks.held_out(resolved, domains, faults)
        checks.overridden(domains, faults)
        checks.confirmation(tree.get("confirm"), faults)
        checks.conditions(domains, tree.get("constraints"), resolved, faults)
        if preflight:
            checks.preflight(resolved, domains, tree.get("hardware", {}), faults)
        if preflight and resolved is not None:
            checks.reported(resolved, domains, tree, faults)
            checks.confirmed(resolved, domains, tree, faults)
        known = checks.paths
    else:
        resolved, known = None, frozenset()
    _misplaced_sections(tree, sections, composed, faults)
    folders = (composed.path.parent / "priors", presets_dir() / "priors")
    priors = read_priors(
        tree.get("priors"),
        folders,
        domains=domains,
        known=known,
        base=resolved,
        where=composed.where,
        faults=faults,
    )
    faults += objective_faults(tree.get("objectives"), composed.where)
    faults += grid_faults(tree.get("sampler"), domains, composed.where)
    spec = _structure({**tree, "priors": priors}, resolved, composed, faults)
    if faults or spec is None:
        raise BadInput(list(dict.fromkeys(faults)))
    return spec


def _domains(search: Any) -> dict[str, Domain]:
    """The search domains that are valid; the others are told by `_structure`."""
    valid = {}
    for name, value in search.items() if isinstance(search, dict) else ():
        try:
            valid[str(name)] = _DOMAIN.validate_python(value)
        except ValidationError:
            continue
    return valid


def _trainer_checks(tree: dict[str, Any], composed: Composed, faults: list[Fault]) -> TrainerChecks | None:
    name = tree.get("trainer", SweepSpec.model_fields["trainer"].default)
    if not isinstance(name, str):
        del tree["trainer"]
        do = "put settings of the run under config.trainer"
        faults.append(Fault(composed.where("trainer"), show(name), "a trainer's name", do))
        name = SweepSpec.model_fields["trainer"].default
    try:
        return TrainerChecks(load_trainer(name), composed.where)
    except BadInput as error:
        faults += [Fault(composed.where("trainer"), fault.got, fault.need, fault.do) for fault in error.faults]
        return None


def _misplaced_sections(tree: dict[str, Any], sections: set[str], composed: Composed, faults: list[Fault]) -> None:
    """Sections of the trainer's config that stand at the top of the spec, taken out of `tree`."""
    for key in sorted((sections - set(SweepSpec.model_fields)) & set(tree)):
        value = tree.pop(key)
        do = f"write config.{key}: a trainer's sections go under config"
        faults.append(Fault(composed.where(key), show(value), "the keys of a spec at the top", do))


def _structure(
    tree: dict[str, Any], resolved: dict[str, Any] | None, composed: Composed, faults: list[Fault]
) -> SweepSpec | None:
    """The spec itself: keys, types and ranges. `resolved` is the trainer's config in full."""
    if resolved is not None:
        rest = {key: value for key, value in resolved.items() if key not in ("model", "data")}
        tree = {**tree, "config": rest, **{k: resolved[k] for k in ("model", "data") if k in resolved}}
    try:
        return SweepSpec.model_validate(tree)
    except ValidationError as error:
        faults += from_pydantic(error, SweepSpec, composed.where, spec_key)
        return None
