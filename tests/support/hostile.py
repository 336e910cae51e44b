"""A finished toy sweep whose names and answers try to run as code wherever they are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from run_ledger import CostRecord, EvaluationRecord, Ledger, SweepRecord
from sweep_platform.search import params_hash
from toybox.sweeps import toy_spec

HACK = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>{{ 7 * 7 }}"
TRIALS = 10
_ACCOUNT = {"trained": 400.0, "masked": 20.0, "filtered": 300.0, "surplus": 80.0, "evaluation": 200.0}


def hostile_sweep(ledger: Ledger, name: str = "toy") -> SweepRecord:
    """Ten trials, as a driver would record them; `HACK` is a choice, an origin, a reason, an author and an answer."""
    spec = toy_spec(budget={"trials": TRIALS}).to_dict()
    spec["search"]["trainer.fault"] = {"choice": ["", HACK]}
    sweep = ledger.create_sweep(name, spec, "0" * 64, 0, HACK)
    lease = ledger.acquire_sweep(sweep.id, "test")
    for number in range(TRIALS):
        params = {
            "actor.lr": 0.02 * (number + 1),
            "actor.batch": 1 + number % 8,
            "trainer.fault": ["", HACK][number % 2],
        }
        trial = ledger.add_trial(
            lease,
            number=number,
            params=params,
            params_hash=params_hash(params),
            config={},
            origin=f"prior:{HACK}" if number == 0 else "random",
            sampler_state={},
        )
        attempt = ledger.start_attempt(lease, trial.id, host="here", pid=1)
        values = 0.3 + 0.04 * number, 1e9 * (1 + number % 8)
        metrics = {"val/accuracy": values[0], "val/accuracy_se": 0.02, "perf/throughput": 900.0, "filter/rounds": 2.0}
        account = {f"tokens_total/{part}": count for part, count in _ACCOUNT.items()}
        ledger.record_step(
            attempt,
            step=4,
            total_steps=4,
            metrics=metrics | account,
            cost=CostRecord(flops=values[1], tokens=800),
            samples=[replace(_sample(i), correct=i % 2 == 0) for i in range(6)],
            final=True,
        )
        ledger.finish_trial(attempt, trial.state.COMPLETE, values)
    refused = {"actor.lr": 0.5, "actor.batch": 8}
    ledger.add_trial(
        lease,
        number=TRIALS,
        params=refused,
        params_hash=params_hash(refused),
        config={},
        origin="random",
        sampler_state={},
        state=trial.state.INFEASIBLE,
        reason=HACK,
    )
    ledger.promote(ledger.trials(sweep.id)[7].id, "production", HACK, HACK)
    ledger.release(lease)
    return sweep


def _sample(index: int) -> EvaluationRecord:
    return EvaluationRecord(4, HACK, f"p{index}", 0, HACK, HACK, HACK, HACK, True, 3)


def report_of(folder: Path) -> Path:
    """The sweep's report, in a folder of its own."""
    from sweep_platform.report import write_report

    with Ledger.open(f"sqlite:///{folder}/ledger.db") as ledger:
        write_report(ledger, hostile_sweep(ledger), folder / "toy.html")
    return folder / "toy.html"
