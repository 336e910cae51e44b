"""What a sweep shows while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sweep_platform import units
from sweep_platform.cli.explore import short_params
from sweep_platform.driver.reading import read
from sweep_platform.frontier import CURRENCIES

if TYPE_CHECKING:
    from run_ledger import SweepRecord, TrialRecord

    from sweep_platform.spec import SweepSpec
    from sweep_platform.trainers import StepMetrics

_AROUND = 8
"""Lines of the live display that are no row of its table."""
_STATE_STYLE = {
    "running": "cyan",
    "paused": "blue",
    "complete": "green",
    "failed": "red",
    "lost": "red",
    "pruned": "yellow",
    "infeasible": "magenta",
}


@dataclass(frozen=True)
class _Shown:
    """The metrics that stand for accuracy and cost: the sweep's own objectives, where it has such."""

    accuracy: str = "val/accuracy"
    cost: str = "cost/flops"

    @classmethod
    def of(cls, spec: SweepSpec) -> _Shown:
        best = [o.metric for o in spec.objectives if o.direction == "maximize"]
        return cls(best[0] if best else cls.accuracy, spec.cost_metric or cls.cost)


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
    costs: dict[str, float] = field(default_factory=dict)
    """What it has cost in each currency of the budget."""
    counts: bool = False
    """It ran here, for what runs now: a candidate of a search, or a run that confirms one."""
    sampling_yield: float | None = None
    reason: str | None = None
    first_step: int | None = None
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None

    def observe(self, step: StepMetrics, shown: _Shown) -> None:
        """Take what a step reported."""
        if self.first_step is None:
            self.first_step, self.started = step.step, time.monotonic()
        self.step, self.total_steps = step.step, step.total_steps
        self._take(read(step).metrics, shown)

    def settle(self, trial: TrialRecord, shown: _Shown) -> None:
        """Take how a trial stands in the ledger."""
        self.state, self.reason = trial.state.value, trial.reason
        self.step, self.total_steps = trial.step, trial.total_steps
        self._take(trial.metrics, shown)
        if trial.started_at and trial.ended_at:
            self.seconds = (trial.ended_at - trial.started_at).total_seconds()

    def _take(self, metrics: Mapping[str, float], shown: _Shown) -> None:
        self.accuracy = metrics.get(shown.accuracy, self.accuracy)
        self.error = metrics.get(f"{shown.accuracy}_se", self.error)
        self.cost = metrics.get(shown.cost, self.cost)
        for currency in CURRENCIES:
            value = metrics.get(f"cost/{currency}", 0.0)
            self.costs[currency] = max(value, self.costs.get(currency, 0.0))
        self.sampling_yield = metrics.get("filter/yield", self.sampling_yield)

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

    def __init__(self, *, confirming: bool) -> None:
        self.confirming = confirming
        self.rows: dict[int, _Row] = {}
        self.candidates: dict[str, int] = {}
        self.sweep = ""
        self.shown = _Shown()
        self.budget = 0
        self.amounts: Mapping[str, float] = {}
        self.concurrency = 1
        self.started = time.monotonic()

    def open(self, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> None:
        self.sweep, self.budget, self.concurrency = sweep.address, spec.budget.trials, spec.budget.concurrency
        self.shown, self.amounts = _Shown.of(spec), {} if self.confirming else spec.budget.amounts
        for trial in trials:
            self.row(trial).settle(trial, self.shown)

    def row(self, trial: TrialRecord) -> _Row:
        if trial.replicate == 0:
            self.candidates[trial.params_hash] = trial.number
        if trial.number not in self.rows:
            self.rows[trial.number] = _Row(trial.number, trial.state.value, self._what(trial))
        row = self.rows[trial.number]
        row.counts = trial.attempts > 0 and (trial.replicate > 0) == self.confirming
        return row

    def _what(self, trial: TrialRecord) -> str:
        """Which config a trial trains, and of a confirming run why."""
        params = short_params(trial.params)
        if trial.replicate == 0:
            return params
        return f"run {trial.replicate} of trial {self.candidates[trial.params_hash]}: {params}"

    @property
    def counted(self) -> int:
        """Trials that are finished and count against the budget, or runs that confirm."""
        return sum(row.counts and row.state not in ("running", "paused", "waiting") for row in self.rows.values())

    @property
    def eta(self) -> float | None:
        """Seconds to the sweep's end, from the mean length of its finished trials."""
        lengths = [row.seconds for row in self.rows.values() if row.counts and row.state == "complete" and row.seconds]
        if self.confirming or not lengths:  # nobody knows how often the front has to run
            return None
        running = [row for row in self.rows.values() if row.state == "running"]
        waiting = min(self.budget - self.counted, *self._affordable()) - len(running)
        mean = sum(lengths) / len(lengths)
        ahead = sum(mean if row.eta is None else row.eta for row in running)
        return (ahead + max(0, waiting) * mean) / self.concurrency

    def _spent(self, currency: str) -> float:
        return sum(row.costs.get(currency, 0.0) for row in self.rows.values() if row.counts)

    def _affordable(self) -> list[float]:
        """Trials that the rest of each amount pays for, at the mean cost so far; no number where nothing limits it."""
        spent = {currency: self._spent(currency) for currency in self.amounts}
        return [math.inf] + [
            math.ceil((self.amounts[currency] - cost) / cost * self.counted) for currency, cost in spent.items() if cost
        ]

    def summary(self) -> str:
        if self.confirming:
            parts = [f"{self.sweep}: {units.count(self.counted, 'confirming run')}"]
        else:
            parts = [f"{self.sweep}: {self.counted}/{self.budget} trials"]
        for currency, limit in self.amounts.items():
            name = f"cost/{currency}"
            spent = units.metric(name, self._spent(currency))
            parts.append(f"{currency} {spent} of {units.metric(name, limit)}")
        parts.append(f"elapsed {units.duration(time.monotonic() - self.started)}")
        if self.eta is not None:
            parts.append(f"about {units.duration(self.eta)} to go")
        return ", ".join(parts)


class LiveDisplay:
    """A table that redraws in place; for terminals."""

    def __init__(self, console: Console, *, confirming: bool = False) -> None:
        self._board = _Board(confirming=confirming)
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
        """Show the budget, and what earlier runs of the command did."""
        self._board.open(sweep, spec, trials)

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        """Show how far the preparation is."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total, visible=done < total)

    def trial_started(self, trial: TrialRecord) -> None:
        """Show that a trial runs."""
        self._board.row(trial).state = "running"

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        """Show a trial's step."""
        self._board.row(trial).observe(step_metrics, self._board.shown)

    def trial_paused(self, trial: TrialRecord) -> None:
        """Show where a trial stopped."""
        self._board.row(trial).settle(trial, self._board.shown)

    def trial_finished(self, trial: TrialRecord) -> None:
        """Show how a trial ended."""
        self._board.row(trial).settle(trial, self._board.shown)

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """Show the end."""
        self._live.refresh()

    def _render(self) -> Group:
        board = self._board
        if not board.sweep:
            return Group(Text("starting ..."), self._progress)
        table = Table("trial", "state", "step", "accuracy", "cost", "yield", "ETA", "params / reason")
        # Those refused before they cost anything are only counted; of the others, those that fit in the terminal.
        rows = [row for row in list(board.rows.values()) if row.counts or not board.confirming]
        ran = [row for row in rows if row.state != "infeasible" or row.step]
        refused, hidden = len(rows) - len(ran), max(0, len(ran) - max(3, self._live.console.height - _AROUND))
        for row in sorted(ran, key=lambda row: (row.state == "running", row.number))[hidden:]:
            table.add_row(
                str(row.number),
                Text(row.state, style=_STATE_STYLE.get(row.state, "")),
                f"{row.step}/{row.total_steps}" if row.total_steps else "-",
                row.shown_accuracy(),
                "-" if row.cost is None else units.metric(board.shown.cost, row.cost),
                "-" if row.sampling_yield is None else f"{row.sampling_yield:.2f}",
                "" if row.eta is None else units.duration(row.eta),
                Text(row.reason or row.params, overflow="ellipsis", no_wrap=True),
            )
        note = f"; {refused} refused as infeasible" if refused else ""
        note += f"; {hidden} earlier ones not shown" if hidden else ""
        return Group(Text(board.summary() + note, style="bold"), table, self._progress)


class PlainDisplay:
    """One line an event; for logs and pipes."""

    def __init__(self, write: Callable[[str], None], *, confirming: bool = False) -> None:
        self._write = write
        self._board = _Board(confirming=confirming)
        self._shown: dict[str, int] = {}

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _line(self, text: str) -> None:
        self._write(f"[{units.duration(time.monotonic() - self._board.started)}] {text}")

    def sweep_started(self, sweep: SweepRecord, spec: SweepSpec, trials: Sequence[TrialRecord]) -> None:
        """Show the budget, and what earlier runs of the command did."""
        self._board.open(sweep, spec, trials)
        done = self._board.counted
        resumed = f", {done} already finished" if done else ""
        planned = f"{spec.budget.trials} trials"
        if self._board.confirming:
            planned = f"each point of its front again, {spec.confirm.runs} to {spec.confirm.max_runs} times"
        self._line(f"sweep {sweep.address}: {planned}, {spec.budget.concurrency} at once{resumed}")

    def prepare_progress(self, what: str, done: int, total: int) -> None:
        """Show how far the preparation is."""
        tenth = 10 * done // max(total, 1)
        if self._shown.get(what) != tenth:  # a line each 10 %
            self._shown[what] = tenth
            self._line(f"{what}: {10 * tenth}%")

    def trial_started(self, trial: TrialRecord) -> None:
        """Show that a trial runs."""
        row = self._board.row(trial)
        row.state = "running"
        again = f" again, attempt {trial.attempts}" if trial.attempts > 1 else ""
        self._line(f"trial {trial.number} started{again}: {row.params}")

    def trial_reported(self, trial: TrialRecord, step_metrics: StepMetrics) -> None:
        """Show a trial's step."""
        row = self._board.row(trial)
        row.observe(step_metrics, self._board.shown)
        if self._board.shown.accuracy not in step_metrics.metrics:
            return
        cost = "" if row.cost is None else f", cost {units.metric(self._board.shown.cost, row.cost)}"
        kept = "" if row.sampling_yield is None else f", yield {row.sampling_yield:.2f}"
        eta = "" if row.eta is None else f", {units.duration(row.eta)} to go"
        where = f"trial {trial.number} step {row.step}/{row.total_steps}"
        self._line(f"{where}: accuracy {row.shown_accuracy()}{cost}{kept}{eta}")

    def trial_paused(self, trial: TrialRecord) -> None:
        """Show where a trial stopped."""
        self._board.row(trial).settle(trial, self._board.shown)
        self._line(f"trial {trial.number} paused at step {trial.step}/{trial.total_steps}: {trial.reason}")

    def trial_finished(self, trial: TrialRecord) -> None:
        """Show how a trial ended."""
        self._board.row(trial).settle(trial, self._board.shown)
        because = f": {trial.reason}" if trial.reason else ""
        self._line(f"trial {trial.number} {trial.state.value}{because}")
        if trial.attempts:
            self._line(self._board.summary())

    def sweep_finished(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """Show the end."""
        self._line(f"sweep {sweep.address} finished")


Display = LiveDisplay | PlainDisplay


def display(console: Console, *, plain: bool, confirming: bool = False) -> Display:
    """Choose by where the output goes; `confirming` where the front runs again, and no search."""
    if plain or not console.is_terminal:
        return PlainDisplay(lambda line: print(line, flush=True), confirming=confirming)
    return LiveDisplay(console, confirming=confirming)
