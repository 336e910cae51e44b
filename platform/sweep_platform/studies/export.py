"""A sweep as an Optuna study that says all that can be said there.

| here | in Optuna |
|---|---|
| complete | COMPLETE, with its values |
| complete, but outside a constraint | COMPLETE, with the constraint's violation above 0 |
| refused before it ran | FAIL, with the constraint's violation above 0 |
| pruned | PRUNED, with what its steps showed as intermediate values |
| failed, lost | FAIL |
| running, paused | RUNNING |
| waiting | WAITING |

Trials have the same numbers in both. What Optuna has no place for are user attributes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from run_ledger import ObservationRecord, SweepRecord, TrialRecord, TrialState

from sweep_platform.errors import BadInput, Fault
from sweep_platform.search import Limits
from sweep_platform.search.samplers import distribution
from sweep_platform.spec import SweepSpec
from sweep_platform.studies.storage import opened

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial
    from run_ledger import Ledger

MARK = "sweep"
"""User attribute of a study: the sweep that it was exported from."""
STATE = "state"
"""User attribute of a trial: its state here. Trials without one were not exported."""
RAN = "can run"
"""Constraint that a candidate breaks which preflight refused."""
_WRITING = " (being written)"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    study: str
    trials: int
    replaced: bool
    """An earlier export was there."""


def export_study(ledger: Ledger, sweep: SweepRecord, url: str, name: str | None = None) -> Exported:
    """Write a sweep into a storage as a study; one that an earlier export left is replaced at one blow.

    Args:
        ledger: Where the sweep is.
        sweep: The sweep.
        url: Of the storage.
        name: Of the study; the sweep's address by default.

    Raises:
        BadInput: the storage can't be used, or has a study of that name that isn't an export of this sweep alone.
    """
    name, trials = name or sweep.address, ledger.trials(sweep.id)
    spec = SweepSpec.from_dict(sweep.spec)
    frozen = [_frozen(spec, trial, ledger.observations(trial.id)) for trial in trials]  # may fail: before any change
    uid = {"address": sweep.address, "identity": sweep.identity, "created_at": sweep.created_at.isoformat()}
    with opened(url, must_exist=False) as storage:
        there = _check_ours(storage, name, uid)
        _write(storage, name + _WRITING, spec, frozen, {**uid, "commit": sweep.commit})
        _put_in_place(storage, name, there=there)
    return Exported(name, len(frozen), there)


def _check_ours(storage: RDBStorage, name: str, uid: Mapping[str, Any]) -> bool:
    """Whether there is a study of that name, which may then be replaced.

    Raises:
        BadInput: it may not.
    """
    studies = {study.study_name: study for study in storage.get_all_studies()}
    study = studies.get(name)
    if study is None:
        return False
    mark, do = study.user_attrs.get(MARK), "choose another --study-name"
    if not isinstance(mark, dict) or any(mark.get(key) != value for key, value in uid.items()):
        whose = f"an export of {mark.get('address')}" if isinstance(mark, dict) else "no export of a sweep"
        got = f"{name!r}, a study that is {whose}"
        raise BadInput([Fault("--study-name", got, "a new name, or that of an earlier export of this very sweep", do)])
    added = sum(STATE not in trial.user_attrs for trial in storage.get_all_trials(study._study_id, deepcopy=False))
    if added:
        got = f"{name!r}, to which {added} trials were added since it was exported"
        raise BadInput([Fault("--study-name", got, "a study without trials of others, as they would be lost", do)])
    return True


def _write(
    storage: RDBStorage, name: str, spec: SweepSpec, trials: Sequence[FrozenTrial], mark: Mapping[str, Any]
) -> None:
    import optuna

    if any(study.study_name == name for study in storage.get_all_studies()):  # an export that was killed left it
        optuna.delete_study(study_name=name, storage=storage)
    study = optuna.create_study(storage=storage, study_name=name, directions=[o.direction for o in spec.objectives])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # since 3.2, and nothing else names them
        study.set_metric_names([objective.metric for objective in spec.objectives])
    study.set_user_attr(MARK, dict(mark))
    study.add_trials(trials)


def _put_in_place(storage: RDBStorage, name: str, *, there: bool) -> None:
    """Give the study that was written its name, in one transaction with taking it from the old one."""
    import optuna
    from sqlalchemy import text

    rename = text("UPDATE studies SET study_name = :new WHERE study_name = :old")
    old = f"{name} (old)"
    with storage.engine.begin() as connection:
        connection.execute(rename, {"old": name, "new": old})
        connection.execute(rename, {"old": name + _WRITING, "new": name})
    if there:
        optuna.delete_study(study_name=old, storage=storage)


def _frozen(spec: SweepSpec, trial: TrialRecord, steps: Sequence[ObservationRecord]) -> FrozenTrial:
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    states = {
        TrialState.COMPLETE: State.COMPLETE,
        TrialState.INFEASIBLE: State.COMPLETE if trial.values is not None else State.FAIL,
        TrialState.PRUNED: State.PRUNED,
        TrialState.FAILED: State.FAIL,
        TrialState.LOST: State.FAIL,
        TrialState.RUNNING: State.RUNNING,
        TrialState.PAUSED: State.RUNNING,
        TrialState.WAITING: State.WAITING,
    }
    state = states[trial.state]
    violations = _constraints(spec, trial)
    shown = next((o.metric for o in spec.objectives if not o.metric.startswith("cost/")), spec.objectives[0].metric)
    frozen = create_trial(
        state=state,
        values=trial.values if state is State.COMPLETE else None,
        params=dict(trial.params),
        distributions={path: distribution(spec.search[path]) for path in trial.params},
        user_attrs=_attributes(spec, trial),
        intermediate_values={step.step: step.metrics[shown] for step in steps if shown in step.metrics},
        constraints=violations,
        system_attrs={"constraints": list(violations.values())},  # as Optuna 4 had them, and the dashboard reads them
    )
    if state is not State.WAITING:
        frozen.datetime_start = _local(trial.started_at or trial.ended_at) or frozen.datetime_start
    if state.is_finished():
        frozen.datetime_complete = _local(trial.ended_at) or frozen.datetime_complete
    return frozen


def _local(at: datetime | None) -> datetime | None:
    """A moment as Optuna notes it: by the clock on the wall, without a zone."""
    return None if at is None else at.astimezone().replace(tzinfo=None)


def _attributes(spec: SweepSpec, trial: TrialRecord) -> dict[str, Any]:
    section = trial.config.get("trainer")
    seed = section.get("seed") if isinstance(section, Mapping) else None
    errors = {o.metric: trial.metrics.get(f"{o.metric}_se") for o in spec.objectives}
    told: dict[str, Any] = {
        STATE: trial.state.value,
        "origin": trial.origin,
        "seed": seed,
        "replicate": trial.replicate,
        "reason": trial.reason,
        "standard_errors": {metric: error for metric, error in errors.items() if error is not None},
        "cost": asdict(trial.cost),
        "metrics": dict(trial.metrics),
        "step": trial.step,
        "total_steps": trial.total_steps,
        "attempts": trial.attempts,
        "mlflow_run_id": trial.mlflow_run_id,
    }
    return {name: value for name, value in told.items() if value is not None}


def _constraints(spec: SweepSpec, trial: TrialRecord) -> dict[str, float]:
    """By constraint, how far it is violated: above 0 is, as Optuna has it."""
    config = spec.trial_config(trial.params)
    found = Limits.of(spec).violations(config, trial.metrics if trial.state.final else {})
    refused = trial.state is TrialState.INFEASIBLE and not any(value > 0 for value in found.values())
    return {**found, RAN: 1.0 if refused else -1.0}
