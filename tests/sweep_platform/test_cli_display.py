"""What a terminal shows while a sweep runs."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from run_ledger.records import CostRecord, SweepRecord, TrialRecord, TrialState
from sweep_platform.cli.display import LiveDisplay, PlainDisplay, display
from toybox.sweeps import toy_spec
from toybox.trainer import Cost, Step

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SWEEP = SweepRecord(1, "toy", 1, {}, "id", 0, None, NOW, None)


@dataclass
class Screen:
    """A terminal of a given height, and a display on it."""

    height: int = 24
    trials: int = 4

    def __post_init__(self) -> None:
        self.console = Console(
            file=io.StringIO(), force_terminal=True, width=160, height=self.height, color_system=None
        )
        self.display = LiveDisplay(self.console)
        self.display.sweep_started(SWEEP, toy_spec(budget={"trials": self.trials}), [])

    def lines(self) -> list[str]:
        with self.console.capture() as capture:
            self.console.print(self.display._render())
        return capture.get().splitlines()


def trial(number: int, state: TrialState, **changed: Any) -> TrialRecord:
    given: dict[str, Any] = {
        "id": number,
        "sweep_id": 1,
        "number": number,
        "state": state,
        "params": {"actor.lr": 0.1},
        "params_hash": str(number),
        "replicate": 0,
        "origin": "random",
        "sampler_state": {},
        "config": {},
        "values": None,
        "metrics": {},
        "cost": CostRecord(),
        "step": 0,
        "total_steps": 4,
        "reason": None,
        "attempts": 1,
        "started_at": NOW,
        "ended_at": NOW + timedelta(seconds=30),
        "mlflow_run_id": None,
    }
    return TrialRecord(**{**given, **changed})


def test_a_row_has_state_step_accuracy_cost_yield_and_time_to_go() -> None:
    screen = Screen()
    running = trial(0, TrialState.RUNNING)
    screen.display.trial_started(running)
    for step in (1, 2):
        metrics = {"val/accuracy": 0.25 * step, "val/accuracy_se": 0.02, "filter/yield": 0.75}
        screen.display.trial_reported(running, Step(step, 4, metrics, Cost(flops=2e9 * step)))
    (row,) = (line for line in screen.lines() if "running" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:6] == ["0", "running", "2/4", "0.500 ± 0.020", "4 GFLOPs", "0.75"]
    assert cells[6].endswith("s") and cells[7] == "lr=0.1"


def test_finished_and_refused_trials_and_the_time_of_the_sweep() -> None:
    screen = Screen()
    for number, state in enumerate([TrialState.COMPLETE, TrialState.FAILED, TrialState.INFEASIBLE]):
        refused = state is TrialState.INFEASIBLE
        reason = None if state is TrialState.COMPLETE else "the loss is nan"
        screen.display.trial_finished(
            trial(number, state, reason=reason, step=0 if refused else 4, attempts=0 if refused else 1)
        )
    text = "\n".join(screen.lines())
    assert "toy@1: 2/4 trials" in text and "about 1m 00s to go" in text and "1 refused as infeasible" in text
    assert "the loss is nan" in text and "infeasible │" not in text


@pytest.mark.parametrize("height", [10, 24, 60])
def test_the_table_fits_and_what_runs_is_seen(height: int) -> None:
    screen = Screen(height=height, trials=50)
    screen.display.trial_started(trial(0, TrialState.RUNNING))
    for number in range(1, 40):
        screen.display.trial_finished(trial(number, TrialState.COMPLETE, step=4))
    lines = screen.lines()
    assert len(lines) < height
    assert any("running" in line for line in lines), "the first one still runs"
    assert sum("complete" in line for line in lines) == max(2, height - 9) if height < 60 else 39
    assert ("earlier ones not shown" in lines[0]) == (height < 60)


def test_the_objectives_of_the_sweep_are_shown() -> None:
    told: list[str] = []
    plain = PlainDisplay(told.append)
    objectives = [
        {"metric": "cost/tokens", "direction": "minimize"},
        {"metric": "val/aime/accuracy", "direction": "maximize"},
    ]
    plain.sweep_started(SWEEP, toy_spec(objectives=objectives), [])
    metrics = {"val/accuracy": 0.9, "val/aime/accuracy": 0.3, "val/aime/accuracy_se": 0.01}
    plain.trial_reported(trial(0, TrialState.RUNNING), Step(1, 4, metrics, Cost(flops=5e9, tokens=70)))
    assert told[-1].endswith("trial 0 step 1/4: accuracy 0.300 ± 0.010, cost 70 tokens")


def test_what_did_not_run_here_counts_against_no_budget() -> None:
    told: list[str] = []
    plain = PlainDisplay(told.append)
    spent = {"metrics": {"cost/flops": 5e9}, "step": 4}
    taken = trial(0, TrialState.COMPLETE, attempts=0, origin="from:old@1/3", **spent)
    confirming = trial(1, TrialState.COMPLETE, params_hash="0", replicate=1, **spent)
    plain.sweep_started(SWEEP, toy_spec(budget={"trials": 4, "flops": 1e12}), [taken, confirming])
    assert told[-1].endswith("toy@1: 4 trials, 1 at once")
    plain.trial_finished(trial(2, TrialState.COMPLETE, **spent))
    assert "toy@1: 1/4 trials, flops 5 GFLOPs of 1 TFLOPs, " in told[-1]


def test_the_time_to_go_is_that_of_what_the_budget_still_pays_for() -> None:
    told: list[str] = []
    plain = PlainDisplay(told.append)
    plain.sweep_started(SWEEP, toy_spec(budget={"trials": 50, "flops": 12e9}), [])
    for number, to_go in ((0, "about 1m 00s to go"), (1, "about 30s to go"), (2, "about 0s to go")):
        plain.trial_finished(trial(number, TrialState.COMPLETE, metrics={"cost/flops": 5e9}, step=4))
        assert told[-1].endswith(to_go)


@pytest.mark.parametrize("live", [False, True])
def test_confirming_runs_are_told_as_such(live: bool) -> None:
    screen, told = Screen(), []
    shown = LiveDisplay(screen.console, confirming=True) if live else PlainDisplay(told.append, confirming=True)
    screen.display = shown if isinstance(shown, LiveDisplay) else screen.display
    candidates = [trial(number, TrialState.COMPLETE, step=4) for number in range(4)]
    shown.sweep_started(SWEEP, toy_spec(budget={"trials": 4, "flops": 1e12}), candidates)
    for number in (4, 5):
        run = trial(number, TrialState.RUNNING, params_hash="2", replicate=number - 3)
        shown.trial_started(run)
        shown.trial_finished(replace(run, state=TrialState.COMPLETE, step=4))
    text = "\n".join(screen.lines() if live else told)
    assert "run 2 of trial 2: lr=0.1" in text and "toy@1: 2 confirming runs, elapsed 0s" in text
    assert "to go" not in text and "/4 trials" not in text and "FLOPs of" not in text
    assert live or told[0].endswith("toy@1: each point of its front again, 2 to 6 times, 1 at once")
    assert not live or text.count("complete") == 2, "candidates are no rows"


def test_the_kind_of_display_follows_the_output() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(display(terminal, plain=False), LiveDisplay)
    assert isinstance(display(terminal, plain=True), PlainDisplay)
    assert isinstance(display(Console(file=io.StringIO()), plain=False), PlainDisplay)
