"""Results of other sweeps that count in this one, and spaces that grow."""

from typing import Any

import pytest
from played import assigned, run
from run_ledger import Ledger, LedgerError, TrialRecord, TrialState
from sweep_platform.driver import Assignment, open_sweep
from sweep_platform.errors import SweepChanged
from sweep_platform.frontier import Frontier
from sweep_platform.home import Home
from sweep_platform.spec import SweepSpec
from toybox.sweeps import toy_spec


def spec_of(batches: list[int], trials: int = 9, **keys: Any) -> SweepSpec:
    return toy_spec(**{"search": {"actor.batch": {"choice": batches}}, "budget": {"trials": trials}, **keys})


def play(ledger: Ledger, home: Home, spec: SweepSpec, **options: Any) -> list[TrialRecord]:
    with open_sweep(ledger, spec, home, **options) as driver:
        while isinstance(assignment := driver.next_trial(), Assignment):
            run(driver, assignment)
    return ledger.trials(driver.sweep.id)


def test_a_choice_that_is_added_makes_a_version_that_keeps_the_trials(
    ledger: Ledger, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    before = play(ledger, home, spec_of([1, 2]))
    after = play(ledger, home, spec_of([1, 2, 4]))
    assert "toy@2 keeps 2 complete trials of toy@1" in caplog.messages
    assert [trial.params["actor.batch"] for trial in after] == [*[t.params["actor.batch"] for t in before], 4]
    assert [trial.origin for trial in after[:2]] == ["from:toy@1/0", "from:toy@1/1"]
    assert [trial.attempts for trial in after] == [0, 0, 1], "only what is new was trained"
    for old, new in zip(before, after, strict=False):
        assert (new.values, new.metrics, new.cost, new.step) == (old.values, old.metrics, old.cost, old.step)
        assert ledger.observations(new.id) == ledger.observations(old.id)
        assert ledger.evaluations(new.id) == ledger.evaluations(old.id)
    sweep = ledger.find_sweep("toy")
    assert sweep is not None and len(Frontier.of(sweep, after).points) == 3
    assert ledger.trials(before[0].sweep_id) == before, "the old version is as it was"


def test_a_killed_growth_is_made_up_for(ledger: Ledger, home: Home) -> None:
    play(ledger, home, spec_of([1, 2]))
    grown = spec_of([1, 2, 4])
    ledger.create_sweep(grown.name, grown.to_dict(), grown.identity(), grown.seed)  # and then it died
    assert [trial.attempts for trial in play(ledger, home, grown)] == [0, 0, 1]


def test_a_parameter_that_is_added_keeps_trials_at_its_base_value(ledger: Ledger, home: Home) -> None:
    play(ledger, home, spec_of([1, 2]))
    search = {"actor.batch": {"choice": [1, 2]}, "actor.lr": {"choice": [0.1, 0.5]}}
    after = play(ledger, home, toy_spec(search=search, budget={"trials": 9}))
    kept = [trial for trial in after if trial.attempts == 0]
    assert [trial.params["actor.lr"] for trial in kept] == [0.1, 0.1]
    assert len(after) == 4


@pytest.mark.parametrize(
    "changed",
    [
        spec_of([1, 3]),
        spec_of([1, 2, 4], run={"total_training_steps": 9}),
        spec_of([1, 2, 4], constraints=["actor.batch < 9"]),
    ],
)
def test_any_other_change_is_refused_as_before(ledger: Ledger, home: Home, changed: SweepSpec) -> None:
    play(ledger, home, spec_of([1, 2]))
    with pytest.raises(SweepChanged, match="got a spec that differs"):
        play(ledger, home, changed)


def test_from_another_sweep_only_what_has_the_same_config_counts(
    ledger: Ledger, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    play(ledger, home, spec_of([1, 2, 3], name="other"))
    other = ledger.find_sweep("other")
    assert other is not None
    found = play(ledger, home, spec_of([2, 3, 4]), sources=[other])
    assert {t.params["actor.batch"]: t.attempts for t in found} == {2: 0, 3: 0, 4: 1}
    longer = play(ledger, home, spec_of([2, 3], name="longer", run={"total_training_steps": 5}), sources=[other])
    assert all(trial.attempts for trial in longer)
    assert "longer@1 keeps 0 complete trials of other@1" in caplog.messages


def test_what_is_taken_over_costs_this_sweep_nothing(ledger: Ledger, home: Home) -> None:
    play(ledger, home, spec_of([1, 2], name="other"))
    other = ledger.find_sweep("other")
    assert other is not None
    found = play(ledger, home, spec_of([1, 2, 4, 8], trials=1), sources=[other])
    assert [trial.attempts for trial in found] == [0, 0, 1]
    dear = play(ledger, home, spec_of([1, 2, 4], name="dear", budget={"trials": 9, "flops": 1e9}), sources=[other])
    assert len(dear) == 3, "the budget was untouched when the one new trial started"


def test_again_nothing_is_taken_twice(ledger: Ledger, home: Home) -> None:
    play(ledger, home, spec_of([1, 2], name="other"))
    other = ledger.find_sweep("other")
    assert other is not None
    first = play(ledger, home, spec_of([1, 2, 4]), sources=[other])
    assert play(ledger, home, spec_of([1, 2, 4]), sources=[other]) == first


def test_only_complete_trials_are_copied(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, spec_of([1]), home) as driver:
        left = assigned(driver)
    sweep = ledger.create_sweep("new", {}, "0" * 64, 0)
    lease = ledger.acquire_sweep(sweep.id, "me")
    with pytest.raises(LedgerError, match="which is waiting; need a complete one"):
        ledger.copy_trial(
            lease, left.trial.id, number=0, params={}, params_hash="h", config={}, values=[0.0], origin="from:toy@1/0"
        )
    assert ledger.trials(sweep.id) == []
    assert TrialState.WAITING is ledger.trial(left.trial.id).state
