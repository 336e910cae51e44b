"""The default sweep on the simulator, through the real driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_ledger import Ledger, TrialState
from sweep_platform.driver import open_confirmation, open_sweep
from sweep_platform.evidence import judged_frontier
from sweep_platform.executors import make_executor
from sweep_platform.frontier import Frontier
from sweep_platform.home import Home
from sweep_platform.spec import load_spec

SWEEP = Path(__file__).parents[2] / "sweeps" / "aime.yaml"


@pytest.mark.parametrize("pruned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_default_sweep_runs_in_seconds(tmp_path: Path, pruned: bool) -> None:
    overrides = ["trainer=recorded.trainer", "budget.trials=10", "budget.concurrency=1"]
    overrides += ["config.trainer.test_at=[0.25, 0.5]", "pruning={}"] if pruned else []
    spec, home = load_spec(SWEEP, overrides, preflight=True), Home(tmp_path)
    with Ledger.open(home.ledger_url) as ledger, open_sweep(ledger, spec, home) as driver:
        make_executor("inline").run(driver)
        trials = ledger.trials(driver.sweep.id)
        complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        assert len(complete) + sum(trial.state is TrialState.PRUNED for trial in trials) == 10
        assert (len(complete) < 10) == pruned
        front = Frontier.of(driver.sweep, trials).front
        assert all(0.4 < point.values[0] < 0.95 for point in front)
        sweep = driver.sweep
    with Ledger.open(home.ledger_url) as ledger, open_confirmation(ledger, sweep, spec, home) as driver:
        make_executor("inline").run(driver)
        found = judged_frontier(ledger, sweep)
    assert found.confirmed and len(found.front) > 0
    assert all(point.runs >= 2 for point in found.front)
