"""The production file: a trial's config with where it comes from and what it measured."""

from __future__ import annotations

import copy
import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sweep_platform import units
from sweep_platform.errors import BadInput, Fault
from sweep_platform.evidence import judged_frontier
from sweep_platform.files import to_yaml, write_atomically
from sweep_platform.frontier import IMPORTED, goal_index, points
from sweep_platform.home import find_sweep
from sweep_platform.spec.compose import read_yaml
from sweep_platform.spec.faults import OVERRIDE, Where, from_pydantic, from_trainer, show
from sweep_platform.spec.overrides import parse
from sweep_platform.spec.paths import flatten, is_under, put
from sweep_platform.spec.remaining import remaining_faults
from sweep_platform.trainers import Trainer, load_trainer

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord, TrialRecord

M = TypeVar("M", bound=BaseModel)

FORMATS = ("dapo",)
# What a trial's run sets for itself; the same config elsewhere has its own.
_FOLDER = "trainer.default_local_dir"
_PLACES = (_FOLDER, "trainer.num_threads")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PromotionNote(_Part):
    """Who promoted the trial, when and why."""

    id: int
    """Its number in `platform promotions`."""
    alias: str
    """As what."""
    who: str
    why: str
    at: datetime
    confirmed: bool
    """Whether runs under other seeds said it at that moment."""


class Provenance(_Part):
    """Where a production config comes from."""

    sweep: str
    """Name of the sweep."""
    version: int = Field(ge=1)
    """Version of the sweep."""
    trial: int = Field(ge=0)
    """Number of the trial in it."""
    commit: str | None = None
    """Git commit of the code that ran the sweep, when known."""
    accuracy_metric: str | None = None
    """The sweep's first maximised objective."""
    accuracy: float | None = None
    """Its value in the trial."""
    accuracy_se: float | None = None
    """Its standard error."""
    cost_metric: str | None = None
    """The sweep's first minimised objective."""
    cost: float | None = None
    """Its value in the trial, in the metric's unit."""
    origin: str | None = None
    """Who proposed the trial; `imported:<study>` if another system trained it."""
    confirming_runs: int = 0
    """Runs under other seeds that the values are means over; 0: the search's own run."""
    exported_at: datetime
    """When the file was written (UTC)."""
    promotion: PromotionNote | None = None
    """By which promotion it was found; null where the trial was named."""


class ProductionFile(_Part):
    """What stands in the file."""

    trainer: str
    """Name of the trainer."""
    provenance: Provenance | None = None
    """Absent in a file written by hand."""
    config: dict[str, Any]
    """The trainer's whole config."""


@dataclass(frozen=True, slots=True)
class Production:
    """A production file that was read and found right."""

    path: Path
    file: ProductionFile
    trainer: Trainer
    config: BaseModel
    """The trainer's own `Config`."""
    where: Where
    """Places the config's keys: in the file, or among the overrides."""


def export(ledger: Ledger, address: str, trial: int, out: Path, *, to: str = "dapo", force: bool = False) -> Path:
    """Write a complete trial's config as a production file.

    Args:
        ledger: Where the sweep is.
        address: `name` or `name@version`.
        trial: Number of a complete trial.
        out: The file to write; missing folders are made.
        to: Form of the config; `dapo` is this project's own.
        force: Overwrite an existing file.

    Raises:
        BadInput: no such sweep or complete trial, an unknown form, or a file that exists or can't be written.
    """
    faults = []
    if to not in FORMATS:
        faults.append(Fault("--to", repr(to), f"one of {list(FORMATS)}", "choose one of these"))
    if out.exists() and not force:
        faults.append(Fault("--out", f"{out}, which exists", "a new file", "choose another name, or add --force"))
    if faults:
        raise BadInput(faults)
    sweep, record = find_trial(ledger, address, trial)
    document = ProductionFile(
        trainer=str(sweep.spec["trainer"]),
        provenance=provenance_of(ledger, sweep, record),
        config=portable(record.config),
    )
    try:
        write_atomically(out, _header(document, out) + to_yaml(document.model_dump(mode="json")))
    except OSError as error:
        reason = f"{out} ({error.strerror})"
        raise BadInput([Fault("--out", reason, "a file that can be written", "choose another")]) from error
    return out


def user_name() -> str:
    """Who runs this process; its number where the system has no name for it, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def find_trial(ledger: Ledger, address: str, number: int) -> tuple[SweepRecord, TrialRecord]:
    """Return a sweep and its complete trial of that number.

    Raises:
        BadInput: there is none.
    """
    sweep = find_sweep(ledger, address)
    trials = {trial.number: trial for trial in ledger.trials(sweep.id)}
    complete = [point.number for point in points(sweep, trials.values())]
    if number not in complete:
        got = f"{number}, which is {trials[number].state}" if number in trials else str(number)
        need = f"a complete trial of {sweep.address}: one of {complete}" if complete else "a complete trial"
        do = "choose one of these" if complete else "let the sweep finish first"
        raise BadInput([Fault("--trial", got, need, do)])
    return sweep, trials[number]


def provenance_of(ledger: Ledger, sweep: SweepRecord, trial: TrialRecord) -> Provenance:
    """What is known of a trial: from its confirming runs, if it has any."""
    found = judged_frontier(ledger, sweep).points
    point = next(point for point in found if point.number == trial.number)
    accuracy, cost = goal_index(point.goals, "maximize"), goal_index(point.goals, "minimize")
    return Provenance(
        sweep=sweep.name,
        version=sweep.version,
        trial=trial.number,
        commit=sweep.commit,
        accuracy_metric=None if accuracy is None else point.goals[accuracy].metric,
        accuracy=None if accuracy is None else point.values[accuracy],
        accuracy_se=None if accuracy is None else point.errors[accuracy],
        cost_metric=None if cost is None else point.goals[cost].metric,
        cost=None if cost is None else point.values[cost],
        origin=trial.origin,
        confirming_runs=point.runs,
        exported_at=datetime.now(UTC).replace(microsecond=0),
    )


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without the places and the thread count of the machine that ran it."""
    plain: dict[str, Any] = copy.deepcopy(dict(config))
    for path in _PLACES:
        section, key = path.split(".")
        if key in plain.get(section, {}):
            plain[section] = {**plain[section], key: None}
    return plain


