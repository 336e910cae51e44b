"""A sweep's trials, as the one process that writes them knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from run_ledger import DriverLease, SweepRecord, TrialRecord, TrialState

from sweep_platform.search import params_hash

if TYPE_CHECKING:
    from run_ledger import Ledger


class Roster:
    """Reads and writes trials under the sweep's lease. Every method that writes raises StaleToken once it is over."""

    def __init__(self, ledger: Ledger, lease: DriverLease, sweep: SweepRecord) -> None:
        self.ledger = ledger
        self.lease = lease
        self.sweep = sweep
        self._trials = {trial.number: trial for trial in ledger.trials(sweep.id)}

    def __getitem__(self, number: int) -> TrialRecord:
        return self._trials[number]

    @property
    def trials(self) -> list[TrialRecord]:
        """All of them, by number."""
        return [self._trials[number] for number in sorted(self._trials)]

    @property
    def candidates(self) -> list[TrialRecord]:
        """Those of the search, by number: the confirming runs of other seeds are no candidates."""
        return [trial for trial in self.trials if trial.replicate == 0]

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return len(self._trials)

    def add(self, number: int, params: Mapping[str, Any], config: Mapping[str, Any], **fields: Any) -> TrialRecord:
        """Record a trial; `fields` are those of `Ledger.add_trial`."""
        return self._keep(
            self.ledger.add_trial(self.lease, number=number, params=dict(params), config=config, **fields)
        )

    def copy(
        self,
        source: TrialRecord,
        params: Mapping[str, Any],
        config: Mapping[str, Any],
        values: Sequence[float],
        origin: str,
    ) -> TrialRecord:
        """Record another sweep's complete trial as one of this one; see `Ledger.copy_trial`."""
        return self._keep(
            self.ledger.copy_trial(
                self.lease,
                source.id,
                number=self.next_number,
                params=dict(params),
                params_hash=params_hash(params),
                config=config,
                values=values,
                origin=origin,
            )
        )

    def refresh(self, number: int) -> TrialRecord:
        """Read a trial again."""
        return self._keep(self.ledger.trial(self._trials[number].id))

    def note(self, trial: TrialRecord) -> TrialRecord:
        """Take a trial as the ledger has it now, without reading it again."""
        return self._keep(trial)

    def change_state(self, number: int, state: TrialState, reason: str | None) -> TrialRecord:
        """Decide about a trial that has no attempt; see `Ledger.change_state`."""
        return self._keep(self.ledger.change_state(self.lease, self._trials[number].id, state, reason))

    def _keep(self, trial: TrialRecord) -> TrialRecord:
        self._trials[trial.number] = trial
        return trial
