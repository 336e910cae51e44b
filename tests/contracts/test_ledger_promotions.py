"""Which trials were promoted: a history that is only added to, whatever the database."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run_ledger
from alembic import command
from alembic.config import Config
from run_ledger import DriverLease, Ledger, LedgerError, PromotionRecord, TrialState
from small_ledger import started, sweep
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

Book = tuple[Ledger, DriverLease]
EVIDENCE = {"values": {"val/accuracy": 0.5}, "confirming_runs": 2, "problems": {"aime": 30}}

PROMOTE = """
import sys
from run_ledger import Ledger
url, trial = sys.argv[1:]
with Ledger.open(url, patience_s=30) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(5):
        ledger.promote(int(trial), "production", trial, str(turn), evidence={"turn": turn})
"""


def complete(book: Book, number: int) -> int:
    """Id of a new complete trial."""
    ledger, lease = book
    attempt = started(ledger, lease, number)
    return ledger.finish_trial(attempt, TrialState.COMPLETE, values=(0.5, 1.0)).id


def test_a_promotion_comes_back_as_it_was_given(book: Book) -> None:
    ledger, lease = book
    trial = complete(book, 0)
    made = ledger.promote(trial, "production", "ann@host", "the knee", confirmed=True, evidence=EVIDENCE)
    assert ledger.promotions() == ledger.promotions("production") == [made]
    assert ledger.promotions("staging") == []
    assert (made.sweep_id, made.trial_id, made.alias) == (lease.sweep_id, trial, "production")
    assert (made.who, made.why, made.confirmed, made.evidence) == ("ann@host", "the knee", True, EVIDENCE)
    assert (made.previous, made.restores) == (None, None)
    assert ledger.sweep(made.sweep_id).address == "aime@1"


def test_only_a_complete_trial_is_promoted(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    with pytest.raises(LedgerError, match="trial 0, which is running; need a complete trial"):
        ledger.promote(attempt.trial_id, "production", "ann", "too early")
    assert ledger.promotions() == []


def test_the_same_word_again_is_no_second_promotion(book: Book) -> None:
    ledger, _ = book
    first, second = complete(book, 0), complete(book, 1)
    made = ledger.promote(first, "production", "ann", "the knee", evidence=EVIDENCE)
    assert ledger.promote(first, "production", "bob", "me too", evidence=EVIDENCE) == made
    surer = ledger.promote(first, "production", "bob", "confirmed", confirmed=True, evidence=EVIDENCE)
    assert (surer.id > made.id, surer.previous) == (True, None), "a rollback leads to another trial"
    other = ledger.promote(second, "production", "ann", "better", evidence=EVIDENCE)
    again = ledger.promote(first, "production", "ann", "better after all", evidence=EVIDENCE)
    assert [each.previous for each in (other, again)] == [surer.id, other.id]
    staged = ledger.promote(second, "staging", "ann", "to try", evidence=EVIDENCE)
    assert staged.previous is None, "aliases know nothing of one another"
    assert ledger.promotions("production") == [made, surer, other, again]


def test_rollbacks_go_back_step_by_step_and_are_promotions_of_their_own(book: Book) -> None:
    ledger, _ = book
    a, b, c = (
        ledger.promote(complete(book, number), "production", "ann", "why", confirmed=number > 0, evidence={"n": number})
        for number in range(3)
    )
    to_b = ledger.roll_back(c, "bob", "it diverged")
    assert (to_b.trial_id, to_b.confirmed, to_b.evidence, to_b.restores) == (b.trial_id, True, {"n": 1}, b.id)
    assert (to_b.who, to_b.why) == ("bob", "it diverged")
    to_a = ledger.roll_back(to_b, "bob", "worse still")
    assert (to_a.trial_id, to_a.restores, to_a.previous) == (a.trial_id, a.id, None)
    with pytest.raises(LedgerError, match=f"promotion {to_a.id} of production, with no such one to go back to"):
        ledger.roll_back(to_a, "bob", "nothing left")
    to_c = ledger.roll_back(to_a, "bob", "forward again", to=c)
    assert (to_c.trial_id, to_c.previous) == (c.trial_id, b.id)
    assert ledger.promotions() == [a, b, c, to_b, to_a, to_c]


def test_a_rollback_of_what_is_no_longer_current_writes_nothing(book: Book) -> None:
    ledger, _ = book
    _, second, third = (ledger.promote(complete(book, number), "production", "ann", "why") for number in range(3))
    ledger.roll_back(third, "ann", "it diverged")
    with pytest.raises(LedgerError, match="as the current one of production, which another process has changed"):
        ledger.roll_back(third, "bob", "it diverged, I say too")
    foreign = ledger.promote(complete(book, 3), "staging", "ann", "to try")
    current = ledger.promotions("production")[-1]
    for absent in (foreign, replace(second, id=99)):
        with pytest.raises(LedgerError, match="with no such one to go back to"):
            ledger.roll_back(current, "ann", "elsewhere", to=absent)
    assert len(ledger.promotions("production")) == 4


def chain(history: list[PromotionRecord]) -> list[int]:
    """Ids from the latest back to the first, as rollbacks lead."""
    by_id, found = {each.id: each for each in history}, [history[-1].id]
    while (before := by_id[found[-1]].previous) is not None:
        found.append(before)
    return found


def test_processes_that_promote_at_once_lose_none(ledger_url: str, book: Book) -> None:
    ledger, _ = book
    trials = [complete(book, number) for number in range(3)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROMOTE, ledger_url, str(trial)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for trial in trials
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    told = [process.communicate("go\n") for process in processes]
    assert [error for _, error in told] == [""] * 3
    history = ledger.promotions("production")
    assert sorted((each.who, each.why) for each in history) == [
        (str(t), str(turn)) for t in trials for turn in range(5)
    ]
    for before, after in zip(history, history[1:], strict=False):
        expected = before.previous if before.trial_id == after.trial_id else before.id
        assert after.previous == expected, "each knew the one before it"
    assert chain(history)[0] == history[-1].id


def test_exports_that_an_earlier_version_noted_are_no_promotions(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        book = ledger, ledger.acquire_sweep(sweep(ledger).id, "me")
        trials = [complete(book, 0), complete(book, 1)]
    config = Config()
    config.set_main_option("script_location", str(Path(run_ledger.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    with create_engine(ledger_url, poolclass=NullPool).begin() as connection:
        for column in ("confirmed", "evidence", "previous", "restores"):
            connection.execute(text(f"ALTER TABLE ledger_promotions DROP COLUMN {column}"))
        config.attributes["connection"] = connection
        command.stamp(config, "0001", purge=True)
        for trial in (trials[0], trials[1], trials[1]):
            connection.execute(
                text(
                    "INSERT INTO ledger_promotions (sweep_id, trial_id, alias, who, why, at) VALUES "
                    f"(1, {trial}, 'production', 'ann', '--knee, written to best.yaml', '2026-12-01 10:00:00')"
                )
            )
    with Ledger.open(ledger_url) as ledger:
        assert ledger.promotions("production") == []
        noted = ledger.promotions("exported")
        assert [(each.trial_id, each.confirmed, each.evidence) for each in noted] == [(t, False, {}) for t in (1, 2, 2)]
        assert [each.previous for each in noted] == [None, noted[0].id, noted[0].id]
        made = ledger.promote(trials[0], "production", "ann", "the knee")
        assert made.previous is None
