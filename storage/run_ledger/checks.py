"""What must hold before a write."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from run_ledger.errors import LedgerError
from run_ledger.models import Sweep, Trial
from run_ledger.records import TrialState


def existing_trial(session: Session, trial_id: int) -> Trial:
    """Return a trial's row.

    Raises:
        LedgerError: there is none of that id.
    """
    row = session.get(Trial, trial_id)
    if row is None:
        raise LedgerError(f"trial id {trial_id}", "one that the ledger holds", "look it up by its sweep")
    return row


def existing_sweep(session: Session, sweep_id: int) -> Sweep:
    """Return a sweep's row.

    Raises:
        LedgerError: there is none of that id.
    """
    row = session.get(Sweep, sweep_id)
    if row is None:
        raise LedgerError(f"sweep id {sweep_id}", "one that the ledger holds", "look it up by its name")
    return row


def refuse_duplicate(session: Session, sweep_id: int, number: int, params_hash: str, replicate: int) -> None:
    """See that a new trial is new.

    Raises:
        LedgerError: its number, or its params as that replicate, are there already.
    """
    same_params = and_(Trial.params_hash == params_hash, Trial.replicate == replicate)
    query = select(Trial.number).where(Trial.sweep_id == sweep_id, or_(Trial.number == number, same_params))
    if (taken := session.scalar(query)) is not None:
        got = f"trial {number} with the number, or the params and replicate, of trial {taken}"
        raise LedgerError(got, "a new number, and new params or a new replicate", "add it as such")


_CHANGES = {
    (TrialState.PAUSED, TrialState.PRUNED),
    (TrialState.PRUNED, TrialState.PAUSED),
    (TrialState.LOST, TrialState.WAITING),
    (TrialState.FAILED, TrialState.WAITING),
}
"""Changes of state without an attempt."""


def check_change(sweep_id: int, trial: Trial, state: TrialState) -> None:
    """See that a trial of the sweep can change its state so, without an attempt.

    Raises:
        LedgerError: it is of another sweep, or can't.
    """
    if trial.sweep_id != sweep_id or (TrialState(trial.state), state) not in _CHANGES:
        got = f"trial id {trial.id} ({trial.state}, of sweep id {trial.sweep_id}) to become {state}"
        allowed = ", ".join(sorted(f"{before} to {after}" for before, after in _CHANGES))
        raise LedgerError(got, f"a change of a trial of sweep id {sweep_id} from {allowed}", "leave it as it is")


def check_ending(state: TrialState, values: Sequence[float] | None) -> None:
    """See that a trial can end so.

    Raises:
        LedgerError: RUNNING is no end; COMPLETE needs values; no value is NaN or infinite.
    """
    if state is TrialState.RUNNING:
        raise LedgerError(f"the state {state} as an ending", "a final state, or waiting", "finish it once it ended")
    if state is TrialState.COMPLETE and values is None:
        raise LedgerError("a complete trial without values", "one value an objective", "name them, or let it fail")
    if not all(math.isfinite(value) for value in values or ()):
        raise LedgerError(f"the values {values}", "finite numbers", "let the trial fail")
