"""Trials that end badly: whose fault it was decides whether they are tried again, and what the search makes of it."""

import pytest
from played import assigned, run, told
from run_ledger import Ledger, TrialState
from sweep_platform.driver import WAIT, Crashed, Ended, Lost, Outcome, open_sweep
from sweep_platform.driver.failures import machine_fault
from sweep_platform.errors import PlatformError
from sweep_platform.home import Home
from sweep_platform.search import Searcher
from sweep_platform.search.samplers import Verdict
from toybox.sweeps import Notes, toy_spec

LOST = Lost("killed by signal 9")
NO_MEMORY = Crashed("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "Traceback …")
BAD_CONFIG = Crashed("ValueError: too hot", "Traceback …")
DISK = Crashed("CheckpointError: /x can't be written ([Errno 28] No space left on device)", "Traceback …")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep_platform.driver.driver.BACKOFF_S", (0.0, 0.0))


@pytest.mark.parametrize(
    ("outcome", "machine"),
    [
        (LOST, True),
        (NO_MEMORY, True),
        (DISK, True),
        (Crashed("MemoryError", ""), True),
        (
            Crashed("RuntimeError: DefaultCPUAllocator: can't allocate memory", ""),
            True,
        ),
        (Crashed("OSError: [Errno 5] Input/output error", ""), True),
        (Crashed("DistBackendError: NCCL error in: x.cpp:1", ""), True),
        (BAD_CONFIG, False),
        (Crashed("SamplingExhausted: no group had a spread", ""), False),
        (Crashed("NonFinite: the loss is NaN", ""), False),
        (Ended(), False),
    ],
)
def test_a_machine_that_fails_is_told_from_a_bad_config(outcome: Outcome, machine: bool) -> None:
    assert (machine_fault(outcome) is not None) is machine


@pytest.mark.parametrize("outcome", [LOST, NO_MEMORY])
def test_what_a_machine_failed_goes_on_from_its_checkpoint_after_a_pause(
    ledger: Ledger, home: Home, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with open_sweep(ledger, toy_spec(budget={"trials": 1}), home) as driver:
        for attempt, pause in ((1, 1.0), (2, 8.0)):
            assignment = assigned(driver)
            assert (assignment.number, assignment.trial.attempts) == (0, attempt)
            driver.report(assignment, told(assignment, attempt))
            driver.finish(assignment, outcome)
            assert driver.next_trial() is WAIT
            assert not driver.finished
            now += pause
        run(driver, assigned(driver))
        assert driver.next_trial() is None
    (trial,) = ledger.trials(driver.sweep.id)
    assert (trial.state, trial.attempts) == (TrialState.COMPLETE, 3)


def test_a_trial_that_waits_for_its_next_attempt_does_not_run(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(budget={"trials": 1})
    with pytest.raises(KeyboardInterrupt), open_sweep(ledger, spec, home) as driver:
        driver.finish(assigned(driver), LOST)
        assert driver.next_trial() is WAIT
        assert [trial.state for trial in ledger.trials(driver.sweep.id)] == [TrialState.WAITING]
        assert driver.trials[0].state is TrialState.WAITING
        raise KeyboardInterrupt
    assert [(t.state, t.attempts) for t in ledger.trials(driver.sweep.id)] == [(TrialState.WAITING, 1)]
    with open_sweep(ledger, spec, home) as again:
        assert assigned(again).number == 0


@pytest.mark.usefixtures("no_pause")
def test_a_lost_trial_says_nothing_of_its_config_and_is_taken_up_by_the_next_run(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(budget={"trials": 2})
    with open_sweep(ledger, spec, home) as driver:
        for _ in range(3):
            driver.finish(assigned(driver), LOST)
        run(driver, assigned(driver))
        assert driver.next_trial() is None
    lost, good = ledger.trials(driver.sweep.id)
    assert (lost.state, lost.reason) == (TrialState.LOST, "lost 3 times; the last time, killed by signal 9")
    assert good.state is TrialState.COMPLETE
    searcher = Searcher(spec)
    searcher.tell(lost)
    assert searcher._told[0].verdict is Verdict.UNKNOWN
    assert searcher.ask(1).params != lost.params, "not suggested again as another trial"

    with open_sweep(ledger, spec, home) as again:
        assert not again.finished
        assignment = assigned(again)
        assert assignment.number == 0
        run(again, assignment)
        assert again.next_trial() is None
    assert [trial.state for trial in ledger.trials(driver.sweep.id)] == [TrialState.COMPLETE] * 2


def test_a_bad_config_is_not_tried_again_unless_one_asks(ledger: Ledger, home: Home) -> None:
    spec = toy_spec(budget={"trials": 1})
    for retry_failed, attempts in ((False, 1), (False, 1), (True, 2)):
        with open_sweep(ledger, spec, home, retry_failed=retry_failed) as driver:
            step = driver.next_trial()
            if step is not None and step is not WAIT:
                driver.finish(step, BAD_CONFIG)
            assert driver.next_trial() is None
        (trial,) = ledger.trials(driver.sweep.id)
        assert (trial.state, trial.attempts, trial.reason) == (TrialState.FAILED, attempts, "ValueError: too hot")


def test_a_full_disk_ends_the_sweep_and_costs_no_trial(ledger: Ledger, home: Home) -> None:
    notes = Notes()
    spec = toy_spec(budget={"trials": 2})
    with pytest.raises(PlatformError, match="No space left on device.*free some, then run the same command") as caught:
        with open_sweep(ledger, spec, home, observers=[notes]) as driver:
            driver.finish(assigned(driver), DISK)
    assert caught.value.exit_code == 1
    (trial,) = ledger.trials(driver.sweep.id)
    assert (trial.state, trial.attempts) == (TrialState.WAITING, 1)
    with open_sweep(ledger, spec, home) as again:
        assert assigned(again).number == 0
