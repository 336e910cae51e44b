"""What the searcher knows of a sweep's trials, and when; see `sweep_platform.driver.plan` for the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from run_ledger import SweepRecord, TrialRecord, TrialState

from sweep_platform.driver.spending import ran
from sweep_platform.frontier import goals
from sweep_platform.pruning import Halving
from sweep_platform.search import Searcher
from sweep_platform.spec import SweepSpec

if TYPE_CHECKING:
    from run_ledger import Ledger


@dataclass(slots=True)
class Knowledge:
    """Tells the searcher of trials, as late as it may."""

    searcher: Searcher
    halving: Halving | None
    lag: int
    """Trials, of the last that ran, of which a suggestion knows nothing. Unused with early stopping."""
    _told: dict[int, TrialState] = field(default_factory=dict)
    _shown: dict[int, tuple[float, ...] | None] = field(default_factory=dict)

    def tell(self, trial: TrialRecord) -> None:
        """Tell how a trial stands; of a stopped one, what it showed."""
        shown = self._projected(trial)
        self.searcher.tell(trial, shown)
        self._told[trial.number], self._shown[trial.number] = trial.state, shown

    def _projected(self, trial: TrialRecord) -> tuple[float, ...] | None:
        """What a stopped trial would have come to, by what is known now."""
        stopped = trial.state in (TrialState.PRUNED, TrialState.PAUSED)
        return self.halving.projected(trial.number) if self.halving is not None and stopped else None

    def inform(self, trials: Sequence[TrialRecord]) -> bool:
        """Tell what the next suggestion may know; False if a trial of that still runs."""
        if self.halving is not None:
            for trial in trials:
                known = trial.state.final or trial.state is TrialState.PAUSED
                if known and (self._told.get(trial.number), self._shown.get(trial.number)) != (
                    trial.state,
                    self._projected(trial),  # as others end, more is known of what it would have come to
                ):
                    self.tell(trial)
            return True
        started = [trial.number for trial in trials if ran(trial)]
        withheld = set(started[max(0, len(started) - self.lag) :])
        for trial in trials:
            if trial.number in withheld or trial.number in self._told:
                continue
            if not trial.state.final:
                return False
            self.tell(trial)
        return True


def standings(ledger: Ledger, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> Halving | None:
    """The rungs as the ledger's observations leave them; None without early stopping."""
    if spec.pruning is None:
        return None
    halving = Halving(goals(sweep), spec.pruning)
    for trial in trials:
        for seen in ledger.observations(trial.id) if trial.total_steps else ():
            halving.observe(trial.number, seen.step, trial.total_steps, seen.metrics)
    return halving
