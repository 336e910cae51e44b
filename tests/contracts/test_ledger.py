"""What every ledger keeps, whatever the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from run_ledger import CostRecord, DriverLease, EvaluationRecord, Ledger, LedgerError, StaleToken, TrialState
from small_ledger import SPEC, sample, started, step, sweep, trial

Book = tuple[Ledger, DriverLease]


def is_now(at: datetime | None) -> bool:
    return at is not None and at.utcoffset() == timedelta(0) and abs(datetime.now(UTC) - at) < timedelta(minutes=1)


def test_a_sweep_comes_back_as_it_was_given(book: Book) -> None:
    ledger, _ = book
    made = ledger.create_sweep("dialogue", SPEC, "1" * 64, 2**62, None)
    assert ledger.find_sweep("dialogue") == made
    assert (made.spec, list(made.spec), made.seed, made.commit) == (SPEC, list(SPEC), 2**62, None)
    assert is_now(made.created_at)


def test_sweeps_are_found_by_name_and_version(book: Book) -> None:
    ledger, _ = book
    second, other = sweep(ledger), sweep(ledger, "other")
    assert [found.address for found in ledger.sweeps()] == ["aime@1", "aime@2", "other@1"]
    assert ledger.find_sweep("aime") == ledger.find_sweep("aime@2") == second
    assert ledger.find_sweep("other@1") == other
    for nothing in ("aime@3", "aime@", "aime@x", "@1", "", "nosuch"):
        assert ledger.find_sweep(nothing) is None


@pytest.mark.parametrize("name", ["", "a@1"])
def test_a_name_that_no_address_finds_is_refused(book: Book, name: str) -> None:
    with pytest.raises(LedgerError, match="got the sweep name .*; need "):
        sweep(book[0], name)


def test_a_trial_comes_back_as_it_was_given(book: Book) -> None:
    ledger, lease = book
    second, first = trial(ledger, lease, 1), trial(ledger, lease, 0)
    assert ledger.trials(lease.sweep_id) == [first, second]
    assert ledger.trial(second.id) == second
    assert second.config == {"actor": {"lr": 0.1}, "stop": ["a", "b"]}
    assert (second.state, second.step, second.attempts, second.values) == (TrialState.WAITING, 0, 0, None)
    assert second.cost == CostRecord()


def test_a_trial_that_is_refused_ends_at_once(book: Book) -> None:
    ledger, lease = book
    refused = trial(ledger, lease, state=TrialState.INFEASIBLE, reason="TP 2 needs 2 devices")
    assert (refused.state, refused.reason) == (TrialState.INFEASIBLE, "TP 2 needs 2 devices")
    assert is_now(refused.ended_at)


def test_the_same_candidate_is_refused_unless_it_is_a_replicate(book: Book) -> None:
    ledger, lease = book
    trial(ledger, lease)
    for changed in ({"params_hash": "new"}, {"number": 1, "params_hash": "hash 0"}):
        with pytest.raises(LedgerError, match="of trial 0; need a new number"):
            trial(ledger, lease, **changed)
    assert trial(ledger, lease, 1, params_hash="hash 0", replicate=1).replicate == 1
    assert len(ledger.trials(lease.sweep_id)) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_refused_and_nothing_is_written(book: Book, value: object) -> None:
    ledger, lease = book
    with pytest.raises(LedgerError, match="got a value that can't be stored"):
        trial(ledger, lease, params={"lr": value})
    assert ledger.trials(lease.sweep_id) == []


def test_a_number_beyond_64_bits_is_refused_and_nothing_is_written(book: Book) -> None:
    ledger, _ = book
    with pytest.raises(LedgerError, match="got a value that can't be stored .*; need .*64 bits"):
        ledger.create_sweep("other", SPEC, "1" * 64, 2**70, None)
    assert ledger.find_sweep("other") is None


def test_a_version_that_another_process_made_first_is_refused(book: Book) -> None:
    ledger, _ = book
    ledger.create_sweep("raced", SPEC, "1" * 64, 0, version=1)
    with pytest.raises(LedgerError, match="got sweep raced@1, which another process has just started; need raced@1 to"):
        ledger.create_sweep("raced", SPEC, "1" * 64, 0, version=1)
    assert [sweep.version for sweep in ledger.sweeps() if sweep.name == "raced"] == [1]


def test_a_trial_runs_from_start_to_end(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    running = ledger.trial(attempt.trial_id)
    assert (running.state, running.attempts) == (TrialState.RUNNING, 1)
    assert is_now(running.started_at) and is_now(attempt.started_at)
    assert attempt.lease_expires_at > datetime.now(UTC)

    samples = [sample(index, step=2) for index in range(16)]
    step(ledger, attempt, 1)
    step(ledger, attempt, 2, samples=samples, final=True)
    told = ledger.trial(attempt.trial_id)
    assert (told.step, told.total_steps, told.metrics) == (2, 10, {"val/accuracy": 0.2})
    assert told.cost == CostRecord(flops=2e15, tokens=200, device_seconds=1.0)
    one, two = ledger.observations(told.id)
    assert (one.step, one.final, two.step, two.final) == (1, False, 2, True)
    assert one.cost == CostRecord(flops=1e15, tokens=100, device_seconds=0.5)
    assert is_now(one.at)
    assert ledger.evaluations(told.id) == samples

    done = ledger.finish_trial(attempt, TrialState.COMPLETE, values=(0.2, 2e15))
    assert done == ledger.trial(told.id)
    assert (done.state, done.values, done.reason) == (TrialState.COMPLETE, (0.2, 2e15), None)
    assert is_now(done.ended_at)
    (ended,) = ledger.attempts(told.id)
    assert ended.exit_reason == "complete" and is_now(ended.ended_at)


def test_evaluations_are_those_of_the_last_step_that_evaluated(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    assert ledger.evaluations(attempt.trial_id) == []
    step(ledger, attempt, 0, samples=[sample(step=0)])
    step(ledger, attempt, 5, samples=[sample(index, step=5) for index in range(2)])
    step(ledger, attempt, 6)
    assert [(s.step, s.sample_index) for s in ledger.evaluations(attempt.trial_id)] == [(5, 0), (5, 1)]
    assert ledger.evaluations(attempt.trial_id, step=0) == [sample(step=0)]
    assert ledger.evaluations(attempt.trial_id, step=6) == []


def test_shares_of_right_answers_are_those_of_the_last_evaluation_by_problem(book: Book) -> None:
    ledger, lease = book
    attempt, other, silent = (started(ledger, lease, number) for number in range(3))
    step(ledger, attempt, 1, samples=[sample(0, step=1)])
    step(ledger, attempt, 2, samples=[sample(index, step=2) for index in reversed(range(15))])
    step(ledger, attempt, 3)
    step(ledger, other, 4, samples=[sample(0, step=4)])
    step(ledger, silent, 1)
    shares = ledger.shares([attempt.trial_id, other.trial_id, silent.trial_id])
    assert set(shares) == {attempt.trial_id, other.trial_id}
    assert list(shares[attempt.trial_id].items()) == [(("aime", "problem 1"), 2 / 7), (("aime", "problem 0"), 3 / 8)]
    assert shares[other.trial_id] == {("aime", "problem 0"): float(sample(0).correct)}
    assert ledger.shares([silent.trial_id]) == ledger.shares([]) == {}


def test_an_outline_has_the_metrics_that_are_named_and_no_config(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    told = {"val/accuracy": 0.25, "val/accuracy_se": 0.0, "val/acc/mean@32": 0.5, 'a"b': 1e300, "other": 3.0}
    step(ledger, attempt, 1, metrics=told)
    whole = ledger.trial(attempt.trial_id)
    wanted = ["val/accuracy", "val/accuracy_se", "val/acc/mean@32", "missing"]
    (found,) = ledger.outline(whole.sweep_id, wanted)
    assert found.metrics == {name: told[name] for name in wanted if name in told}
    assert replace(found, metrics=told) == replace(whole, config={}, sampler_state={})
    assert [trial.metrics for trial in ledger.outline(whole.sweep_id)] == [{}]


def test_a_step_told_again_is_replaced_with_its_samples(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    step(ledger, attempt, 1, samples=[sample(index, step=1) for index in range(3)])
    step(ledger, attempt, 1, metrics={"val/accuracy": 0.9}, samples=[sample(5, step=1)])
    (observation,) = ledger.observations(attempt.trial_id)
    assert observation.metrics == ledger.trial(attempt.trial_id).metrics == {"val/accuracy": 0.9}
    assert ledger.evaluations(attempt.trial_id) == [sample(5, step=1)]


def test_an_earlier_step_told_again_leaves_the_last_one_standing(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    for number in (1, 2, 1):
        step(ledger, attempt, number)
    assert [observation.step for observation in ledger.observations(attempt.trial_id)] == [1, 2]
    assert ledger.trial(attempt.trial_id).step == 2


def test_a_resumed_attempt_drops_the_branch_that_was_given_up_but_not_its_cost(book: Book) -> None:
    ledger, lease = book
    first = started(ledger, lease)
    for number in (1, 2, 3, 4):
        step(ledger, first, number)
    again = ledger.start_attempt(lease, first.trial_id, host="node", pid=13)
    assert ledger.trial(first.trial_id).step == 4
    step(ledger, again, 3, metrics={"val/accuracy": 0.33})
    told = ledger.trial(first.trial_id)
    assert [observation.step for observation in ledger.observations(told.id)] == [1, 2, 3]
    assert (told.step, told.metrics, told.attempts) == (3, {"val/accuracy": 0.33}, 2)
    assert told.cost == CostRecord(flops=4e15, tokens=400, device_seconds=2.0)


def test_numbers_that_are_not_finite_are_left_out_and_named(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    step(ledger, attempt, 1)
    metrics = {"val/accuracy": 0.5, "actor/pg_loss": float("nan"), "actor/kl": float("-inf"), "note": "high"}
    step(ledger, attempt, 2, metrics=metrics, cost=CostRecord(flops=float("inf"), tokens=300))
    (_, observation) = ledger.observations(attempt.trial_id)
    assert observation.metrics == {"val/accuracy": 0.5}
    assert observation.non_finite == ("actor/pg_loss", "actor/kl", "note", "cost/flops")
    assert observation.cost == CostRecord(tokens=300)
    assert ledger.trial(attempt.trial_id).cost == CostRecord(flops=1e15, tokens=300, device_seconds=0.5)


def test_any_text_that_a_model_samples_can_be_stored(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    odd = sample(prompt="x\0y", response="a\ud800b", answer="é漢😀", ground_truth="'; DROP TABLE ledger_trials; --")
    step(ledger, attempt, 0, samples=[odd], metrics={"val/aimé/accuracy": 0.5})
    (stored,) = ledger.evaluations(attempt.trial_id)
    assert (stored.prompt, stored.response) == ("x\ufffdy", "a?b")
    assert (stored.answer, stored.ground_truth) == (odd.answer, odd.ground_truth)
    failed = ledger.finish_trial(attempt, TrialState.FAILED, reason="bad byte \0")
    assert failed.reason == "bad byte \ufffd" and failed.metrics == {"val/aimé/accuracy": 0.5}


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.FAILED, TrialState.PRUNED, TrialState.INFEASIBLE])
def test_finishing_twice_changes_nothing_and_otherwise_is_refused(book: Book, state: TrialState) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    done = ledger.finish_trial(attempt, state, values=(0.5, 1.0), reason="why")
    assert ledger.finish_trial(attempt, state, values=(0.6, 1.0), reason="other") == done
    other = TrialState.FAILED if state is not TrialState.FAILED else TrialState.PRUNED
    with pytest.raises(StaleToken, match=rf"which ended \({state}\)"):
        ledger.finish_trial(attempt, other)
    with pytest.raises(StaleToken):
        step(ledger, attempt, 1)
    with pytest.raises(LedgerError, match="need an open trial"):
        ledger.start_attempt(lease, done.id, host="node", pid=1)
    assert ledger.trial(done.id) == done


@pytest.mark.parametrize(
    ("state", "values"),
    [
        (TrialState.RUNNING, None),
        (TrialState.COMPLETE, None),
        (TrialState.COMPLETE, (float("nan"), 1.0)),
        (TrialState.INFEASIBLE, (0.5, float("inf"))),
    ],
)
def test_an_ending_that_makes_no_sense_is_refused(
    book: Book, state: TrialState, values: tuple[float, ...] | None
) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    with pytest.raises(LedgerError, match="^got .*; need .*; "):
        ledger.finish_trial(attempt, state, values)
    assert ledger.trial(attempt.trial_id).state is TrialState.RUNNING


def test_an_interrupted_attempt_hands_its_trial_back(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    step(ledger, attempt, 3)
    back = ledger.finish_trial(attempt, TrialState.WAITING)
    assert (back.state, back.step, back.ended_at) == (TrialState.WAITING, 3, None)
    assert ledger.start_attempt(lease, back.id, host="node", pid=1).id != attempt.id
    assert ledger.trial(back.id).attempts == 2


def test_runs_of_the_view_are_noted(book: Book) -> None:
    ledger, lease = book
    added = trial(ledger, lease)
    ledger.set_mlflow_run(sweep_id=lease.sweep_id, run_id="parent")
    ledger.set_mlflow_run(trial_id=added.id, run_id="child")
    found = ledger.find_sweep("aime")
    assert found is not None and found.mlflow_run_id == "parent"
    assert ledger.trial(added.id).mlflow_run_id == "child"


def test_what_is_not_there_is_named(book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    for call in (
        lambda: ledger.trial(99),
        lambda: ledger.sweep(99),
        lambda: ledger.promote(99, "a", "b", "c"),
        lambda: ledger.start_attempt(lease, 99, host="h", pid=1),
        lambda: ledger.acquire_sweep(99, "me"),
        lambda: ledger.set_mlflow_run(sweep_id=99, run_id="r"),
        lambda: ledger.set_mlflow_run(trial_id=99, run_id="r"),
        lambda: ledger.set_mlflow_run(run_id="r"),
        lambda: ledger.set_mlflow_run(run_id="r", sweep_id=lease.sweep_id, trial_id=attempt.trial_id),
    ):
        with pytest.raises(LedgerError, match="^got .*; need .*; "):
            call()
    assert ledger.trials(99) == ledger.observations(99) == ledger.evaluations(99) == ledger.promotions("a") == []


def test_everything_is_there_after_opening_it_again(ledger_url: str, book: Book) -> None:
    ledger, lease = book
    attempt = started(ledger, lease)
    step(ledger, attempt, 1, samples=[sample(index, step=1) for index in range(5)])
    with Ledger.open(ledger_url) as other:
        assert other.sweeps() == ledger.sweeps()
        assert other.trials(lease.sweep_id) == ledger.trials(lease.sweep_id)
        assert other.observations(attempt.trial_id) == ledger.observations(attempt.trial_id)
        samples: list[EvaluationRecord] = other.evaluations(attempt.trial_id)
        assert samples == [sample(index, step=1) for index in range(5)]
