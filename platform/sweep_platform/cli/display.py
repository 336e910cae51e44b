"""What a sweep shows while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sweep_platform import units
from sweep_platform.cli.explore import short_params

if TYPE_CHECKING:
    from run_ledger import SweepRecord, TrialRecord

    from sweep_platform.spec import SweepSpec
    from sweep_platform.trainers import StepMetrics

_STATE_STYLE = {"running": "cyan", "complete": "green", "failed": "red", "pruned": "yellow", "infeasible": "magenta"}


@dataclass(slots=True)
class _Row:
    """What is known of one trial of this sweep."""

    number: int
    state: str
    params: str
    step: int = 0
    total_steps: int = 0
    accuracy: float | None = None
    error: float | None = None
    cost: float | None = None
    sampling_yield: float | None = None
    reason: str | None = None
    first_step: int | None = None
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None

    def observe(self, metrics: StepMetrics, cost_metric: str) -> None:
        if self.first_step is None:
            self.first_step, self.started = metrics.step, time.monotonic()
        self.step, self.total_steps = metrics.step, metrics.total_steps
        scalars = metrics.metrics
        self.accuracy = scalars.get("val/accuracy", self.accuracy)
        self.error = scalars.get("val/accuracy_se", self.error)
        self.cost = scalars.get(cost_metric, self.cost)
        self.sampling_yield = scalars.get("filter/yield", self.sampling_yield)

    def settle(self, trial: TrialRecord, cost_metric: str) -> None:
        self.state, self.reason = trial.state.value, trial.reason
        self.step, self.total_steps = trial.step, trial.total_steps
        self.accuracy = trial.metrics.get("val/accuracy", self.accuracy)
        self.error = trial.metrics.get("val/accuracy_se", self.error)
        self.cost = trial.metrics.get(cost_metric, self.cost)
        self.sampling_yield = trial.metrics.get("filter/yield", self.sampling_yield)
        if trial.started_at and trial.ended_at:
            self.seconds = (trial.ended_at - trial.started_at).total_seconds()

    @property
    def eta(self) -> float | None:
        """Seconds to the trial's end at its pace so far."""
        done = self.step - (self.first_step or 0)
        if self.state != "running" or done <= 0:
            return None
        return (time.monotonic() - self.started) / done * (self.total_steps - self.step)

    def shown_accuracy(self) -> str:
        return "-" if self.accuracy is None else units.accuracy(self.accuracy, self.error)


