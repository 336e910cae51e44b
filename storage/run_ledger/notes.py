"""What may be written without a lease: which MLflow runs show what, and which trials were chosen."""

from __future__ import annotations

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
    def promote(self, trial_id: int, alias: str, who: str, why: str) -> PromotionRecord:
        """Record that a trial was chosen; the latest under an alias counts.

        Raises:
            LedgerError: the trial is not complete, so that nothing is known of it at its full length.
        """
        with self._database.writing() as session:
            trial = checks.existing_trial(session, trial_id)
            if trial.state != TrialState.COMPLETE.value:
                raise LedgerError(f"trial {trial.number}, which is {trial.state}", "a complete trial", "choose another")
            row = Promotion(sweep_id=trial.sweep_id, trial_id=trial_id, alias=alias, who=who, why=why, at=now())
            session.add(row)
            session.flush()
            return rows.promotion(row)
