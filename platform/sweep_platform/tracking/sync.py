"""Rebuilding MLflow's runs and registered models from the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep_platform.home import find_sweep
from sweep_platform.tracking.registry import register
from sweep_platform.tracking.store import Store

if TYPE_CHECKING:
    from run_ledger import Ledger

    from sweep_platform.home import Home


def sync(ledger: Ledger, address: str, store: Store, home: Home) -> int:
    """Write what MLflow lacks of a sweep; everything, if its database is gone. Returns the number of trials.

    Promotions are brought up to date too, of all sweeps, since an alias may have gone from one to another.

    Args:
        ledger: Where the sweep is.
        address: `name` (its latest version) or `name@version`.
        store: MLflow's store.
        home: Where the trials' checkpoints are.

    Raises:
        BadInput: no such sweep, or MLflow can't be used.
    """
    sweep = find_sweep(ledger, address)
    from sweep_platform.tracking.projector import Projector

    trials = ledger.trials(sweep.id)
    with store.told():
        projector = Projector(store, ledger, sweep)
        projector.start()
        for trial in trials:
            projector.trial(trial)
        if trials and all(trial.state.final for trial in trials):
            projector.finish(trials)
    register(ledger, store, home)
    return len(trials)
