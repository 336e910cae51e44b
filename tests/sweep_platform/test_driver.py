"""The driver's decisions, with the executor's part played by hand."""

import math
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from played import assigned, run, told
from run_ledger import Ledger, StaleToken, SweepBusy, TrialState
from sweep_platform.driver import WAIT, Assignment, Crashed, Ended, open_sweep
from sweep_platform.driver.placing import with_trainer
from sweep_platform.errors import SweepChanged
from sweep_platform.home import Home
from toybox.sweeps import Notes, toy_spec


def test_a_sweep_from_its_first_trial_to_its_last(ledger: Ledger, home: Home) -> None:
    notes = Notes()
    spec = toy_spec(budget={"trials": 2})
    with open_sweep(ledger, spec, home, observers=[notes]) as driver:
        first = assigned(driver)
        assert driver.next_trial() is WAIT
        run(driver, first)
        run(driver, assigned(driver))
        assert driver.next_trial() is None
    trials = ledger.trials(driver.sweep.id)
    assert [(t.number, t.state, t.step, t.attempts) for t in trials] == [
        (0, TrialState.COMPLETE, 4, 1),
        (1, TrialState.COMPLETE, 4, 1),
    ]
    assert trials[0].values == (trials[0].metrics["val/accuracy"], trials[0].cost.flops)
    assert trials[0].metrics["cost/flops"] == 4e9 * trials[0].params["actor.batch"]
    assert notes.events[:3] == [
        ("sweep_started", "toy@1", 0),
        ("trial_started", 0, "running"),
        ("trial_reported", 0, 1, 1),
    ]
    assert notes.events[-2:] == [("trial_finished", 1, "complete"), ("sweep_finished", "toy@1", 2)]


def test_the_config_that_runs_has_its_folder_and_threads(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(hardware={"cores": 6}, budget={"concurrency": 2})
    with open_sweep(ledger, spec, home) as driver:
        assignment = assigned(driver)
        place = Path(assignment.config["trainer"]["default_local_dir"])
        assert place.resolve() == home.root.resolve() / "trials" / "toy@1" / "0"
    assert assignment.threads == 3
    assert assignment.config["trainer"]["num_threads"] == 3
    assert ledger.trials(driver.sweep.id)[0].config["trainer"]["default_local_dir"] is None


def test_checkpoints_of_another_ledger_are_set_aside(ledger: Ledger, home: Home) -> None:
    folder = home.root / "trials" / "toy@1" / "0"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    with open_sweep(ledger, toy_spec(), home) as driver:
        assigned(driver)
    assert not folder.exists()
    assert (folder.with_name("0.superseded-1") / "state.json").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "high", None])
@pytest.mark.parametrize("name", ["val/accuracy", "actor/pg_loss"])
def test_what_is_no_finite_number_ends_that_trial_only(ledger: Ledger, home: Home, name: str, value: Any) -> None:
    with open_sweep(ledger, toy_spec(budget={"trials": 2}), home) as driver:
        assignment = assigned(driver)
        assert not driver.report(assignment, told(assignment, 1, metrics={name: value}))
        assert not driver.report(assignment, told(assignment, 2))
        driver.finish(assignment, Ended())
        run(driver, assigned(driver))
        assert driver.next_trial() is None
    bad, good = ledger.trials(driver.sweep.id)
    assert (bad.state, bad.values, bad.step) == (TrialState.FAILED, None, 1)
    assert bad.reason is not None and bad.reason.startswith(f"step 1: {name} is ")
    assert good.state is TrialState.COMPLETE


def test_a_missing_objective_names_what_there_is(ledger: Ledger, home: Home) -> None:
    objectives = [
        {"metric": "val/accuracy", "direction": "maximize"},
        {"metric": "tokens/kept", "direction": "minimize"},
    ]
    with open_sweep(ledger, toy_spec(objectives=objectives), home) as driver:
        run(driver, assigned(driver))
    (trial,) = ledger.trials(driver.sweep.id)
    assert trial.state is TrialState.FAILED
    costs = "cost/device_seconds, cost/flops, cost/tokens"
    assert trial.reason == f"the final report lacks tokens/kept; it has {costs}, val/accuracy"


@pytest.mark.parametrize(
    ("until", "reason"),
    [
        (0, "the trainer returned without a report"),
        (3, "the trainer returned at step 3 of 4, without a final report"),
    ],
)
def test_an_end_before_the_end_is_a_failure(ledger: Ledger, home: Home, until: int, reason: str) -> None:
    with open_sweep(ledger, toy_spec(), home) as driver:
        run(driver, assigned(driver), until=until)
    (trial,) = ledger.trials(driver.sweep.id)
    assert (trial.state, trial.reason, trial.values) == (TrialState.FAILED, reason, None)


