"""Promotions in MLflow's model registry: a registered model for each sweep, a version for each trial, the aliases.

Like the runs, a view of the ledger that can be repeated and rebuilt. A version points at the model in the trial's last
checkpoint, a Hugging Face folder, which stays where it is: nothing is copied. Where it isn't here (it was deleted, or
another machine trained the trial), or MLflow is a server, which takes no folders of its clients, a version points at
its run's files, and its tag `weights` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweep_platform.errors import BadInput, Fault
from sweep_platform.tracking.names import MAX_TAG, registered_name, shorten, sweep_uid
from sweep_platform.tracking.notes import promotion_note
from sweep_platform.tracking.store import Store
from sweep_platform.trainers import load_trainer, trained_model

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from run_ledger import Ledger, PromotionRecord, SweepRecord, TrialRecord

    from sweep_platform.home import Home

OURS = "sweep"
"""Tag of registered models that were made here, and of versions: the sweep's name, and its address."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A trial's version in the registry."""

    name: str
    version: str
    weights: str
    """Where its weights are, or why they aren't there."""


def register(ledger: Ledger, store: Store, home: Home) -> dict[int, Registered]:
    """Have MLflow's registry say what the ledger says of promotions; returns what shows each trial, by its id.

    Aliases that somebody moved in MLflow are moved back. Aliases that the ledger doesn't know are left alone.

    Raises:
        BadInput: MLflow can't be used, or a registered model of a sweep's name belongs to somebody else.
    """
    shown: dict[int, Registered] = {}
    told: list[PromotionRecord] = []
    with store.told():
        # Again, if somebody promoted meanwhile: whoever writes last then writes what counts.
        while (history := ledger.promotions()) != told:
            shown, told = _Registry(ledger, store, home, history).write(), history
    return shown


class _Registry:
    """One pass over all promotions."""

    def __init__(self, ledger: Ledger, store: Store, home: Home, history: Sequence[PromotionRecord]) -> None:
        self._ledger = ledger
        self._store = store
        self._home = home
        self._history = history
        self._current = {record.alias: record for record in history}
        self._versions: dict[str, dict[tuple[str, str], ModelVersion]] = {}

    def write(self) -> dict[int, Registered]:
        shown: dict[int, Registered] = {}
        for record in self._history:
            if record.trial_id not in shown:
                sweep, trial = self._ledger.sweep(record.sweep_id), self._ledger.trial(record.trial_id)
                shown[trial.id] = self._version(sweep, trial)
        for name in self._versions:
            self._aliases(name, shown)
        return shown

    def _version(self, sweep: SweepRecord, trial: TrialRecord) -> Registered:
        """The trial's version, made if there is none, with what its promotions say."""
        client, name = self._store.client, registered_name(sweep.name)
        if name not in self._versions:
            self._model(name, sweep)
            self._versions[name] = self._found(name)
        key = sweep_uid(sweep), str(trial.number)
        version = self._versions[name].get(key)
        promotions = [record for record in self._history if record.trial_id == trial.id]
        tags = {
            OURS: sweep.address,
            "trial": str(trial.number),
            "confirmed": "yes" if promotions[-1].confirmed else "no",
            "promoted_as": ", ".join(alias for alias, at in self._current.items() if at.trial_id == trial.id) or "-",
        }
        if version is None:
            run_id = self._run(sweep, trial)
            source, weights = self._source(sweep, trial, run_id)
            fixed = {"sweep_uid": key[0], "weights": weights}
            version = client.create_model_version(name, source, run_id, tags | fixed, await_creation_for=0)
            self._versions[name][key] = version
        for tag, value in tags.items():
            if version.tags.get(tag) != value:
                client.set_model_version_tag(name, version.version, tag, value)
        note = shorten(promotion_note(sweep, trial, promotions), MAX_TAG)
        if version.description != note:
            client.update_model_version(name, version.version, note)
        return Registered(name, str(version.version), version.tags.get("weights", ""))

    def _model(self, name: str, sweep: SweepRecord) -> None:
        """Make the registered model, unless it is there."""
        found = self._store.client.search_registered_models(f"name = '{name}'")
        if not found:
            told = f"Promoted trials of the sweep {sweep.name}. The ledger is the record: `platform promotions`."
            self._store.client.create_registered_model(name, {OURS: sweep.name}, told)
        elif found[0].tags.get(OURS) != sweep.name:
            got = f"a registered model {name!r} in {self._store.shown} that no promotion made"
            do = "rename that one, and then run platform mlflow sync"
            raise BadInput([Fault("MLflow", got, "that name for the sweep's own", do)])

    def _found(self, name: str) -> dict[tuple[str, str], ModelVersion]:
        """What there is of the model by sweep and trial; of two that were made at once, the first."""
        found: list[ModelVersion] = []
        token: str | None = ""
        while token is not None:
            page = self._store.client.search_model_versions(f"name = '{name}'", page_token=token or None)
            found += page
            token = page.token or None
        ordered = sorted(found, key=lambda version: int(version.version), reverse=True)
        return {(each.tags.get("sweep_uid", ""), each.tags.get("trial", "")): each for each in ordered}

    def _run(self, sweep: SweepRecord, trial: TrialRecord) -> str:
        """The trial's run, written if MLflow lacks it."""
        from sweep_platform.tracking.projector import Projector

        Projector(self._store, self._ledger, sweep).trial(trial)
        return self._ledger.trial(trial.id).mlflow_run_id or ""

    def _source(self, sweep: SweepRecord, trial: TrialRecord, run_id: str) -> tuple[str, str]:
        """(what a version points at, what is to be said of the weights)."""
        folder = self._home.trial_dir(sweep, trial.number)
        model = self._model_folder(sweep, folder)
        if model is not None and self._store.local:
            return model.absolute().as_uri(), str(model)
        artifacts = str(self._store.client.get_run(run_id).info.artifact_uri)
        if model is not None:
            return artifacts, f"not here: {model}, where the trial was trained"
        return artifacts, f"none: no checkpoint in {folder}"

    def _model_folder(self, sweep: SweepRecord, folder: Path) -> Path | None:
        try:
            trainer = load_trainer(str(sweep.spec["trainer"]))
        except BadInput:  # that of another machine
            return None
        return trained_model(trainer, folder)

    def _aliases(self, name: str, shown: dict[int, Registered]) -> None:
        client = self._store.client
        there = {alias: str(version) for alias, version in client.get_registered_model(name).aliases.items()}
        wanted = {
            alias: shown[record.trial_id].version
            for alias, record in self._current.items()
            if shown[record.trial_id].name == name
        }
        ours = {str(version.version) for (uid, _), version in self._versions[name].items() if uid}
        for alias in there.keys() & self._current.keys() - wanted.keys():
            if there[alias] in ours:  # it names a trial of another sweep now
                client.delete_registered_model_alias(name, alias)
        for alias, version in wanted.items():
            if there.get(alias) != version:
                client.set_registered_model_alias(name, alias, version)
