"""The runs that confirm a front: its points again, under other seeds, until noise no longer hides which is better."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from run_ledger import TrialRecord, TrialState

from sweep_platform.driver.placing import trainer_section
from sweep_platform.driver.roster import Roster
from sweep_platform.errors import BadInput, Fault
from sweep_platform.evidence import judge_trials, told_apart
from sweep_platform.frontier import Frontier, Judged, goals
from sweep_platform.spec import SweepSpec
from sweep_platform.spec.paths import put

ORIGIN = "confirm"


class ConfirmPlan:
    """Each point of the front `confirm.runs` times, then again the least certain of those that noise hides."""

    def __init__(self, roster: Roster, spec: SweepSpec) -> None:
        """Take the front of the search as it stands.

        Raises:
            NoFeasibleTrial: no trial is complete.
            BadInput: the trainer has no seed.
        """
        self._roster = roster
        self._spec = spec
        front = Frontier.of(roster.sweep, roster.candidates).front
        self._goals = goals(roster.sweep)
        self._candidates = [roster[point.number] for point in front]
        if "seed" not in trainer_section(spec.base):
            need = "a trainer whose config has trainer.seed, since a run under the same seed confirms nothing"
            raise BadInput([Fault("trainer", repr(spec.trainer), need, "confirm by hand")])

    def owns(self, trial: TrialRecord) -> bool:
        """Whether it confirms."""
        return trial.replicate > 0

    def next(self) -> TrialRecord | None:
        """Another run of a point that needs one; None while that depends on what runs, or at the end."""
        for candidate in self._candidates:
            if len(self._runs(candidate)) < self._spec.confirm.runs:
                return self._add(candidate)
        if any(not trial.state.final for trial in self._roster.trials if self.owns(trial)):
            return None
        unclear = self._unclear()
        return self._add(unclear) if unclear is not None else None

    def limit(self) -> str | None:
        """Why nothing more is run; None while something may be."""
        settings = self._spec.confirm
        short = any(len(self._runs(candidate)) < settings.runs for candidate in self._candidates)
        open_runs = any(not trial.state.final for trial in self._roster.trials if self.owns(trial))
        if short or open_runs or self._unclear() is not None:
            return None
        hidden = self._hidden_pairs()
        if not hidden:
            return "the front's points are told apart"
        named = ", ".join(f"{one.number} and {other.number}" for one, other in hidden)
        return f"confirm.max_runs: after {settings.max_runs} runs each, noise still hides which is better of {named}"

    @property
    def incomplete(self) -> bool:
        """Whether some points could not be told apart."""
        return bool(self._hidden_pairs())

    @property
    def pending(self) -> bool:
        """Nothing pauses."""
        return False

    def started(self) -> None:
        """No clock limits confirming runs."""

    def goes_on(self, trial: TrialRecord, metrics: Mapping[str, float], final: bool) -> bool:
        """Confirming runs are never stopped early."""
        return True

    def pause_reason(self, number: int) -> str:
        """None is ever asked for."""
        return ""

    def settle(self) -> None:
        """Nothing is left."""

    def _runs(self, candidate: TrialRecord) -> list[TrialRecord]:
        same = candidate.params_hash
        return [trial for trial in self._roster.trials if self.owns(trial) and trial.params_hash == same]

    def _judged(self) -> list[Judged]:
        """The points that have confirming runs, the cheapest first."""
        judged, confirmed = judge_trials(self._roster.ledger, self._roster.sweep, self._roster.trials)
        place = {candidate.number: index for index, candidate in enumerate(self._candidates)}
        ours = [item for item in judged if item.number in place] if confirmed else []
        return sorted(ours, key=lambda item: place[item.number])

    def _hidden_pairs(self) -> list[tuple[Judged, Judged]]:
        """Neighbours on the front that aren't told apart."""
        pairs, apart = pairwise(self._judged()), self._spec.confirm.apart
        return [(one, other) for one, other in pairs if not told_apart(self._goals, one, other, apart)]

    def _unclear(self) -> TrialRecord | None:
        """The least certain point of those that noise hides and that may run again."""
        hidden = {item.number: item for pair in self._hidden_pairs() for item in pair}
        left = [n for n in hidden if len(self._runs(self._roster[n])) < self._spec.confirm.max_runs]
        if not left:
            return None
        number = max(left, key=lambda n: (max(error or 0.0 for error in hidden[n].errors), -n))
        return self._roster[number]

    def _add(self, candidate: TrialRecord) -> TrialRecord:
        replicate = 1 + max((trial.replicate for trial in self._runs(candidate)), default=0)
        config = self._spec.trial_config(candidate.params)
        for path, value in self._spec.confirm.config.items():
            put(config, path, value)
        put(config, "trainer.seed", trainer_section(config)["seed"] + replicate)
        return self._roster.add(
            self._roster.next_number,
            candidate.params,
            config,
            params_hash=candidate.params_hash,
            origin=ORIGIN,
            sampler_state={},
            replicate=replicate,
            state=TrialState.WAITING,
        )
