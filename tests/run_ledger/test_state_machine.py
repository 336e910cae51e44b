"""Any sequence of calls leaves what a few dictionaries say it should."""

import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from run_ledger import AttemptRecord, CostRecord, DriverLease, Ledger, LedgerError, StaleToken, SweepBusy, TrialState
from small_ledger import sample, sweep, trial

ENDINGS = [state for state in TrialState if state is not TrialState.RUNNING]


@dataclass
class Try:
    """What an attempt should be."""

    trial: int
    token: int
    ended: str | None = None


@dataclass
class Candidate:
    """What a trial should be."""

    state: TrialState = TrialState.WAITING
    attempts: int = 0
    tokens: int = 0
    steps: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    """By step: attempt, metric, samples."""


class LedgerMachine(RuleBasedStateMachine):
    leases = Bundle("leases")
    trials = Bundle("trials")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{self.folder.name}/ledger.db"
        self.ledger = Ledger.open(self.url)
        self.sweep = sweep(self.ledger)
        self.token, self.held, self.expires = 0, False, True
        self.candidates: dict[int, Candidate] = {}
        self.tries: dict[int, Try] = {}

    def teardown(self) -> None:
        try:
            self.check_details()
        finally:
            self.ledger.close()
            self.folder.cleanup()

    def holds(self, lease: DriverLease) -> bool:
        return self.held and lease.token == self.token

    def writes(self, attempt: AttemptRecord) -> bool:
        tried = self.tries[attempt.id]
        return self.held and tried.token == self.token and tried.ended is None

    def end(self, trial_id: int, reason: str, *, but: int | None = None) -> bool:
        """End the trial's open attempt, unless it has the token `but`; say whether there was one."""
        for tried in self.tries.values():
            if tried.trial == trial_id and tried.ended is None and tried.token != but:
                tried.ended = reason
                return True
        return False

    @initialize(target=leases)
    def first(self) -> DriverLease:
        self.token, self.held = 1, True
        return self.ledger.acquire_sweep(self.sweep.id, "me", ttl_s=0.0)

    @rule(target=leases, long=st.booleans())
    def acquire(self, long: bool) -> DriverLease:
        if self.held and not self.expires:
            with pytest.raises(SweepBusy):
                self.ledger.acquire_sweep(self.sweep.id, "you", ttl_s=60)
            self.held = False
            self.ledger.release(self.last)
        self.last = self.ledger.acquire_sweep(self.sweep.id, "you", ttl_s=60 if long else 0.0)
        self.token, self.held, self.expires = self.token + 1, True, not long
        assert self.last.token == self.token
        return self.last

    @rule(lease=leases)
    def release(self, lease: DriverLease) -> None:
        if self.holds(lease):
            self.ledger.release(lease)
            self.held = False
        else:
            with pytest.raises(StaleToken):
                self.ledger.release(lease)

    @rule(target=trials, lease=leases)
    def add(self, lease: DriverLease) -> int:
        number = len(self.candidates)
        if not self.holds(lease):
            with pytest.raises(StaleToken):
                trial(self.ledger, lease, number)
            lease = self.acquire(long=False)
        added = trial(self.ledger, lease, number)
        self.candidates[added.id] = Candidate()
        return added.id

    @rule(target=attempts, lease=leases, trial_id=trials)
    def start(self, lease: DriverLease, trial_id: int) -> AttemptRecord | None:
        candidate = self.candidates[trial_id]
        if not self.holds(lease) or candidate.state.final:
            with pytest.raises(LedgerError if self.holds(lease) else StaleToken):
                self.ledger.start_attempt(lease, trial_id, host="node", pid=1)
            lease = self.acquire(long=False)
            if candidate.state.final:
                trial_id = self.add(lease)
                candidate = self.candidates[trial_id]
        self.end(trial_id, "superseded")
        attempt = self.ledger.start_attempt(lease, trial_id, host="node", pid=1)
        self.tries[attempt.id] = Try(trial_id, self.token)
        candidate.state, candidate.attempts = TrialState.RUNNING, candidate.attempts + 1
        return attempt

    @rule(
        attempt=attempts,
        step=st.integers(0, 5),
        metric=st.floats(allow_nan=False, allow_infinity=False),
        tokens=st.integers(0, 2**53),
        samples=st.integers(0, 3),
    )
    def report(self, attempt: AttemptRecord, step: int, metric: float, tokens: int, samples: int) -> None:
        def told() -> None:
            self.ledger.record_step(
                attempt,
                step=step,
                total_steps=5,
                metrics={"m": metric},
                cost=CostRecord(tokens=tokens),
                samples=[sample(index, step=step) for index in range(samples)],
            )

        if not self.writes(attempt):
            with pytest.raises(StaleToken):
                told()
            return
        told()
        candidate = self.candidates[attempt.trial_id]
        kept = {at: row for at, row in candidate.steps.items() if at <= step or row[0] == attempt.id}
        candidate.steps = kept | {step: (attempt.id, metric, samples)}
        candidate.tokens = max(candidate.tokens, tokens)

    @rule(attempt=attempts, state=st.sampled_from(ENDINGS))
    def finish(self, attempt: AttemptRecord, state: TrialState) -> None:
        tried = self.tries[attempt.id]
        if tried.ended == state.value or self.writes(attempt):
            done = self.ledger.finish_trial(attempt, state, values=(0.5,))
            if tried.ended is None:
                tried.ended = state.value
                self.candidates[attempt.trial_id].state = state
            assert done.state is self.candidates[attempt.trial_id].state
        else:
            with pytest.raises(StaleToken):
                self.ledger.finish_trial(attempt, state, values=(0.5,))

    @rule(lease=leases)
    def reconcile(self, lease: DriverLease) -> None:
        if not self.holds(lease):
            with pytest.raises(StaleToken):
                self.ledger.reconcile(lease)
            return
        back = [trial_id for trial_id in self.candidates if self.end(trial_id, "lost", but=self.token)]
        assert [record.id for record in self.ledger.reconcile(lease)] == back
        for trial_id in back:
            self.candidates[trial_id].state = TrialState.WAITING

    @rule()
    def open_again(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.url)

    @invariant()
    def the_ledger_says_the_same(self) -> None:
        found = self.ledger.trials(self.sweep.id)
        assert [record.id for record in found] == list(self.candidates)
        for record in found:
            candidate = self.candidates[record.id]
            assert (record.state, record.attempts, record.cost.tokens) == (
                candidate.state,
                candidate.attempts,
                candidate.tokens,
            )
            last = max(candidate.steps, default=0)
            assert record.step == last
            assert record.metrics == ({"m": candidate.steps[last][1]} if candidate.steps else {})
            assert (record.ended_at is not None) is record.state.final

    def check_details(self) -> None:
        """What is too slow to look at after each call."""
        for trial_id, candidate in self.candidates.items():
            told = {o.step: o.metrics["m"] for o in self.ledger.observations(trial_id)}
            assert told == {step: metric for step, (_, metric, _) in sorted(candidate.steps.items())}
            for step, (_, _, samples) in candidate.steps.items():
                assert len(self.ledger.evaluations(trial_id, step)) == samples
            exits = [tried.ended for tried in self.tries.values() if tried.trial == trial_id]
            assert [attempt.exit_reason for attempt in self.ledger.attempts(trial_id)] == exits


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, derandomize=True)
