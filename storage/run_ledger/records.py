"""What the ledger hands out: frozen records, detached from any session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol


class TrialState(StrEnum):
    """Where a trial stands. WAITING, RUNNING and PAUSED are open; the others are final."""

    WAITING = "waiting"
    """Asked for, not started."""
    RUNNING = "running"
    """An attempt holds it."""
    PAUSED = "paused"
    """Stopped at a rung with a checkpoint: it goes on from there if it is among the best after all."""
    COMPLETE = "complete"
    """Evaluated at its full length; the only state that can reach the frontier."""
    PRUNED = "pruned"
    """Stopped early on purpose; keeps its observations."""
    LOST = "lost"
    """What ran it failed again and again (a node, memory, a kill), which says nothing of its config."""
    FAILED = "failed"
    """Ended by an error or a number that is not finite; `reason` says which."""
    INFEASIBLE = "infeasible"
    """Refused before it cost anything, or complete but outside a constraint."""

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to the trial."""
        return self not in (TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED)


class CostLike(Protocol):
    """Cumulative cost as a trainer tells it; `CostRecord` is one."""

    @property
    def flops(self) -> float: ...
    @property
    def tokens(self) -> int: ...
    @property
    def device_seconds(self) -> float: ...
    @property
    def evaluation_flops(self) -> float: ...
    @property
    def evaluation_tokens(self) -> int: ...
    @property
    def evaluation_device_seconds(self) -> float: ...


class SampleLike(Protocol):
    """One evaluated sample as a trainer tells it; `EvaluationRecord` is one."""

    @property
    def data_source(self) -> str: ...
    @property
    def problem_id(self) -> str: ...
    @property
    def sample_index(self) -> int: ...
    @property
    def prompt(self) -> str: ...
    @property
    def response(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def ground_truth(self) -> str: ...
    @property
    def correct(self) -> bool: ...
    @property
    def response_length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """One version of a sweep."""

    id: int
    name: str
    version: int
    """1 for the first spec under this name; `--new` makes the next."""
    spec: Mapping[str, Any]
    """The composed spec, as JSON."""
    identity: str
    """Hash of what must not change between runs of the sweep."""
    seed: int
    commit: str | None
    """Git commit of the project's code, when known."""
    created_at: datetime
    mlflow_run_id: str | None

    @property
    def address(self) -> str:
        """`name@version`, which names this version on the command line."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class CostRecord:
    """Cumulative cost of a trial, all attempts together; `dapo.batch.Cost` documents the fields."""

    flops: float = 0.0
    tokens: int = 0
    device_seconds: float = 0.0
    evaluation_flops: float = 0.0
    evaluation_tokens: int = 0
    evaluation_device_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One candidate of a sweep."""

    id: int
    sweep_id: int
    number: int
    """0, 1, … within the sweep."""
    state: TrialState
    params: Mapping[str, Any]
    """The searched values, canonical: conditional ones only where they are active."""
    params_hash: str
    replicate: int
    """0, or the index of a named replicate of the same params."""
    origin: str
    """`prior:<name>` or the sampler's name."""
    sampler_state: Mapping[str, Any]
    """What the sampler needs to be rebuilt (Optuna's system attributes), as JSON."""
    config: Mapping[str, Any]
    """The trainer's whole config."""
    values: tuple[float, ...] | None
    """One value an objective, in the spec's order; None until complete."""
    metrics: Mapping[str, float]
    """The last observation's metrics."""
    cost: CostRecord
    step: int
    """Last update observed; 0 before the first."""
    total_steps: int
    reason: str | None
    """Why it failed, was refused or was pruned."""
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    mlflow_run_id: str | None


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """What another system measured of a candidate that no attempt in this ledger ran."""

    values: tuple[float, ...] | None
    """One an objective; COMPLETE needs them."""
    metrics: Mapping[str, float]
    cost: CostRecord = CostRecord()
    step: int = 0
    total_steps: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DriverLease:
    """A driver's right to write a sweep; whoever takes the sweep over gets a greater token."""

    sweep_id: int
    token: int
    holder: str
    host: str
    pid: int
    ttl_s: float
    """Seconds that it lives without a renewal; every write of its holder renews it."""
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One try at running a trial."""

    id: int
    trial_id: int
    token: int
    """Of the driver's lease that started it: it may write while that lease is the sweep's and it is not ended."""
    host: str
    pid: int
    lease_expires_at: datetime
    started_at: datetime
    ended_at: datetime | None
    exit_reason: str | None
    """None while it is open; the trial's state that it ended with, `superseded` or `lost`."""


@dataclass(frozen=True, slots=True)
class ObservationRecord:
    """One step's report."""

    step: int
    metrics: Mapping[str, float]
    cost: CostRecord
    final: bool
    at: datetime
    non_finite: tuple[str, ...] = ()
    """Names reported as NaN or infinite, which `metrics` and `cost` leave out (a cost field as `cost/<field>`)."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One sampled answer to one problem; `dapo.batch.EvaluatedSample` documents the fields."""

    step: int
    data_source: str
    problem_id: str
    sample_index: int
    prompt: str
    response: str
    answer: str
    ground_truth: str
    correct: bool
    response_length: int


@dataclass(frozen=True, slots=True)
class PromotionRecord:
    """A trial that was chosen, by whom, why and on what evidence. The latest of an alias is the one that counts."""

    id: int
    """Names it on the command line. Later ones have greater numbers."""
    sweep_id: int
    trial_id: int
    alias: str
    """What it was chosen as, such as `production`; one alias over all sweeps of the ledger."""
    who: str
    why: str
    at: datetime
    confirmed: bool
    """Whether runs under other seeds say it, and not the search's own run alone."""
    evidence: Mapping[str, Any]
    """What was known of the trial at that moment, as JSON; `sweep_platform.production.promotion` documents it."""
    previous: int | None
    """Id of the promotion that a rollback of this one leads to: the latest before it of another trial."""
    restores: int | None
    """Id of the promotion that this one went back to; None where it was a choice of its own."""
