"""Promotions: which trial an alias such as `production` names, since when, by whom, why and on what evidence.

The ledger keeps them, and only adds to them; MLflow's registry shows them (`sweep_platform.tracking.registry`).
Evidence is what was known of the trial at that moment: `Frontier.point_json` (values, errors, cost, confirming runs,
probability, params, …), and

- `rule`: the options that it was chosen by;
- `on_front`: whether nothing beat it;
- `trials`: numbers of the runs that the values are means over;
- `problems`: how many problems they were evaluated on, by data source.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweep_platform.errors import BadInput, Fault, printable
from sweep_platform.evidence import judged_frontier
from sweep_platform.frontier import COMPLETE, IMPORTED, outlined
from sweep_platform.production.document import (
    ProductionFile,
    PromotionNote,
    find_trial,
    portable,
    provenance_of,
    user_name,
)

if TYPE_CHECKING:
    from run_ledger import Ledger, PromotionRecord, SweepRecord, TrialRecord

PRODUCTION = "production"
"""The alias where none is said."""
_ALIAS = re.compile(r"(?!(?:latest|v\d+)$)[a-z][a-z0-9_-]{0,63}", re.IGNORECASE | re.ASCII)
"""What MLflow takes for an alias, and no file with an ending."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """A promotion with what it names."""

    record: PromotionRecord
    sweep: SweepRecord
    trial: TrialRecord

    @property
    def title(self) -> str:
        """The trial, as people call it."""
        return f"trial {self.trial.number} of {self.sweep.address}"

    @property
    def run_name(self) -> str:
        """What a run that trains it is called: by the trial, so that going back to it finds the run that there was."""
        return f"{self.sweep.name}-{self.sweep.version}-{self.trial.number}"


def is_alias(text: str) -> bool:
    """Whether a promotion can have that alias."""
    return _ALIAS.fullmatch(text) is not None


def check_alias(alias: str, option: str = "--as") -> None:
    """See that a promotion can have that alias.

    Raises:
        BadInput: it can't.
    """
    if not is_alias(alias):
        need = "letters, digits, '_' and '-', starting with a letter, at most 64; not latest, nor v and a number"
        raise BadInput([Fault(option, repr(alias), need, "choose another")])


def user_at_host() -> str:
    """Who promotes, unless somebody says otherwise."""
    return f"{user_name()}@{socket.gethostname()}"


def named(ledger: Ledger, record: PromotionRecord) -> Promoted:
    """A promotion with its sweep and trial."""
    return Promoted(record, ledger.sweep(record.sweep_id), ledger.trial(record.trial_id))


def current(ledger: Ledger, alias: str) -> Promoted | None:
    """The promotion of an alias that counts; None if nothing was promoted as that."""
    history = ledger.promotions(alias)
    return named(ledger, history[-1]) if history else None


def promote(
    ledger: Ledger,
    address: str,
    number: int,
    *,
    alias: str = PRODUCTION,
    who: str,
    why: str = "",
    rule: str,
    unconfirmed: bool = False,
) -> Promoted:
    """Record that a complete trial is what an alias names from now on, with all that is known of it.

    Args:
        ledger: Where the sweep is.
        address: `name` or `name@version`.
        number: The trial's number.
        alias: As what.
        who: Whoever decides so.
        why: Their reason; the rule, if they give none.
        rule: The options that it was chosen by.
        unconfirmed: Take a trial that only the search's own run speaks for; it is marked as such for good.

    Raises:
        BadInput: no such sweep or complete trial, no such alias, or it isn't confirmed.
    """
    check_alias(alias)
    sweep, trial = find_trial(ledger, address, number)
    evidence = _evidence(ledger, sweep, trial, rule)
    runs = evidence["confirming_runs"]
    if not runs and not unconfirmed:
        got = f"trial {number} of {sweep.address}, which one run speaks for"
        need = "one that was confirmed under new seeds"
        do = f"run platform confirm {sweep.address}, which runs the frontier again, or add --unconfirmed"
        raise BadInput([Fault("promote", got, need, do)])
    why = printable(why.strip()) or f"chosen by {rule}"
    record = ledger.promote(trial.id, alias, printable(who), why, confirmed=runs > 0, evidence=evidence)
    return Promoted(record, sweep, trial)


def roll_back(
    ledger: Ledger, alias: str, *, to: int | None = None, who: str, why: str = ""
) -> tuple[Promoted, Promoted]:
    """Go back to what an alias named before, or to the promotion with the number `to`; recorded as a promotion.

    Returns:
        (what it named until now, what it names from now on).

    Raises:
        BadInput: nothing was promoted as that, there is no earlier trial, or no such promotion.
        LedgerError: somebody else promoted or rolled back meanwhile; nothing was written.
    """
    history = ledger.promotions(alias)
    if not history:
        raise BadInput([unknown_alias(ledger, alias, "--as")])
    latest = history[-1]
    by_id = {record.id: record for record in history}
    wanted = latest.previous if to is None else to
    if wanted is None:
        got = f"{alias}, which has no earlier trial than {named(ledger, latest).title}"
        do = "promote another trial, or go to a later promotion with --to N"
        raise BadInput([Fault("rollback", got, "an alias that named another trial before", do)])
    if wanted not in by_id or wanted == latest.id:
        got = f"{to}, which is the current one" if wanted == latest.id else str(to)
        others = [record.id for record in history[:-1]]
        need = f"one of {others}" if others else "an earlier promotion; there is none"
        raise BadInput([Fault("--to", got, need, f"see platform promotions {alias}")])
    why = printable(why.strip()) or f"back to promotion {wanted}"
    record = ledger.roll_back(latest, printable(who), why, to=by_id[wanted])
    return named(ledger, latest), named(ledger, record)


def unknown_alias(ledger: Ledger, alias: str, where: str) -> Fault:
    """What says that nothing was promoted under a name."""
    known = sorted({record.alias for record in ledger.promotions()})
    need = f"one of the aliases {known}" if known else "the alias of a promotion; there is none yet"
    return Fault(where, repr(alias), need, "check the name, or make it with platform promote")


def promoted_file(ledger: Ledger, promoted: Promoted) -> ProductionFile:
    """What `platform export` would write of a promoted trial, and which promotion it is."""
    record = promoted.record
    note = PromotionNote(
        id=record.id,
        alias=record.alias,
        who=record.who,
        why=record.why,
        at=record.at.replace(microsecond=0),
        confirmed=record.confirmed,
    )
    provenance = provenance_of(ledger, promoted.sweep, promoted.trial).model_copy(update={"promotion": note})
    trainer = str(promoted.sweep.spec["trainer"])
    return ProductionFile(trainer=trainer, provenance=provenance, config=portable(promoted.trial.config))


def _evidence(ledger: Ledger, sweep: SweepRecord, trial: TrialRecord, rule: str) -> dict[str, Any]:
    trials = ledger.outline(sweep.id, outlined(sweep))
    found = judged_frontier(ledger, sweep, trials)
    point = next(point for point in found.points if point.number == trial.number)
    same = [each for each in trials if each.params_hash == trial.params_hash and each.state == COMPLETE]
    runs = [each for each in same if (each.replicate > 0) == (point.runs > 0)]
    problems = {problem for shares in ledger.shares([run.id for run in runs]).values() for problem in shares}
    return {
        **found.point_json(point),
        "rule": rule,
        "origin": trial.origin,
        "on_front": point.number in {each.number for each in found.front},
        "trials": [run.number for run in runs],
        "problems": dict(Counter(source for source, _ in sorted(problems))),
    }


def evidence_line(record: PromotionRecord) -> str:
    """What a promotion rests on, in a few words."""
    evidence: Mapping[str, Any] = record.evidence
    problems = sum(evidence.get("problems", {}).values())
    on = f" on {problems} problems" if problems else ""
    if record.confirmed:
        return f"confirmed by {evidence.get('confirming_runs', 0)} runs{on}"
    origin = str(evidence.get("origin", ""))
    if origin.startswith(IMPORTED):
        return f"UNCONFIRMED: {origin}, not trained here"
    return f"UNCONFIRMED: one run{on}" if evidence else "UNCONFIRMED"
