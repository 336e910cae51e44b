"""Early stopping in a sweep: pauses at rungs, promotions from the checkpoint, what the searcher and the front hear."""

from typing import Any

import pytest
from played import assigned, told
from run_ledger import Ledger, TrialState
from sweep_platform.driver import WAIT, Assignment, Driver, Ended, Lost, open_sweep
from sweep_platform.errors import NoFeasibleTrial
from sweep_platform.frontier import Frontier
from sweep_platform.home import Home
from sweep_platform.spec import SweepSpec
from toybox.sweeps import Notes, toy_spec

SEARCH = {"actor.lr": {"float": [0.01, 1.0], "log": True}}


def spec_of(trials: int = 4, **keys: Any) -> SweepSpec:
    return toy_spec(**{"search": SEARCH, "pruning": {"rungs": [0.5]}, "budget": {"trials": trials}, **keys})


def play(driver: Driver, assignment: Assignment, accuracy: float) -> int:
    """Report from where the trial stands until it is told to stop or is done; the last step."""
    start = max(assignment.trial.step, 1)
    for step in range(start, 5):
        if not driver.report(assignment, told(assignment, step, metrics={"val/accuracy": accuracy * step})):
            break
    driver.finish(assignment, Ended())
    return step


def play_all(driver: Driver, accuracies: list[float]) -> list[tuple[int, int]]:
    """Run until nothing is left; (trial, last step) of each attempt, in order."""
    attempts = []
    while isinstance(assignment := driver.next_trial(), Assignment):
        attempts.append((assignment.number, play(driver, assignment, accuracies[assignment.number])))
    return attempts


def test_a_trial_that_is_beaten_pauses_and_goes_on_when_its_turn_comes(ledger: Ledger, home: Home) -> None:
    notes = Notes()
    with open_sweep(ledger, spec_of(), home, observers=[notes]) as driver:
        attempts = play_all(driver, [0.2, 0.1, 0.05, 0.01])
    # The first two pass (1 of 1, then 1 is not among 1 of 2); as the third comes, two of three may go on.
    assert attempts == [(0, 4), (1, 2), (2, 2), (1, 4), (3, 2)]
    states = [trial.state for trial in ledger.trials(driver.sweep.id)]
    assert states == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]
    assert ("trial_paused", 1, 2) in notes.events
    assert notes.events.index(("trial_finished", 2, "pruned")) > notes.events.index(("trial_finished", 1, "complete"))
    pruned = ledger.trials(driver.sweep.id)[2]
    assert (pruned.values, pruned.step, pruned.attempts) == (None, 2, 1)
    assert pruned.reason == "at 0.5 of its length it wasn't among the best 2 of 3 trials evaluated there"
    assert [seen.step for seen in ledger.observations(pruned.id)] == [1, 2], "partial results are kept"


def test_the_config_asks_for_an_evaluation_at_each_rung(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, spec_of(run={"test_at": None}), home) as driver:
        assert assigned(driver).config["trainer"]["test_at"] == [0.5]
    assert ledger.trials(driver.sweep.id)[0].config["trainer"]["test_at"] is None


def test_a_stopped_trial_never_reaches_the_front_however_cheap_it_was(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, spec_of(trials=2), home) as driver:
        play_all(driver, [0.2, 0.1])
    trials = ledger.trials(driver.sweep.id)
    assert trials[1].state is TrialState.PRUNED and trials[1].cost.flops < trials[0].cost.flops
    frontier = Frontier.of(driver.sweep, trials)
    assert [point.number for point in frontier.points] == [0]
    with pytest.raises(NoFeasibleTrial):
        Frontier.of(driver.sweep, trials[1:])


