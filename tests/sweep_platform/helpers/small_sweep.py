"""A small sweep in a real ledger, step by step, as a driver would write it."""

from __future__ import annotations

from run_ledger import CostRecord, EvaluationRecord, TrialState

STEPS = 4
SPEC = {
    "name": "aime",
    "trainer": "toy",
    "objectives": [
        {"metric": "val/accuracy", "direction": "maximize"},
        {"metric": "cost/flops", "direction": "minimize"},
    ],
    "search": {"skill": {"float": [0.0, 1.0]}},
    "budget": {"trials": 4},
}


class SmallSweep:
    """Writes trials into a ledger and tells an observer."""

    def __init__(self, ledger, observer=None, sweep=None):
        self.ledger = ledger
        self.observer = observer
        self.sweep = sweep or ledger.create_sweep("aime", SPEC, "0" * 64, 7, "c0ffee")
        self.lease = ledger.acquire_sweep(self.sweep.id, "test")
        self.attempts = {}
        if sweep:
            ledger.reconcile(self.lease)
        self._tell("sweep_started", self.sweep, None, ledger.trials(self.sweep.id))

    def _tell(self, event, *args):
        if self.observer is not None:
            getattr(self.observer, event)(*args)

    def add(self, number, **changes):
        config = {
            "skill": number / 10,
            "prompt": "x" * 9000,
            "trainer": {"total_training_steps": STEPS, "seed": 0},
        }
        return self.ledger.add_trial(
            self.lease,
            number=number,
            params={"skill": number / 10},
            params_hash=f"h{number}",
            config=config,
            origin="prior:published" if number == 0 else "tpe",
            sampler_state={},
            **changes,
        )

    def start(self, trial):
        self.attempts[trial.number] = self.ledger.start_attempt(self.lease, trial.id, host="here", pid=1)
        self._tell("trial_started", self.ledger.trial(trial.id))

    def report(self, trial, step, extra=None):
        final = step == STEPS
        metrics = {"actor/entropy": 1.0 / (step + 1), "val/acc/mean@4": 0.1 * step, "val/acc/mean_at_4": 0.5}
        metrics |= {"filter/yield": 0.7, **(extra or {})}
        if final:
            metrics |= {"val/accuracy": 0.3 + 0.1 * trial.number, "val/accuracy_se": 0.02}
        self.ledger.record_step(
            self.attempts[trial.number],
            step=step,
            total_steps=STEPS,
            metrics=metrics,
            cost=CostRecord(flops=1e12 * step * (trial.number + 1), tokens=100 * step, device_seconds=0.5 * step),
            samples=samples(step) if final else (),
            final=final,
        )
        self._tell("trial_reported", self.ledger.trial(trial.id), None)

    def finish(self, trial, state=TrialState.COMPLETE, reason=None):
        values = (0.3 + 0.1 * trial.number, 1e12 * STEPS * (trial.number + 1)) if state == "complete" else None
        self.ledger.finish_trial(self.attempts[trial.number], state, values=values, reason=reason)
        self._tell("trial_finished", self.ledger.trial(trial.id))

    def whole_trial(self, number, extra=None):
        trial = self.add(number)
        self.start(trial)
        for step in range(STEPS + 1):
            self.report(trial, step, extra)
        self.finish(trial)
        return trial

    def run(self):
        """Two complete trials, one that failed at step 2, and one that was refused."""
        self.whole_trial(0)
        self.whole_trial(1)
        failed = self.add(2)
        self.start(failed)
        for step in range(3):
            self.report(failed, step)
        self.finish(failed, TrialState.FAILED, "actor/pg_loss is nan")
        refused = self.add(3, state=TrialState.INFEASIBLE, reason="size 2 needs 2 devices")
        self._tell("trial_finished", refused)
        self.end()

    def end(self):
        self._tell("sweep_finished", self.sweep, self.ledger.trials(self.sweep.id))

    def leave(self):
        self.ledger.release(self.lease)


def samples(step):
    """Two problems of four answers each, every other one right."""
    return [
        EvaluationRecord(step, "arithmetic", f"p{p}", k, f"{p}+{k}=", f"it is {p + k}", "1", "1", (p + k) % 2 == 0, 9)
        for p in range(2)
        for k in range(4)
    ]
