"""Who may write, whatever the database: one driver at a time, and never one that was replaced."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from run_ledger import CostRecord, DriverLease, Ledger, LedgerError, StaleToken, SweepBusy, TrialState
from small_ledger import started, step, sweep, trial

Book = tuple[Ledger, DriverLease]

HOLD = """
import sys, time
from run_ledger import Ledger
ledger = Ledger.open(sys.argv[1])
lease = ledger.acquire_sweep(int(sys.argv[2]), "other", ttl_s=3600)
ledger.start_attempt(lease, int(sys.argv[3]), host="node", pid=1)
print("held", flush=True)
time.sleep(60)
"""


def test_a_live_lease_is_respected_and_its_holder_named(book: Book) -> None:
    ledger, lease = book
    with pytest.raises(SweepBusy) as refused:
        ledger.acquire_sweep(lease.sweep_id, "you")
    said = str(refused.value)
    for part in ("aime@1", "me", lease.host, str(os.getpid()), f"{lease.expires_at:%H:%M:%S} UTC", "; need "):
        assert part in said
    step(ledger, started(ledger, lease), 1)


def test_a_lease_that_ran_out_can_be_taken_and_the_old_holder_is_fenced_off(book: Book) -> None:
    ledger, _ = book
    other = sweep(ledger, "other")
    old = ledger.acquire_sweep(other.id, "old", ttl_s=0.05)
    attempt = started(ledger, old)
    old = ledger.renew(old)
    time.sleep(0.1)
    new = ledger.acquire_sweep(other.id, "new")
    assert new.token > old.token
    before = ledger.trials(other.id)
    writes: list[Callable[[], object]] = [
        lambda: ledger.renew(old),
        lambda: ledger.release(old),
        lambda: trial(ledger, old, 1),
        lambda: ledger.start_attempt(old, attempt.trial_id, host="h", pid=1),
        lambda: ledger.reconcile(old),
        lambda: step(ledger, attempt, 1),
        lambda: ledger.finish_trial(attempt, TrialState.FAILED),
    ]
    for write in writes:
        with pytest.raises(StaleToken, match="^got .*; need .*; "):
            write()
    assert ledger.trials(other.id) == before
    assert ledger.observations(attempt.trial_id) == []
    trial(ledger, new, 1)


def test_a_lease_that_ran_out_but_that_nobody_took_still_writes(book: Book) -> None:
    ledger, _ = book
    lease = ledger.acquire_sweep(sweep(ledger, "other").id, "me", ttl_s=0.01)
    time.sleep(0.02)
    trial(ledger, lease)


def test_every_write_renews_the_lease(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    step(ledger, attempt, 1)
    (renewed,) = ledger.attempts(attempt.trial_id)
    assert renewed.lease_expires_at > attempt.lease_expires_at
    assert ledger.renew(lease).expires_at > lease.expires_at
    assert ledger.renew(lease).expires_at - lease.expires_at < timedelta(seconds=60)


def test_a_lease_that_was_given_back_is_free_and_useless(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    ledger.release(lease)
    with pytest.raises(StaleToken):
        step(ledger, attempt, 1)
    with pytest.raises(StaleToken):
        trial(ledger, lease, 1)
    assert ledger.acquire_sweep(lease.sweep_id, "you").token == lease.token + 1


def test_a_killed_driver_is_replaced_at_once_and_its_trials_wait_again(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        held = sweep(ledger)
        lease = ledger.acquire_sweep(held.id, "me")
        waiting, done = trial(ledger, lease, 0), started(ledger, lease, 1)
        ledger.finish_trial(done, TrialState.COMPLETE, values=(0.5, 1.0))
        ledger.release(lease)
        command = [sys.executable, "-c", HOLD, ledger_url, str(held.id), str(waiting.id)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "held\n"
            with pytest.raises(SweepBusy, match="other"):
                ledger.acquire_sweep(held.id, "me")
            driver.kill()
        lease = ledger.acquire_sweep(held.id, "me")
        (back,) = ledger.reconcile(lease)
        assert (back.id, back.state, back.attempts) == (waiting.id, TrialState.WAITING, 1)
        assert [attempt.exit_reason for attempt in ledger.attempts(waiting.id)] == ["lost"]
        assert ledger.trial(done.trial_id).state is TrialState.COMPLETE
        assert ledger.reconcile(lease) == []


def test_reconcile_leaves_its_own_attempts_alone(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    assert ledger.reconcile(lease) == []
    step(ledger, attempt, 1)


def test_a_second_attempt_supersedes_the_first(book: Book) -> None:
    ledger, lease = book
    first = started(ledger, lease)
    second = ledger.start_attempt(lease, first.trial_id, host="node", pid=13)
    with pytest.raises(StaleToken, match="superseded"):
        step(ledger, first, 1)
    with pytest.raises(StaleToken, match="superseded"):
        ledger.finish_trial(first, TrialState.COMPLETE, values=(1.0,))
    step(ledger, second, 1)
    assert [attempt.exit_reason for attempt in ledger.attempts(first.trial_id)] == ["superseded", None]


def test_a_trial_of_another_sweep_is_out_of_reach(book: Book) -> None:
    ledger, lease = book
    other = ledger.acquire_sweep(sweep(ledger, "other").id, "me")
    theirs = trial(ledger, other)
    with pytest.raises(LedgerError, match="need an open trial of sweep id"):
        ledger.start_attempt(lease, theirs.id, host="node", pid=1)


def at_once(tasks: int, task: Callable[[], object]) -> list[object]:
    """What `task` returns or raises in so many threads that start together."""
    results: list[object] = []
    barrier = threading.Barrier(tasks)

    def run() -> None:
        barrier.wait()
        try:
            results.append(task())
        except LedgerError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_of_drivers_that_come_at_once_one_gets_the_sweep(book: Book) -> None:
    ledger, _ = book
    free = sweep(ledger, "free")
    results = at_once(6, lambda: ledger.acquire_sweep(free.id, "me"))
    assert len([result for result in results if isinstance(result, DriverLease)]) == 1
    assert len([result for result in results if isinstance(result, SweepBusy)]) == 5


def test_sweeps_made_at_once_get_versions_of_their_own(book: Book) -> None:
    ledger, _ = book
    at_once(6, lambda: sweep(ledger, "new"))
    assert [made.version for made in ledger.sweeps() if made.name == "new"] == [1, 2, 3, 4, 5, 6]


def test_threads_report_at_once(book: Book) -> None:
    ledger, lease = book
    attempts = [started(ledger, lease, number) for number in range(4)]
    left = list(attempts)

    def report() -> None:
        attempt = left.pop()
        for number in range(5):
            ledger.record_step(
                attempt, step=number, total_steps=4, metrics={"m": number}, cost=CostRecord(tokens=number)
            )

    assert at_once(4, report) == [None] * 4
    assert [len(ledger.observations(attempt.trial_id)) for attempt in attempts] == [5] * 4
