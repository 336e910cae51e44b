"""Which candidate comes next.

Deterministic: a suggestion depends on the spec, the trial's number and the trials told so far, never on
timing or on the process that asks. No candidate is suggested twice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from run_ledger.records import TrialRecord, TrialState

from sweep_platform.errors import PlatformError
from sweep_platform.frontier import Goal
from sweep_platform.hypervolume import front
from sweep_platform.search.samplers import Told, Verdict, has_started, suggest
from sweep_platform.search.space import Impossible, Space, params_hash
from sweep_platform.spec import SweepSpec

if TYPE_CHECKING:
    from sweep_platform.search.ehvi import Weighed

MAX_REFUSED = 64
"""Refused candidates in one `ask`, after which the space counts as infeasible."""
_ATTEMPTS = {"gp": 2, "grid": 0}
"""How often a sampler is asked before the space is filled at random (gp takes half a second each time)."""
_ATTEMPTS_OF_OTHERS = 8
MODELLED = {"ehvi": 160, "tpe": 320, "gp": 160}
"""Trials that a model is made from, of long sweeps: their front, and others evenly. More take long and add little."""
LENGTHS = ("trainer.total_training_steps", "trainer.total_epochs")
"""Paths of the trainer's config that say how long a run is, by verl's names."""
_MODELS = ("ehvi", "tpe", "gp")
"""Samplers that begin without a model: their first candidates are labelled `<name>:startup`."""
_WHATEVER_IT_COSTS = 3
"""Every so many trials, `ehvi` takes what is expected to add most, where the others add most for their cost."""
_FILLS = 1000
"""Random draws from a continuous space before it counts as exhausted."""

Refuse = Callable[[Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that can't run: it has a trial number, and costs nothing."""

    number: int
    params: Mapping[str, Any]
    params_hash: str
    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The next candidate to run."""

    number: int
    """Its trial number: the one asked for plus the number of refused ones before it."""
    params: Mapping[str, Any]
    """Canonical: active parameters only, in the spec's order."""
    params_hash: str
    origin: str
    """`prior:<name>`, the sampler's name, or `<name>:startup` before it uses a model."""
    sampler_state: Mapping[str, Any]
    """What the sampler needs when it is told this trial again; JSON."""
    refused: tuple[Refused, ...] = ()
    """Candidates tried before it, with the numbers from the one asked for up to this one; to be recorded."""


class SpaceExhausted(PlatformError):
    """Nothing is left to suggest. `refused` are to be recorded, as with a suggestion."""

    def __init__(self, message: str, refused: tuple[Refused, ...] = ()) -> None:
        self.refused = refused
        super().__init__(message)