def test_a_crash_leaves_one_line_and_a_traceback(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, toy_spec(), home) as driver:
        run(
            driver,
            assigned(driver),
            Crashed("ValueError: too hot", "Traceback …\nValueError: too\nhot"),
            until=1,
        )
    (trial,) = ledger.trials(driver.sweep.id)
    assert (trial.state, trial.reason) == (TrialState.FAILED, "ValueError: too hot")
    assert (home.root / "trials/toy@1/0/traceback.txt").read_text() == "Traceback …\nValueError: too\nhot"


def test_a_bound_on_a_metric_makes_a_trial_infeasible(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, toy_spec(constraints=["cost/tokens <= 3"], budget={"trials": 1}), home) as driver:
        run(driver, assigned(driver))
        assert driver.next_trial() is None, "it ran, so it counts"
    (trial,) = ledger.trials(driver.sweep.id)
    assert (trial.state, trial.reason) == (TrialState.INFEASIBLE, "cost/tokens = 4, not <= 3")


def test_refused_candidates_are_recorded_and_cost_no_budget(ledger: Ledger, home: Home) -> None:
    search = {"actor.shards": {"int": [1, 4]}, "actor.batch": {"int": [1, 4]}}
    notes = Notes()
    with open_sweep(ledger, toy_spec(search=search), home, observers=[notes]) as driver:
        while isinstance(assignment := driver.next_trial(), Assignment):
            run(driver, assignment)
    trials = ledger.trials(driver.sweep.id)
    refused = [trial for trial in trials if trial.state is TrialState.INFEASIBLE]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(trials) - len(refused) == 4 and refused
    assert all(trial.params["actor.shards"] > 1 and trial.attempts == 0 for trial in refused)
    assert refused[0].reason is not None and "actor.shards" in refused[0].reason
    assert ("trial_finished", refused[0].number, "infeasible") in notes.events
    hashes = [trial.params_hash for trial in trials]
    assert len(set(hashes)) == len(hashes)


