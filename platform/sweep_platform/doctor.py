"""What is wrong with a sweep or a production run, by what was recorded, and what to change.

Each trial's config and metrics go to its trainer, which knows what they mean; what several trials have in common, and
what only a whole sweep can show (noise, failures, refusals), is put together here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweep_platform.evidence import judged_frontier
from sweep_platform.frontier import COMPLETE, indistinguishable
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import Finding, examine_config, load_trainer

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord, TrialRecord

    from sweep_platform.production.journal import Journal

REFUSED = 0.5
"""Share of the candidates that were refused, beyond which the search space is the fault."""
BLURRED = 0.5
"""Share of neighbours on the front that noise can't tell apart."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Something that is wrong."""

    name: str
    evidence: str
    """Of the first trial that has it."""
    advice: tuple[str, ...]
    """What to change, the first thing to try first."""
    trials: tuple[int, ...] = ()
    """That have it; none: it is about the whole."""

    def to_json(self) -> dict[str, Any]:
        """The form of `platform doctor --json`."""
        return {
            "name": self.name,
            "evidence": self.evidence,
            "advice": list(self.advice),
            "trials": list(self.trials),
        }


def examine_sweep(ledger: Ledger, sweep: SweepRecord, only: int | None = None) -> list[Diagnosis]:
    """Return what is wrong with a sweep: of the whole, then of its trials, as their trainer orders it.

    Args:
        ledger: where the sweep is.
        sweep: the sweep.
        only: look at this trial alone; None looks at all that reported anything, and at the whole.
    """
    spec = SweepSpec.from_dict(sweep.spec)
    trainer, trials = load_trainer(spec.trainer), ledger.trials(sweep.id)
    seen = [trial for trial in trials if trial.step > 0 and only in (None, trial.number)]
    found = {
        trial.number: examine_config(trainer, trial.config, [step.metrics for step in ledger.observations(trial.id)])
        for trial in seen
    }
    whole = [] if only is not None else list(_of_the_whole(ledger, sweep, trials))
    return whole + _together(found)


def examine_run(journal: Journal) -> list[Diagnosis]:
    """Return what is wrong with a production run."""
    trainer, history = load_trainer(journal.head["trainer"]), [step.metrics for step in journal.steps]
    findings = examine_config(trainer, journal.head["config"], history)
    return [Diagnosis(found.name, found.evidence, tuple(found.advice)) for found in findings]


def _together(found: Mapping[int, Sequence[Finding]]) -> list[Diagnosis]:
    """One diagnosis for each name, with all trials that have it; what most trials have is nearer to the front."""
    order: dict[str, list[int]] = {}
    first: dict[str, Finding] = {}
    places: dict[str, list[int]] = {}
    for number, findings in found.items():
        for place, finding in enumerate(findings):
            first.setdefault(finding.name, finding)
            order.setdefault(finding.name, []).append(number)
            places.setdefault(finding.name, []).append(place)
    names = sorted(order, key=lambda name: (-len(order[name]), sum(places[name]) / len(places[name])))
    return [Diagnosis(name, first[name].evidence, tuple(first[name].advice), tuple(order[name])) for name in names]


def _of_the_whole(ledger: Ledger, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> Iterator[Diagnosis]:
    yield from _refused(trials)
    yield from _failed(trials)
    if any(trial.state == COMPLETE for trial in trials):
        yield from _blurred(ledger, sweep, trials)


def _refused(trials: Sequence[TrialRecord]) -> Iterator[Diagnosis]:
    refused = [trial for trial in trials if trial.state == "infeasible"]
    if len(refused) > REFUSED * len(trials):
        (reason, count), *_ = Counter(trial.reason or "" for trial in refused).most_common(1)
        yield Diagnosis(
            "most candidates are refused",
            f"{len(refused)} of {len(trials)}, {count} of them for: {reason}",
            ("take such values out of the search", "say what may be combined by constraints and when"),
        )


def _failed(trials: Sequence[TrialRecord]) -> Iterator[Diagnosis]:
    for state, advice in (
        ("failed", "read traceback.txt in the trial's folder; platform sweep SPEC --retry-failed tries again"),
        ("lost", "look at memory and nodes; the same sweep command tries again"),
    ):
        ended = [trial for trial in trials if trial.state == state]
        if ended:
            (reason, count), *_ = Counter(trial.reason or "" for trial in ended).most_common(1)
            numbers = tuple(trial.number for trial in ended)
            yield Diagnosis(f"trials {state}", f"{count} of {len(ended)} by: {reason}", (advice,), numbers)


def _blurred(ledger: Ledger, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> Iterator[Diagnosis]:
    """Neighbours on the front differ by less than the evaluation's noise."""
    front = judged_frontier(ledger, sweep, trials).front
    pairs = list(zip(front, front[1:], strict=False))
    blurred = [(a.number, b.number) for a, b in pairs if indistinguishable(a, [b])]
    if pairs and len(blurred) > BLURRED * len(pairs):
        told = ", ".join(f"{a} and {b}" for a, b in blurred[:5])
        yield Diagnosis(
            "noise is larger than the differences",
            f"{len(blurred)} of {len(pairs)} neighbours on the front can't be told apart: {told}",
            (
                f"platform confirm {sweep.name}, which runs the front under new seeds",
                "evaluate more samples (rollout.val_kwargs.n) or more problems (data.val_size)",
            ),
        )