def _header(document: ProductionFile, out: Path) -> str:
    origin = document.provenance
    lines = []
    if origin is not None:
        lines.append(f"Trial {origin.trial} of sweep {origin.sweep}@{origin.version}.")
        if origin.accuracy is not None:
            shown = units.accuracy(origin.accuracy, origin.accuracy_se)
            basis = f"over {origin.confirming_runs} confirming runs" if origin.confirming_runs else "in one run"
            lines.append(f"Measured {origin.accuracy_metric} {shown} {basis}.")
            if (origin.origin or "").startswith(IMPORTED) and not origin.confirming_runs:
                lines.append(f"It was not trained here, but {origin.origin}.")
        if origin.cost_metric is not None and origin.cost is not None:
            lines.append(f"Paid {origin.cost_metric} {units.metric(origin.cost_metric, origin.cost)}.")
    lines.append(f"Run it, and again to resume: platform train {out}")
    return "".join(f"# {line}\n" for line in lines)


def load_production(path: Path, overrides: Sequence[str] = ()) -> Production:
    """Read a production file and check it in full.

    Args:
        path: The file.
        overrides: `dotted.key=value` settings for its config, as in Hydra.

    Raises:
        BadInput: every fault found, each as `file:key.path`.
    """
    return checked(path, read_production(path), overrides, own_folder=True)


def read_production(path: Path) -> ProductionFile:
    """Read a production file; its config is checked by `checked`.

    Raises:
        BadInput: every fault found, each as `file:key.path`.
    """
    tree = read_yaml(path)
    if "search" in tree and "provenance" not in tree:
        need, do = "a production file", f"run it with platform sweep {path}, then platform export"
        raise BadInput([Fault(str(path), "a sweep spec", need, do)])
    faults: list[Fault] = []
    file = validated(ProductionFile, tree, lambda key: f"{path}:{key}", faults)
    if file is None:
        raise BadInput(faults)
    return file


def checked(path: Path, file: ProductionFile, overrides: Sequence[str], *, own_folder: bool = False) -> Production:
    """Check a production file's content; `path` is its name in messages.

    The trainer's preflight is left to the caller where nothing else is at fault. With `own_folder` the run gets its
    folder from the platform, and may name none.

    Raises:
        BadInput: every fault found.
    """
    faults: list[Fault] = []
    config, overridden = with_overrides(file.config, overrides, faults)
    created = {over.split(".", 1)[0] for over in overridden} - file.config.keys()
    try:
        trainer = load_trainer(file.trainer)
    except BadInput as error:
        faults += [replace(fault, where=f"{path}:trainer") for fault in error.faults]
        raise BadInput(faults) from error

    def where(key: str) -> str:
        written = any(is_under(key, over) or is_under(over, key) for over in overridden) or key in created
        return f"{OVERRIDE}{key}" if written else f"{path}:config.{key}"

    if own_folder:
        faults += _folder_faults(config, where)
    try:
        valid = trainer.Config.model_validate(config)
    except ValidationError as error:
        faults += from_pydantic(error, trainer.Config, where, _dotted)
        raise BadInput([*faults, *from_trainer(remaining_faults(trainer, config, error), where)]) from error
    if faults:
        raise BadInput([*faults, *from_trainer(trainer.preflight(valid), where)])
    return Production(path, file, trainer, valid, where)


def _folder_faults(config: Mapping[str, Any], where: Where) -> list[Fault]:
    """A folder that the run would not use: checkpoints lie beside its record, or it couldn't be resumed."""
    folder = flatten(config).get(_FOLDER)
    if folder is None:
        return []
    need = "none: the run's folder is .platform/runs/NAME, checkpoints included"
    return [Fault(where(_FOLDER), show(folder), need, "take it out, and choose a --name, or PLATFORM_HOME")]


def validated(model: type[M], tree: Mapping[str, Any], where: Where, faults: list[Fault]) -> M | None:
    """The tree as `model`; None, and faults, where it is none."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        faults += from_pydantic(error, model, where, _dotted)
        return None


def _dotted(location: tuple[Any, ...]) -> str:
    return ".".join(map(str, location))


def with_overrides(
    config: Mapping[str, Any], overrides: Sequence[str], faults: list[Fault]
) -> tuple[dict[str, Any], set[str]]:
    """The config with the overrides set, and their keys."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    keys: set[str] = set()
    for text in overrides:
        try:
            override = parse(text)
        except BadInput as error:
            faults += error.faults
            continue
        key = override.key_or_group
        keys.add(key)
        if override.is_delete():
            faults.append(Fault(f"override {text!r}", "a key to take out", "key=value", "set it to another value"))
            continue
        try:
            put(changed, key, override.value())
        except (AttributeError, TypeError):
            faults.append(Fault(f"override {text!r}", key, "a path of the config", "check the key"))
    return changed, keys