def test_a_space_smaller_than_the_budget_ends_the_sweep(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(search={"actor.batch": {"int": [1, 3]}}, budget={"trials": 9})
    for _ in range(2):
        with open_sweep(ledger, spec, home) as driver:
            while isinstance(assignment := driver.next_trial(), Assignment):
                run(driver, assignment)
            assert driver.finished
            assert driver.cut_short is not None and "3 candidates, all there are" in driver.cut_short
    assert sorted(trial.params["actor.batch"] for trial in ledger.trials(driver.sweep.id)) == [1, 2, 3]


def test_a_space_without_a_feasible_point_ends_once(ledger: Ledger, home: Home) -> None:
    search = {"actor.shards": {"choice": [2]}, "actor.lr": {"float": [0.1, 0.9]}}
    counts = []
    for _ in range(2):
        with open_sweep(ledger, toy_spec(search=search), home) as driver:
            assert driver.next_trial() is None
            assert driver.cut_short is not None and "actor.shards: got 2" in driver.cut_short
        counts.append(len(ledger.trials(driver.sweep.id)))
    assert counts == [64, 64]


@pytest.mark.parametrize(
    ("currency", "limit", "spent"), [("flops", 40e9, "4.8e+10 of 4e+10"), ("tokens", 9, "12 of 9")]
)
def test_a_budget_in_any_currency_ends_the_sweep(
    ledger: Ledger, home: Home, caplog: pytest.LogCaptureFixture, currency: str, limit: float, spent: str
) -> None:
    spec = toy_spec(search={"actor.lr": {"float": [0.1, 1.0]}}, budget={"trials": 9, currency: limit})
    with open_sweep(ledger, spec, home) as driver:
        while isinstance(assignment := driver.next_trial(), Assignment):
            run(driver, assignment)  # 16 GFLOPs and 4 tokens each
        assert driver.cut_short == f"budget.{currency}: {spent} are spent; no other trial starts"
    assert len(ledger.trials(driver.sweep.id)) == 3
    assert caplog.messages == [driver.cut_short]


def test_with_several_at_once_nothing_starts_once_the_budget_is_spent(ledger: Ledger, home: Home) -> None:
    budget = {"trials": 20, "concurrency": 3, "flops": 40e9}
    with open_sweep(ledger, toy_spec(search={"actor.lr": {"float": [0.1, 1.0]}}, budget=budget), home) as driver:
        out = deque(assigned(driver) for _ in range(3))
        while out:  # 16 GFLOPs each: spent when the third one ends, with two others running
            run(driver, out.popleft())
            if isinstance(assignment := driver.next_trial(), Assignment):
                out.append(assignment)
        assert driver.cut_short == "budget.flops: 8e+10 of 4e+10 are spent; no other trial starts"
    assert len(ledger.trials(driver.sweep.id)) == 5


def test_nothing_starts_after_the_wall_clock(ledger: Ledger, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("sweep_platform.driver.driver.time.monotonic", lambda: now)
    with open_sweep(ledger, toy_spec(budget={"wall_clock": "1m"}), home) as driver:
        assignment = assigned(driver)
        now = 161.0
        assert driver.cut_short is None, "one is running"
        run(driver, assignment)
        assert driver.next_trial() is None
        assert driver.cut_short == "budget.wall_clock: 60 s are over; no other trial starts"
    assert ledger.trials(driver.sweep.id)[0].state is TrialState.COMPLETE


def test_the_wall_clock_runs_from_the_first_trial_on(
    ledger: Ledger, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("sweep_platform.driver.spending.time.monotonic", lambda: now)
    with open_sweep(ledger, toy_spec(budget={"wall_clock": "1m"}), home) as driver:
        now = 900.0  # what the trainer's preparation takes
        assert not driver.finished
        run(driver, assigned(driver))
        now = 959.0
        assignment = assigned(driver)
        now = 961.0
        run(driver, assignment)
        assert driver.next_trial() is None
    with open_sweep(ledger, toy_spec(budget={"wall_clock": "2m"}), home) as driver:
        now = 2000.0
        run(driver, assigned(driver))
        assert len(ledger.trials(driver.sweep.id)) == 3


def play(ledger: Ledger, home: Home, name: str, order: Callable[[list[Assignment]], Assignment]) -> list[Any]:
    """Run a sweep of concurrency 3 in which `order` says which running trial ends next."""
    spec = toy_spec(name=name, budget={"trials": 9, "concurrency": 3}, sampler={"name": "tpe", "n_startup": 2})
    with open_sweep(ledger, spec, home) as driver:
        out: list[Assignment] = []
        while True:
            step = driver.next_trial()
            if isinstance(step, Assignment):
                out.append(step)
            elif out:
                chosen = order(out)
                out.remove(chosen)
                run(driver, chosen)
            else:
                assert step is None
                break
    return [(t.number, dict(t.params), t.values) for t in ledger.trials(driver.sweep.id)]


def test_the_order_in_which_trials_end_changes_nothing(ledger: Ledger, home: Home) -> None:
    oldest_first = play(ledger, home, "a", lambda out: out[0])
    newest_first = play(ledger, home, "b", lambda out: out[-1])
    assert oldest_first == newest_first
    assert len(oldest_first) == 9


def test_a_resumed_sweep_suggests_what_an_unbroken_one_does(ledger: Ledger, home: Home) -> None:
    unbroken = play(ledger, home, "a", lambda out: out[0])
    for _ in range(20):
        spec = toy_spec(name="b", budget={"trials": 9, "concurrency": 3}, sampler={"name": "tpe", "n_startup": 2})
        with open_sweep(ledger, spec, home) as driver:
            out = []
            while len(out) < 3 and isinstance(step := driver.next_trial(), Assignment):
                out.append(step)
            if not out:
                break
            run(driver, out[0])  # the others are handed back
    trials = ledger.trials(driver.sweep.id)
    assert [(t.number, dict(t.params), t.values) for t in trials] == unbroken
    assert max(trial.attempts for trial in trials) > 1


def without_place(assignment: Assignment) -> dict[str, Any]:
    return with_trainer(assignment.config, default_local_dir=None)


def test_what_an_interrupted_driver_left_goes_on_first(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(budget={"trials": 3, "concurrency": 2})
    with pytest.raises(KeyboardInterrupt), open_sweep(ledger, spec, home) as driver:
        first, _second = assigned(driver), assigned(driver)
        driver.report(first, told(first, 1))
        raise KeyboardInterrupt
    assert {trial.state for trial in ledger.trials(driver.sweep.id)} == {TrialState.WAITING}
    with open_sweep(ledger, spec, home) as again:
        one, two = assigned(again), assigned(again)
        assert (one.number, two.number) == (0, 1)
        assert (without_place(one), one.trial.attempts, one.trial.step) == (without_place(first), 2, 1)
        assert not driver.report(first, told(first, 2)), "it is no longer out"
        run(again, one)
        run(again, two)
        run(again, assigned(again))
        assert again.next_trial() is None
    assert [trial.attempts for trial in ledger.trials(driver.sweep.id)] == [2, 2, 1]


def test_an_interrupt_that_some_code_swallows_is_met_again(ledger: Ledger, home: Home) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with open_sweep(ledger, toy_spec(budget={"concurrency": 2}), home) as driver:
        assignment = assigned(driver)
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(KeyboardInterrupt):
                signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            driver.report(assignment, told(assignment, 1))
        with pytest.raises(KeyboardInterrupt):
            driver.next_trial()
    assert signal.getsignal(signal.SIGTERM) is handler
    (trial,) = ledger.trials(driver.sweep.id)
    assert (trial.state, trial.step) == (TrialState.WAITING, 0)


def test_choices_that_no_trial_can_have_are_told(ledger: Ledger, home: Home, caplog: pytest.LogCaptureFixture) -> None:
    search = {"actor.shards": {"choice": [1, 2]}, "actor.batch": {"int": [1, 2]}}
    with open_sweep(ledger, toy_spec(search=search), home) as driver:
        run(driver, assigned(driver))
    reason = "actor.shards: got 2; need at most 1"
    assert caplog.messages == [f"search.actor.shards: 2 is left out, as no trial can have it: {reason}"]


def test_a_report_told_again_after_a_resume_is_recorded_once(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, toy_spec(), home) as driver:
        assignment = assigned(driver)
        for step in (1, 2, 2, 3, 4):
            assert driver.report(assignment, told(assignment, step))
        driver.finish(assignment, Ended())
    (trial,) = ledger.trials(driver.sweep.id)
    assert [observation.step for observation in ledger.observations(trial.id)] == [1, 2, 3, 4]
    assert trial.state is TrialState.COMPLETE


def test_a_changed_spec_is_refused_with_what_changed(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, toy_spec(), home):
        pass
    changed = toy_spec(search={"actor.lr": {"float": [0.02, 1.0], "log": True}}, seed=3)
    with pytest.raises(SweepChanged, match="seed: was 0, is 3") as error, open_sweep(ledger, changed, home):
        pass
    assert "actor.batch" in str(error.value) and "--new" in str(error.value)
    with open_sweep(ledger, changed, home, new=True) as driver:
        assert driver.sweep.address == "toy@2"
    with open_sweep(ledger, changed, home) as driver:
        assert driver.sweep.address == "toy@2"


def test_a_larger_budget_goes_on(ledger: Ledger, home: Home) -> None:
    for trials in (1, 3):
        with open_sweep(ledger, toy_spec(budget={"trials": trials}), home) as driver:
            while isinstance(assignment := driver.next_trial(), Assignment):
                run(driver, assignment)
        assert len(ledger.trials(driver.sweep.id)) == trials


def test_two_drivers_never_run_one_sweep(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, toy_spec(), home), pytest.raises(SweepBusy), open_sweep(ledger, toy_spec(), home):
        pass


def test_a_driver_that_was_taken_for_dead_can_write_no_more(
    ledger: Ledger, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_sweep(ledger, toy_spec(), home) as slow:
        old = assigned(slow)
        monkeypatch.setattr("run_ledger.leases.surely_gone", lambda *_: True)
        with open_sweep(ledger, toy_spec(), home) as quick:
            new = assigned(quick)
            assert (new.number, new.trial.attempts) == (old.number, 2)
            with pytest.raises(StaleToken):
                slow.report(old, told(old, 1))
            with pytest.raises(StaleToken):
                slow.finish(old, Ended())
            run(quick, new)
    (trial,) = ledger.trials(quick.sweep.id)
    assert (trial.state, trial.step) == (TrialState.COMPLETE, 4)


class Broken(Notes):
    def trial_reported(self, trial: Any, step_metrics: Any) -> None:
        raise OSError("the disk is full")


def test_a_broken_observer_is_warned_about_once(ledger: Ledger, home: Home, caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    with open_sweep(ledger, toy_spec(), home, observers=[Broken(), notes]) as driver:
        run(driver, assigned(driver))
    assert ledger.trials(driver.sweep.id)[0].state is TrialState.COMPLETE
    assert caplog.text.count("the disk is full") == 1
    assert len([event for event in notes.events if event[0] == "trial_reported"]) == 4