def test_a_killed_driver_goes_on_with_the_same_standings(ledger: Ledger, home: Home) -> None:
    spec = spec_of()
    with pytest.raises(KeyboardInterrupt), open_sweep(ledger, spec, home) as driver:
        for accuracy in (0.2, 0.1):
            play(driver, assigned(driver), accuracy)
        raise KeyboardInterrupt
    assert [trial.state for trial in ledger.trials(driver.sweep.id)] == [TrialState.COMPLETE, TrialState.PAUSED]
    with open_sweep(ledger, spec, home) as again:
        attempts = play_all(again, [0.2, 0.1, 0.05, 0.01])
    assert attempts == [(2, 2), (1, 4), (3, 2)]


def test_a_worker_lost_while_it_pauses_comes_to_the_rung_again(
    ledger: Ledger, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep_platform.driver.driver.BACKOFF_S", (0.0, 0.0))
    with open_sweep(ledger, spec_of(trials=2), home) as driver:
        play(driver, assigned(driver), 0.2)
        beaten = assigned(driver)
        assert driver.report(beaten, told(beaten, 1))
        assert not driver.report(beaten, told(beaten, 2, metrics={"val/accuracy": 0.1}))
        driver.finish(beaten, Lost("killed by signal 9"))
        again = assigned(driver)
        assert (again.number, again.trial.attempts) == (1, 2)
        assert not driver.report(again, told(again, 2, metrics={"val/accuracy": 0.1}))
        driver.finish(again, Ended())
        assert driver.next_trial() is None
    assert ledger.trials(driver.sweep.id)[1].state is TrialState.PRUNED


def test_a_larger_budget_brings_pruned_trials_back_into_the_race(ledger: Ledger, home: Home) -> None:
    accuracies = [0.2, 0.1, 0.01, 0.02]
    with open_sweep(ledger, spec_of(trials=2), home) as driver:
        play_all(driver, accuracies)
    assert ledger.trials(driver.sweep.id)[1].state is TrialState.PRUNED
    with open_sweep(ledger, spec_of(trials=4), home) as again:
        attempts = play_all(again, accuracies)
    assert (1, 4) in attempts and attempts[0] == (2, 2), "from its checkpoint, and only once it may"
    assert ledger.trials(driver.sweep.id)[1].state is TrialState.COMPLETE


def test_a_spent_budget_stops_promotions_too(ledger: Ledger, home: Home) -> None:
    spec = spec_of(budget={"trials": 9, "flops": 30e9})
    with open_sweep(ledger, spec, home) as driver:
        attempts = play_all(driver, [0.2, 0.1, 0.05, 0.01])
    # 16 + 8 + 8 GFLOPs: trial 1 could go on now.
    assert attempts == [(0, 4), (1, 2), (2, 2)]
    states = {trial.state for trial in ledger.trials(driver.sweep.id)}
    assert TrialState.PAUSED not in states and TrialState.PRUNED in states


def test_with_several_at_once_a_paused_trial_waits_for_those_that_run(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, spec_of(trials=2, budget={"trials": 2, "concurrency": 2}), home) as driver:
        first, second = assigned(driver), assigned(driver)
        assert driver.report(first, told(first, 2, metrics={"val/accuracy": 0.4}))
        assert not driver.report(second, told(second, 2, metrics={"val/accuracy": 0.2}))
        driver.finish(second, Ended())
        assert driver.next_trial() is WAIT
        for step in (3, 4):
            assert driver.report(first, told(first, step, metrics={"val/accuracy": 0.8}))
        driver.finish(first, Ended())
        assert driver.next_trial() is None
    assert [t.state for t in ledger.trials(driver.sweep.id)] == [TrialState.COMPLETE, TrialState.PRUNED]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2", "random"])
def test_every_sampler_learns_from_stopped_trials(ledger: Ledger, home: Home, sampler: str) -> None:
    spec = spec_of(trials=8, sampler={"name": sampler, "n_startup": 2, "population": 2})
    with open_sweep(ledger, spec, home) as driver:
        play_all(driver, [0.2, 0.1, 0.05, 0.15, 0.12, 0.03, 0.19, 0.11])
    trials = ledger.trials(driver.sweep.id)
    assert len(trials) == 8
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
