"""Opening a sweep, for a search or for the runs that confirm its front, with what an earlier process left."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from run_ledger import SweepRecord, TrialRecord, TrialState

from sweep_platform.driver.confirming import ConfirmPlan
from sweep_platform.driver.driver import Driver
from sweep_platform.driver.holding import held, running
from sweep_platform.driver.plan import SearchPlan
from sweep_platform.driver.reuse import has_grown, take_over
from sweep_platform.driver.roster import Roster
from sweep_platform.driver.spending import Spending, running_seconds
from sweep_platform.errors import SweepChanged
from sweep_platform.events import Announcer, Observer
from sweep_platform.home import Home
from sweep_platform.search import Feasibility, Searcher
from sweep_platform.spec import SweepSpec
from sweep_platform.trainers import load_trainer

if TYPE_CHECKING:
    from run_ledger import Ledger

_log = logging.getLogger(__name__)


@contextmanager
def open_sweep(
    ledger: Ledger,
    spec: SweepSpec,
    home: Home,
    *,
    observers: Sequence[Observer] = (),
    new: bool = False,
    retry_failed: bool = False,
    sources: Sequence[SweepRecord] = (),
) -> Iterator[Driver]:
    """Hold a sweep and yield its driver, to be run by an executor.

    Args:
        ledger: An open ledger.
        spec: What to run.
        home: Where the trials' folders are.
        observers: Told of everything that happens.
        new: Start the next version of the sweep instead of going on with the latest.
        retry_failed: Try trials again that failed under an earlier run of the command.
        sources: Sweeps whose results are taken over where their trials had a config that this one could have.

    Raises:
        SweepChanged: the latest version under this name was run with another spec.
        SweepBusy: another driver that lives runs it.
        BadInput: no trainer of that name is installed.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; everything reported is recorded, and the same call goes on.
    """
    feasibility, announcer = Feasibility(spec, load_trainer(spec.trainer)), Announcer(observers)
    with open_roster(ledger, spec, new=new) as roster:
        _take_over(roster, spec, feasibility, sources)
        _reopen(roster.candidates, roster, failed=retry_failed)
        plan = _search_plan(roster, spec, feasibility, announcer)
        driver = Driver(roster=roster, plan=plan, spec=spec, feasibility=feasibility, observers=announcer, home=home)
        with _run(driver):
            yield driver


@contextmanager
def open_roster(ledger: Ledger, spec: SweepSpec, *, new: bool = False) -> Iterator[Roster]:
    """Hold a spec's sweep, made if there is none, and yield its trials.

    Raises:
        SweepChanged: the latest version under this name was run with another spec.
        SweepBusy: another driver that lives runs it.
    """
    sweep = _find_or_create(ledger, spec, new)
    with held(ledger, sweep.id) as lease:
        if sweep.spec != spec.to_dict():
            sweep = ledger.update_spec(lease, spec.to_dict())  # a larger budget, say; its identity is the same
        yield Roster(ledger, lease, sweep)


@contextmanager
def open_confirmation(
    ledger: Ledger, sweep: SweepRecord, spec: SweepSpec, home: Home, *, observers: Sequence[Observer] = ()
) -> Iterator[Driver]:
    """Hold a sweep and yield the driver of the runs that confirm its front, to be run by an executor.

    Args:
        ledger: An open ledger.
        sweep: A sweep with complete trials.
        spec: Its spec, with `confirm` as wanted.
        home: Where the trials' folders are.
        observers: Told of everything that happens.

    Raises:
        NoFeasibleTrial: no trial is complete.
        SweepBusy: another driver that lives runs it.
        BadInput: the trainer isn't installed, or has no seed.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; everything reported is recorded, and the same call goes on.
    """
    feasibility, announcer = Feasibility(spec, load_trainer(spec.trainer)), Announcer(observers)
    with held(ledger, sweep.id) as lease:
        roster = Roster(ledger, lease, sweep)
        plan = ConfirmPlan(roster, spec)
        _reopen([trial for trial in roster.trials if plan.owns(trial)], roster, failed=False)
        driver = Driver(roster=roster, plan=plan, spec=spec, feasibility=feasibility, observers=announcer, home=home)
        with _run(driver):
            yield driver


@contextmanager
def _run(driver: Driver) -> Iterator[Driver]:
    """Announce a driver's run, and say at its end what cut it short."""
    with running(driver):
        driver.observers.sweep_started(driver.sweep, driver.spec, driver.trials)
        yield driver
        if driver.cut_short is not None:
            _log.warning("%s", driver.cut_short)
        driver.observers.sweep_finished(driver.sweep, driver.trials)


def _search_plan(roster: Roster, spec: SweepSpec, feasibility: Feasibility, announcer: Announcer) -> SearchPlan:
    """What a search runs; values that no trial can have are told."""
    impossible = feasibility.impossible()
    for path, values in impossible.items():
        for value, why in values.items():
            _log.warning("search.%s: %r is left out, as no trial can have it: %s", path, value, why)
    spending = Spending(spec.budget, running_seconds(roster.ledger, roster.candidates))
    return SearchPlan(
        roster,
        spec,
        searcher=Searcher(spec, impossible),
        feasibility=feasibility,
        spending=spending,
        tell=announcer.trial_finished,
    )


def _take_over(roster: Roster, spec: SweepSpec, feasibility: Feasibility, sources: Sequence[SweepRecord]) -> None:
    """Record what other sweeps measured; of the version before, too, if this one only added to its space."""
    before = roster.ledger.find_sweep(f"{roster.sweep.name}@{roster.sweep.version - 1}")
    grown = before is not None and not roster.trials and has_grown(before.spec, spec)
    for source in (*((before,) if before is not None and grown else ()), *sources):
        taken = take_over(roster, spec, feasibility, source)
        if taken or source in sources:
            count = f"{taken} complete trial{'' if taken == 1 else 's'}"
            _log.warning("%s keeps %s of %s", roster.sweep.address, count, source.address)


def _reopen(trials: Sequence[TrialRecord], roster: Roster, *, failed: bool) -> None:
    """Let trials run again that were lost with what ran them, and on request those that failed."""
    states = (TrialState.LOST, TrialState.FAILED) if failed else (TrialState.LOST,)
    for trial in trials:
        if trial.state in states:
            roster.change_state(trial.number, TrialState.WAITING, trial.reason)


def _find_or_create(ledger: Ledger, spec: SweepSpec, new: bool) -> SweepRecord:
    """The sweep's latest version, if it was run with this spec; a new one if there is none, or on request."""
    identity = spec.identity()
    found = ledger.find_sweep(spec.name)
    if found is not None and not new:
        if found.identity == identity:
            return found
        if has_grown(found.spec, spec):
            return _create(ledger, spec, found.version + 1)
        lines = "".join(f"\n  {line}" for line in spec.diff(found.spec))
        raise SweepChanged(
            f"sweep {found.address}: got a spec that differs from the one its trials were run with:{lines}\n"
            f"need the same spec to go on; undo the change, start {spec.name}@{found.version + 1} with "
            "--new, or give the spec another name"
        )
    return _create(ledger, spec, 1 if found is None else found.version + 1)


def _create(ledger: Ledger, spec: SweepSpec, version: int) -> SweepRecord:
    return ledger.create_sweep(spec.name, spec.to_dict(), spec.identity(), spec.seed, _commit(), version=version)


def _commit() -> str | None:
    """The commit of this code, where it runs from a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return None