class _Board:
    """The rows and the sweep's budget; an observer of the driver's events without a face."""

    def __init__(self) -> None:
        self.rows: dict[int, _Row] = {}
        self.sweep = ""
        self.cost_metric = "cost/flops"
        self.budget = 0
        self.concurrency = 1
        self.started = time.monotonic()

    def open(self, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> None:
        self.sweep, self.budget, self.concurrency = sweep.address, spec.budget.trials, spec.budget.concurrency
        costs = [o.metric for o in spec.objectives if o.metric.startswith("cost/")]
        self.cost_metric = costs[0] if costs else "cost/flops"
        for trial in trials:
            self.row(trial).settle(trial, self.cost_metric)

    def row(self, trial: TrialRecord) -> _Row:
        if trial.number not in self.rows:
            self.rows[trial.number] = _Row(trial.number, trial.state.value, short_params(trial.params))
        return self.rows[trial.number]

    @property
    def counted(self) -> int:
        """Trials that are finished and count against the budget."""
        return sum(row.state in ("complete", "failed", "pruned") for row in self.rows.values())

    @property
    def eta(self) -> float | None:
        """Seconds to the sweep's end, from the mean length of its finished trials."""
        lengths = [row.seconds for row in self.rows.values() if row.state == "complete" and row.seconds]
        if not lengths:
            return None
        running = [row for row in self.rows.values() if row.state == "running"]
        waiting = max(0, self.budget - self.counted - len(running))
        mean = sum(lengths) / len(lengths)
        ahead = sum(mean if row.eta is None else row.eta for row in running)
        return (ahead + waiting * mean) / self.concurrency

    def summary(self) -> str:
        parts = [f"{self.sweep}: {self.counted}/{self.budget} trials"]
        parts.append(f"elapsed {units.duration(time.monotonic() - self.started)}")
        if self.eta is not None:
            parts.append(f"about {units.duration(self.eta)} to go")
        return ", ".join(parts)


class LiveDisplay:
    """A table that redraws in place; for terminals."""

    def __init__(self, console: Console) -> None:
        self._board = _Board()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()
        )
        self._tasks: dict[str, TaskID] = {}
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def sweep_started(self, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> None:
        self._board.open(sweep, spec, trials)

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total, visible=done < total)

    def trial_started(self, trial: TrialRecord) -> None:
        self._board.row(trial).state = "running"

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        self._board.row(trial).observe(step_metrics, self._board.cost_metric)

    def trial_finished(self, trial: TrialRecord) -> None:
        self._board.row(trial).settle(trial, self._board.cost_metric)

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        self._live.refresh()

    def _render(self) -> Group:
        board = self._board
        if not board.sweep:
            return Group(Text("starting ..."), self._progress)
        table = Table("trial", "state", "step", "accuracy", "cost", "yield", "ETA", "params / reason")
        refused = sum(row.state == "infeasible" for row in board.rows.values())
        for row in list(board.rows.values()):
            if row.state == "infeasible" and row.step == 0:
                continue  # refused before it cost anything: counted below
            table.add_row(
                str(row.number),
                Text(row.state, style=_STATE_STYLE.get(row.state, "")),
                f"{row.step}/{row.total_steps}" if row.total_steps else "-",
                row.shown_accuracy(),
                "-" if row.cost is None else units.metric(board.cost_metric, row.cost),
                "-" if row.sampling_yield is None else f"{row.sampling_yield:.2f}",
                "" if row.eta is None else units.duration(row.eta),
                Text(row.reason or row.params, overflow="ellipsis", no_wrap=True),
            )
        note = f"; {refused} refused as infeasible" if refused else ""
        return Group(Text(board.summary() + note, style="bold"), table, self._progress)


class PlainDisplay:
    """One line an event; for logs and pipes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._board = _Board()
        self._shown: dict[str, int] = {}

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _line(self, text: str) -> None:
        self._write(f"[{units.duration(time.monotonic() - self._board.started)}] {text}")

    def sweep_started(self, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> None:
        self._board.open(sweep, spec, trials)
        done = self._board.counted
        resumed = f", {done} already finished" if done else ""
        self._line(f"sweep {sweep.address}: {spec.budget.trials} trials, {spec.budget.concurrency} at once{resumed}")

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if self._shown.get(what) != tenth:  # a line each 10 %
            self._shown[what] = tenth
            self._line(f"{what}: {10 * tenth}%")

    def trial_started(self, trial: TrialRecord) -> None:
        row = self._board.row(trial)
        row.state = "running"
        again = f" again from step {trial.step}" if trial.attempts > 1 else ""
        self._line(f"trial {trial.number} started{again}: {row.params}")

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        row = self._board.row(trial)
        row.observe(step_metrics, self._board.cost_metric)
        if "val/accuracy" not in step_metrics.metrics:
            return
        cost = "" if row.cost is None else f", cost {units.metric(self._board.cost_metric, row.cost)}"
        kept = "" if row.sampling_yield is None else f", yield {row.sampling_yield:.2f}"
        eta = "" if row.eta is None else f", {units.duration(row.eta)} to go"
        where = f"trial {trial.number} step {row.step}/{row.total_steps}"
        self._line(f"{where}: accuracy {row.shown_accuracy()}{cost}{kept}{eta}")

    def trial_finished(self, trial: TrialRecord) -> None:
        self._board.row(trial).settle(trial, self._board.cost_metric)
        because = f": {trial.reason}" if trial.reason else ""
        self._line(f"trial {trial.number} {trial.state.value}{because}")
        if trial.attempts:
            self._line(self._board.summary())

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        self._line(f"sweep {sweep.address} finished")


Display = LiveDisplay | PlainDisplay


def display(console: Console, *, plain: bool) -> Display:
    """Choose by where the output goes."""
    if plain or not console.is_terminal:
        return PlainDisplay(lambda line: print(line, flush=True))
    return LiveDisplay(console)
