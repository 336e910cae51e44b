"""What a driver runs, and how far: a search (`SearchPlan`) or the runs that confirm its front.

**Lagged tell.** With concurrency c, a candidate is suggested in knowledge of every trial before it but the
last 2(c - 1) that ran, whatever order they finished in and whatever finished by now. So one seed gives the
same trials with either executor, on a fast or a slow machine, and in a sweep that was killed and resumed. The
price: a place can stand idle while the oldest running trial goes on; at c - 1 that would be often.

**Early stopping** (`pruning`) is asynchronous: what a trial is compared with depends on what came to its rung
before it, so with several trials at once timing decides too, and a suggestion then knows whatever is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from run_ledger import TrialRecord, TrialState

from sweep_platform.driver.knowledge import Knowledge, standings
from sweep_platform.driver.roster import Roster
from sweep_platform.driver.spending import Spending, ran
from sweep_platform.search import Feasibility, Refused, Searcher, SpaceExhausted, Suggestion
from sweep_platform.search.searcher import MAX_REFUSED
from sweep_platform.spec import SweepSpec

Tell = Callable[[TrialRecord], None]
"""Takes a trial that reached a final state without an attempt."""


class Plan(Protocol):
    """Decides for the driver. Deterministic in what the roster holds."""

    def owns(self, trial: TrialRecord) -> bool:
        """Whether a trial is one of the plan's: the others stay as an earlier process left them."""

    def next(self) -> TrialRecord | None:
        """The trial that starts or goes on now; None if none does."""

    def limit(self) -> str | None:
        """Why nothing new starts any more; None while something may."""

    def started(self) -> None:
        """A trial starts, or goes on."""

    def goes_on(self, trial: TrialRecord, metrics: Mapping[str, float], final: bool) -> bool:
        """Whether a trial goes on after the step that it stands at; otherwise it pauses."""

    def pause_reason(self, number: int) -> str:
        """Why it paused."""

    def settle(self) -> None:
        """Nothing will start any more."""

    @property
    def pending(self) -> bool:
        """Whether trials are paused that are yet to be settled."""

    @property
    def incomplete(self) -> bool:
        """Whether less ran than was planned."""


class SearchPlan:
    """Candidates from the searcher, within the budget, stopped early where others beat them."""

    def __init__(
        self,
        roster: Roster,
        spec: SweepSpec,
        *,
        searcher: Searcher,
        feasibility: Feasibility,
        spending: Spending,
        tell: Tell,
    ) -> None:
        self._roster = roster
        self._spec = spec
        self._searcher = searcher
        self._feasibility = feasibility
        self._spending = spending
        self._tell = tell
        self._exhausted = self._ends_refused()
        self._halving = standings(roster.ledger, roster.sweep, spec, roster.candidates)
        self._knowledge = Knowledge(searcher, self._halving, lag=2 * (spec.budget.concurrency - 1))
        for trial in roster.candidates:
            searcher.pend(trial)
        if self._halving is not None and self.limit() is None:
            for trial in roster.candidates:
                if trial.state is TrialState.PRUNED:  # the budget grew: it is in the race again
                    roster.change_state(trial.number, TrialState.PAUSED, trial.reason)
        self._knowledge.inform(roster.candidates)

    def owns(self, trial: TrialRecord) -> bool:
        """Whether it is a candidate of the search."""
        return trial.replicate == 0

    def next(self) -> TrialRecord | None:
        """A paused trial that may go on, or else a new one."""
        if self._halving is not None and self._spent() is None:
            number = self._halving.next_of(self._paused)
            if number is not None:
                return self._roster[number]
        return self._suggest() if self._knowledge.inform(self._roster.candidates) and self.limit() is None else None

    def limit(self) -> str | None:
        """Which limit allows no new trial; None if budget and space do."""
        budget = self._spec.budget
        if self._counted >= budget.trials:
            return f"budget.trials: all {budget.trials} have run"
        return self._exhausted or self._spent()

    @property
    def incomplete(self) -> bool:
        """Whether fewer trials ran than the budget has."""
        return self._counted < self._spec.budget.trials

    @property
    def pending(self) -> bool:
        """Whether a trial is paused."""
        return bool(self._paused)

    def started(self) -> None:
        """The clock runs from the first one on."""
        self._spending.begin()

    def goes_on(self, trial: TrialRecord, metrics: Mapping[str, float], final: bool) -> bool:
        """Whether the trial is among the best at its rung, if it stands at one."""
        if self._halving is None:
            return True
        rung = self._halving.observe(trial.number, trial.step, trial.total_steps, metrics)
        return rung is None or final or self._halving.goes_on(trial.number, rung)

    def pause_reason(self, number: int) -> str:
        """Which rung stopped it, and beside whom."""
        return self._halving.explain(number) if self._halving is not None else ""

    def settle(self) -> None:
        """What is paused stays as it is."""
        for number in self._paused:
            reason = self._spent() or self._roster[number].reason
            trial = self._roster.change_state(number, TrialState.PRUNED, reason)
            self._knowledge.tell(trial)
            self._tell(trial)

    @property
    def _paused(self) -> list[int]:
        return [trial.number for trial in self._roster.candidates if trial.state is TrialState.PAUSED]

    @property
    def _counted(self) -> int:
        return sum(map(ran, self._roster.candidates))

    def _spent(self) -> str | None:
        """Which amount of the budget is used up, so that nothing starts or goes on.

        A cost counts as soon as its trial ends, whether or not the searcher knows of it: speed may decide after how
        many trials a budget is spent, never which they are.
        """
        return self._spending.exhausted(self._roster.candidates)

    def _suggest(self) -> TrialRecord | None:
        """Ask for a candidate and record it, with those refused before it; None at the end of the space."""
        number, least = self._roster.next_number, self._spec.budget.min_gain
        gain = self._searcher.expected_gain(number) if least is not None else None
        if least is not None and gain is not None and gain < least:
            self._exhausted = f"budget.min_gain: {gain:.2g} of the hypervolume is all that the next trial may add"
            return None
        try:
            suggestion = self._searcher.ask(number, self._feasibility.refuse)
        except SpaceExhausted as error:
            self._exhausted = str(error)
            self._record_refused(error.refused)
            return None
        self._record_refused(suggestion.refused)
        return self._add(suggestion, TrialState.WAITING, None)

    def _record_refused(self, refused: Sequence[Refused]) -> None:
        for candidate in refused:
            trial = self._add(candidate, TrialState.INFEASIBLE, candidate.reason)
            self._knowledge.tell(trial)
            self._tell(trial)

    def _add(self, candidate: Suggestion | Refused, state: TrialState, reason: str | None) -> TrialRecord:
        return self._roster.add(
            candidate.number,
            candidate.params,
            self._spec.trial_config(candidate.params),
            params_hash=candidate.params_hash,
            origin=candidate.origin,
            sampler_state=dict(candidate.sampler_state) if isinstance(candidate, Suggestion) else {},
            state=state,
            reason=reason,
        )

    def _ends_refused(self) -> str | None:
        """Why an earlier run of the command gave the space up as infeasible; None if none did."""
        last = self._roster.candidates[-MAX_REFUSED:]
        if len(last) < MAX_REFUSED or any(map(ran, last)):
            return None
        return f"search: the last {MAX_REFUSED} candidates can't run, the last because {last[-1].reason}"
