"""What may be written without a lease: which MLflow runs show what, and which trials were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from run_ledger import checks, rows
from run_ledger.errors import LedgerError
from run_ledger.leases import now
from run_ledger.models import Promotion, Sweep, Trial
from run_ledger.patience import idempotent, unrepeatable
from run_ledger.reads import LedgerReads
from run_ledger.records import PromotionRecord, TrialState


class LedgerNotes(LedgerReads):
    """Views and choices, a part of `run_ledger.Ledger`."""

    @idempotent
    def set_mlflow_run(self, run_id: str, *, sweep_id: int | None = None, trial_id: int | None = None) -> None:
        """Note which MLflow run shows a sweep or a trial; no lease is needed, since it is only a view."""
        with self._database.writing() as session:
            row = None
            if (sweep_id is None) is not (trial_id is None):
                row = session.get(Trial, trial_id) if sweep_id is None else session.get(Sweep, sweep_id)
            if row is None:
                got = f"sweep id {sweep_id} and trial id {trial_id}"
                raise LedgerError(got, "exactly one of them, and that in the ledger", "name one")
            row.mlflow_run_id = run_id

    @unrepeatable
    def promote(
        self,
        trial_id: int,
        alias: str,
        who: str,
        why: str,
        *,
        confirmed: bool = False,
        evidence: Mapping[str, Any] | None = None,
    ) -> PromotionRecord:
        """Record that a trial was chosen; the latest under an alias counts.

        The alias's current trial, told again on the same evidence, stays as it is, by whom it was promoted first.

        Raises:
            LedgerError: the trial is not complete, so that nothing is known of it at its full length.
        """
        told = dict(evidence or {})
        with self._database.writing(alone=True) as session:
            trial = checks.existing_trial(session, trial_id)
            if trial.state != TrialState.COMPLETE.value:
                raise LedgerError(f"trial {trial.number}, which is {trial.state}", "a complete trial", "choose another")
            current, previous = _current(session, alias), None
            if current is not None:
                same = current.trial_id == trial_id
                if same and (current.confirmed, current.evidence) == (confirmed, told):
                    return rows.promotion(current)
                previous = current.previous if same else current.id
            row = Promotion(
                sweep_id=trial.sweep_id,
                trial_id=trial_id,
                alias=alias,
                who=who,
                why=why,
                at=now(),
                confirmed=confirmed,
                evidence=told,
                previous=previous,
                restores=None,
            )
            return _added(session, row)

    @unrepeatable
    def roll_back(
        self, current: PromotionRecord, who: str, why: str, *, to: PromotionRecord | None = None
    ) -> PromotionRecord:
        """Record that an alias went back from its `current` promotion to an earlier one, or to the one named.

        Raises:
            LedgerError: another promotion became the current one meanwhile, so that nothing was written; or there is
                none to go back to.
        """
        with self._database.writing(alone=True) as session:
            found = _current(session, current.alias)
            if found is None or found.id != current.id:
                got = f"promotion {current.id} as the current one of {current.alias}, which another process has changed"
                raise LedgerError(got, "the current one", "look at the promotions, and try again")
            wanted = current.previous if to is None else to.id
            target = None if wanted is None else session.get(Promotion, wanted)
            if target is None or target.alias != current.alias:
                got = f"promotion {current.id} of {current.alias}, with no such one to go back to"
                raise LedgerError(got, "an earlier promotion under that alias", "promote another trial")
            row = Promotion(
                sweep_id=target.sweep_id,
                trial_id=target.trial_id,
                alias=target.alias,
                who=who,
                why=why,
                at=now(),
                confirmed=target.confirmed,
                evidence=target.evidence,
                previous=target.previous,
                restores=target.id,
            )
            return _added(session, row)


def _current(session: Session, alias: str) -> Promotion | None:
    return session.scalar(select(Promotion).where(Promotion.alias == alias).order_by(Promotion.id.desc()).limit(1))


def _added(session: Session, row: Promotion) -> PromotionRecord:
    session.add(row)
    session.flush()
    return rows.promotion(row)