@dataclass(slots=True)
class Searcher:
    """Suggests candidates for one sweep; rebuilt by telling it the sweep's trials again, in any order."""

    spec: SweepSpec
    impossible: Impossible = field(default_factory=dict)
    """Values never to suggest; `Feasibility.impossible`."""
    space: Space = field(init=False)
    _told: dict[int, Told] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.space = Space(self.spec, self.impossible)

    def tell(self, trial: TrialRecord, shown: tuple[float, ...] | None = None) -> None:
        """Take a trial's result (an open one counts as pending, a paused one as pruned); the last word counts.

        A number that is not finite makes a trial bad: it never reaches a model.

        Args:
            trial: as the ledger has it.
            shown: what a stopped trial showed last, costs projected to its full length.
        """
        values = shown if trial.state in (TrialState.PRUNED, TrialState.PAUSED) else trial.values
        self._told[trial.number] = Told(
            number=trial.number,
            params=self._canonical(trial.params),
            params_hash=trial.params_hash,
            origin=trial.origin,
            verdict=self._verdict(trial),
            values=values if _all_finite(values) else None,
            errors=tuple(trial.metrics.get(f"{goal.metric}_se", 0.0) for goal in self.spec.objectives),
            sampler_state=trial.sampler_state,
        )

    def pend(self, trial: TrialRecord) -> None:
        """Take a trial as suggested, without a result, whatever its state (for a driver that tells late)."""
        self._told[trial.number] = Told(
            number=trial.number,
            params=self._canonical(trial.params),
            params_hash=trial.params_hash,
            origin=trial.origin,
            verdict=Verdict.PENDING,
            sampler_state=trial.sampler_state,
        )

    def ask(self, number: int, refuse: Refuse | None = None) -> Suggestion:
        """Suggest the candidate for trial `number`, or a later one where candidates before it are refused.

        The suggestion counts as pending from now on.

        Args:
            number: the next free trial number.
            refuse: why a candidate can't run, or None; `Feasibility.refuse`.

        Raises:
            SpaceExhausted: every candidate was suggested before, or too many in a row were refused.
        """
        refused: list[Refused] = []
        while True:
            params, origin, state = self._next(number, tuple(refused))
            digest = params_hash(params)
            reason = refuse(params) if refuse is not None else None
            if reason is None:
                self._told[number] = Told(number, params, digest, origin, Verdict.PENDING, sampler_state=state)
                return Suggestion(number, params, digest, origin, state, tuple(refused))
            # Without its sampler state: it must not fill up a generation of NSGA-II.
            self._told[number] = Told(number, params, digest, origin, Verdict.BAD)
            refused.append(Refused(number, params, digest, origin, reason))
            if len(refused) == MAX_REFUSED:
                got = f"{MAX_REFUSED} infeasible candidates in a row, the last because {reason}"
                message = f"search: got {got}; need one that can run; widen search or constraints"
                raise SpaceExhausted(message, tuple(refused))
            number += 1

    def expected_gain(self, number: int) -> float | None:
        """What trial `number` may add to the hypervolume, as a share; None before there is enough to model."""
        told = self._modelled("ehvi")
        return self._weighed(number, told).gain if has_started(self.spec, told) else None

    def _weighed(self, number: int, told: Sequence[Told]) -> Weighed:
        """The candidates of our own sampler, the best first."""
        from sweep_platform.search.ehvi import Known, weigh

        goals = [Goal(objective.metric, objective.direction) for objective in self.spec.objectives]

        def known(item: Told) -> Known:
            open_or_bad = item.verdict in (Verdict.PENDING, Verdict.BAD) or item.values is None
            values = () if open_or_bad or item.values is None else item.values
            losses = tuple(goal.loss(value) for goal, value in zip(goals, values, strict=False)) or None
            stopped, bad = item.verdict is Verdict.PRUNED, item.verdict is Verdict.BAD
            return Known(item.params, losses, item.errors, stopped=stopped, bad=bad)

        useful = [known(item) for item in told if item.verdict is not Verdict.UNKNOWN]
        per_cost = bool(self.spec.budget.amounts) and number % _WHATEVER_IT_COSTS != 0
        return weigh(self.space, goals, useful, self._seed(number, "ehvi"), per_cost=per_cost)

    def _modelled(self, name: str) -> list[Told]:
        """The trials that a sampler's model is made from, by number; which ones is the same in any process."""
        told = [self._told[key] for key in sorted(self._told)]
        limit = MODELLED.get(name, len(told))
        if len(told) <= limit:
            return told
        goals = [Goal(objective.metric, objective.direction) for objective in self.spec.objectives]
        good = [item for item in told if item.verdict is Verdict.GOOD and item.values]
        losses = [tuple(goal.loss(v) for goal, v in zip(goals, item.values or (), strict=True)) for item in good]
        first = {item.number for item in told if item.verdict is Verdict.PENDING}
        first |= {good[index].number for index in front(losses)}
        # Hashes are as good as random, and a trial that is kept mostly stays so as others come.
        order = sorted(told, key=lambda item: (item.number not in first, item.params_hash))
        return sorted(order[:limit], key=lambda item: item.number)

    def _next(self, number: int, refused: tuple[Refused, ...]) -> tuple[dict[str, Any], str, dict[str, Any]]:
        """The first candidate that is new: priors, then the sampler, then any that is left."""
        seen = {item.params_hash for item in self._told.values()}
        for params, origin, state in self._candidates(number):
            if params_hash(params) not in seen:
                return params, origin, state
        message = f"search: got {len(seen)} candidates, all there are; need none more; enlarge search to go on"
        raise SpaceExhausted(message, refused)

    def _candidates(self, number: int) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
        name = self.spec.sampler.name
        told = self._modelled(name)
        tried = {item.origin for item in self._told.values()}
        for prior in self.spec.priors:
            origin = f"prior:{prior.name}"
            if origin not in tried:
                fixed = {path: value for path, value in prior.params.items() if self._possible(path, value)}
                params, state = suggest(self.spec, self.space, told, self._seed(number, origin), fixed)
                yield params, origin, state
        started = has_started(self.spec, told)
        label = name if started or name not in _MODELS else f"{name}:startup"
        if name == "ehvi" and started:
            for params in self._weighed(number, told).candidates:
                yield params, label, {}
        for attempt in range(_ATTEMPTS.get(name, _ATTEMPTS_OF_OTHERS)):
            if name in ("qmc", "ehvi"):
                yield self._quasi_random(number + attempt, short=name == "ehvi"), label, {}
            else:
                params, state = suggest(self.spec, self.space, told, self._seed(number, attempt), {})
                yield params, label, state
        if self.space.size is None:
            for attempt in range(_FILLS):
                yield self.space.uniform(self._seed(number, f"fill{attempt}")), name, {}
        else:
            for params in self.space.shuffled(self._seed(0, "fill")):
                yield params, name, {}

    def _possible(self, path: str, value: Any) -> bool:
        return path in self.space.domains and self.space.domains[path].contains(value)

    def _quasi_random(self, index: int, *, short: bool) -> dict[str, Any]:
        """The `index`-th point of the sweep's scrambled Sobol sequence.

        Args:
            index: from 0 on.
            short: where the budget is an amount of compute, from the shorter half of lengths only: what starts a model
                should cost little, and the model says itself when longer runs are worth it.
        """
        from scipy.stats.qmc import Sobol

        engine = Sobol(len(self.space.domains), scramble=True, rng=self.spec.seed)
        if index:
            engine.fast_forward(index)
        point = dict(zip(self.space.domains, map(float, engine.random(1)[0]), strict=True))
        if short and self.spec.budget.amounts:
            point |= {path: point[path] / 2 for path in LENGTHS if path in point}
        return self.space.at(point)

    def _seed(self, number: int, attempt: int | str) -> int:
        """A seed of 32 bits for one attempt at one trial."""
        text = f"{self.spec.seed}:{number}:{attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def _canonical(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Recorded params in the spec's order, as Python's own types."""
        search = self.spec.search
        return {path: domain.canonical(params[path]) for path, domain in search.items() if path in params}

    @staticmethod
    def _verdict(trial: TrialRecord) -> Verdict:
        match trial.state:
            case TrialState.COMPLETE if _all_finite(trial.values):
                return Verdict.GOOD
            case TrialState.PRUNED | TrialState.PAUSED:
                return Verdict.PRUNED
            case TrialState.LOST:
                return Verdict.UNKNOWN
            case TrialState.WAITING | TrialState.RUNNING:
                return Verdict.PENDING
            case _:
                return Verdict.BAD


def _all_finite(values: tuple[float, ...] | None) -> bool:
    return values is not None and all(math.isfinite(value) for value in values)
