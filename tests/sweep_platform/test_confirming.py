"""Confirming a front: which runs, under which seeds, and what the front says then."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from played import assigned, run, told
from run_ledger import Ledger, SweepRecord, TrialRecord, TrialState
from small_ledger import sample
from sweep_platform.cli.choose import unconfirmed_note
from sweep_platform.driver import Assignment, Driver, Ended, open_confirmation, open_sweep
from sweep_platform.errors import NoFeasibleTrial
from sweep_platform.evidence import judge_trials, judged_frontier
from sweep_platform.frontier import Frontier
from sweep_platform.home import Home
from sweep_platform.plots.picture import FrontierPicture
from sweep_platform.report import facts
from sweep_platform.spec import SweepSpec
from toybox.sweeps import toy_spec

SEARCH = {"actor.batch": {"choice": [1, 2, 4]}}
PROBLEMS = 100


def spec_of(**confirm: Any) -> SweepSpec:
    return toy_spec(search=SEARCH, budget={"trials": 3}, confirm={"config": {"actor.lr": 0.5}, **confirm})


def play(driver: Driver, chance_of: Callable[[dict[str, Any]], float]) -> None:
    """Run all there is; a run answers each problem rightly with the chance that its config has."""
    while isinstance(assignment := driver.next_trial(), Assignment):
        config = dict(assignment.config)
        rng = random.Random(f"{assignment.number}")
        right = [rng.random() < chance_of(config) for _ in range(PROBLEMS)]
        samples = [sample(i, problem_id=str(i), sample_index=0, correct=r) for i, r in enumerate(right)]
        metrics = {"val/accuracy": sum(right) / PROBLEMS, "val/accuracy_se": 0.05}
        for step in range(1, 4):
            assert driver.report(assignment, told(assignment, step))
        assert driver.report(assignment, told(assignment, 4, metrics=metrics, evaluation=tuple(samples)))
        driver.finish(assignment, Ended())


def searched(ledger: Ledger, home: Home, spec: SweepSpec, chances: dict[int, float]) -> SweepRecord:
    with open_sweep(ledger, spec, home) as driver:
        play(driver, lambda config: chances[config["actor"]["batch"]])
    return driver.sweep


def confirmed(
    ledger: Ledger, home: Home, sweep: SweepRecord, spec: SweepSpec, chances: dict[int, float]
) -> list[TrialRecord]:
    with open_confirmation(ledger, sweep, spec, home) as driver:
        play(driver, lambda config: chances[config["actor"]["batch"]])
    return [trial for trial in ledger.trials(sweep.id) if trial.replicate > 0]


CLEAR = {1: 0.2, 2: 0.5, 4: 0.9}
UNCLEAR = {1: 0.05, 2: 0.6, 4: 0.7}


def test_each_point_of_the_front_runs_again_under_new_seeds_with_the_held_out_config(
    ledger: Ledger, home: Home
) -> None:
    spec = spec_of()
    sweep = searched(ledger, home, spec, CLEAR)
    again = confirmed(ledger, home, sweep, spec, CLEAR)
    assert Counter(trial.params["actor.batch"] for trial in again) == {1: 2, 2: 2, 4: 2}
    for trial in again:
        assert (trial.state, trial.origin) == (TrialState.COMPLETE, "confirm")
        assert trial.config["trainer"]["seed"] == trial.replicate > 0
        assert trial.config["actor"]["lr"] == 0.5, "what `confirm.config` says"
    assert len({trial.number for trial in ledger.trials(sweep.id)}) == 9


def test_points_that_noise_hides_run_again_until_told_apart_or_at_most_so_often(
    ledger: Ledger, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(max_runs=4, apart=4.0)
    sweep = searched(ledger, home, spec, UNCLEAR)
    again = confirmed(ledger, home, sweep, spec, {1: 0.05, 2: 0.61, 4: 0.61})
    runs = Counter(trial.params["actor.batch"] for trial in again)
    assert runs[1] == 2, "it is far from the others"
    assert runs[2] == runs[4] == 4
    assert "after 4 runs each, noise still hides which is better of" in caplog.text


def test_the_front_has_the_confirmed_values_and_says_so(ledger: Ledger, home: Home) -> None:
    spec = spec_of()
    sweep = searched(ledger, home, spec, CLEAR)
    lucky = {1: 0.2, 2: 0.95, 4: 0.5}  # under other seeds the dearest was no better
    confirmed(ledger, home, sweep, spec, lucky)
    trials = ledger.trials(sweep.id)
    judged, is_confirmed = judge_trials(ledger, sweep, trials)
    found = Frontier.of(sweep, trials, judged, confirmed=is_confirmed)
    assert found.confirmed and found.to_json()["confirmed"]
    by_batch = {point.params["actor.batch"]: point for point in found.points}
    assert [point.params["actor.batch"] for point in found.front] == [1, 2]
    assert by_batch[2].values[0] == pytest.approx(0.95, abs=0.05)
    assert by_batch[4].probability == pytest.approx(0.0, abs=0.01)
    assert all(point.runs == 2 for point in found.points)
    assert by_batch[2].errors[0] is not None and by_batch[2].errors[0] > 0.005


def test_without_confirming_runs_the_bootstrap_is_over_problems_alone(ledger: Ledger, home: Home) -> None:
    sweep = searched(ledger, home, spec_of(), CLEAR)
    trials = ledger.trials(sweep.id)
    judged, is_confirmed = judge_trials(ledger, sweep, trials)
    found = Frontier.of(sweep, trials, judged, confirmed=is_confirmed)
    assert not found.confirmed
    assert [point.probability for point in found.points] == [1.0, 1.0, 1.0]
    assert [point.values[0] for point in found.points] == [trial.values[0] for trial in trials if trial.values]


def test_confirming_runs_are_no_candidates_and_cost_the_search_nothing(ledger: Ledger, home: Home) -> None:
    spec = spec_of()
    sweep = searched(ledger, home, spec, CLEAR)
    confirmed(ledger, home, sweep, spec, CLEAR)
    larger = toy_spec(search=SEARCH, budget={"trials": 4}, confirm={"config": {"actor.lr": 0.5}})
    with open_sweep(ledger, larger, home) as driver:
        assert driver.next_trial() is None, "the space has three candidates"
        assert driver.cut_short is not None and "3 candidates, all there are" in driver.cut_short


def test_a_killed_confirmation_goes_on_with_the_run_that_was_left(ledger: Ledger, home: Home) -> None:
    spec = spec_of()
    sweep = searched(ledger, home, spec, CLEAR)
    with pytest.raises(KeyboardInterrupt), open_confirmation(ledger, sweep, spec, home) as driver:
        run(driver, assigned(driver))
        driver.report(left := assigned(driver), told(left, 1))
        raise KeyboardInterrupt
    with open_confirmation(ledger, sweep, spec, home) as again:
        assert assigned(again).number == left.number
    again_runs = confirmed(ledger, home, sweep, spec, CLEAR)
    assert Counter(trial.params["actor.batch"] for trial in again_runs) == {1: 2, 2: 2, 4: 2}
    with open_sweep(ledger, spec, home) as search:
        assert search.finished, "the search leaves the confirming runs alone, too"


def test_what_came_onto_the_front_since_it_was_confirmed_is_told(ledger: Ledger, home: Home) -> None:
    small = toy_spec(search=SEARCH, budget={"trials": 2}, confirm={"config": {"actor.lr": 0.5}})
    sweep = searched(ledger, home, small, CLEAR)
    confirmed(ledger, home, sweep, small, CLEAR)
    assert judged_frontier(ledger, sweep).unconfirmed == ()
    searched(ledger, home, spec_of(), CLEAR)
    found = judged_frontier(ledger, sweep)
    (new,) = [t.number for t in ledger.trials(sweep.id) if t.replicate == 0 and t.number > 1]
    assert found.unconfirmed == (new,) and found.to_json()["unconfirmed"] == [new]
    assert new not in {point.number for point in found.front}
    note = unconfirmed_note(found)
    assert note is not None and f"not confirmed and not shown: {new}; run platform confirm toy@1" in note
    assert f"not confirmed yet: {new}" in FrontierPicture.of(found, None).caption
    assert f"not confirmed yet: {new}." in facts.front(found).note
    confirmed(ledger, home, sweep, spec_of(), CLEAR)
    assert judged_frontier(ledger, sweep).unconfirmed == ()


def test_a_front_that_is_being_confirmed_says_which_points_are_not_yet(ledger: Ledger, home: Home) -> None:
    sweep = searched(ledger, home, spec_of(), CLEAR)
    assert judged_frontier(ledger, sweep).unconfirmed == ()
    with pytest.raises(KeyboardInterrupt), open_confirmation(ledger, sweep, spec_of(), home) as driver:
        assignment = assigned(driver)
        run(driver, assignment)
        raise KeyboardInterrupt
    found = judged_frontier(ledger, sweep)
    assert len(found.front) == 1 and set(found.unconfirmed) == {0, 1, 2} - {found.front[0].number}


def test_a_second_confirmation_has_nothing_to_do(ledger: Ledger, home: Home) -> None:
    spec = spec_of()
    sweep = searched(ledger, home, spec, CLEAR)
    confirmed(ledger, home, sweep, spec, CLEAR)
    with open_confirmation(ledger, sweep, spec, home) as driver:
        assert driver.finished
        assert driver.next_trial() is None


def test_a_sweep_without_a_complete_trial_has_nothing_to_confirm(ledger: Ledger, home: Home) -> None:
    spec = spec_of()
    with open_sweep(ledger, spec, home) as driver:
        pass
    with pytest.raises(NoFeasibleTrial), open_confirmation(ledger, driver.sweep, spec, home):
        pass
