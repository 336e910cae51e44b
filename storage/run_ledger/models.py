"""The tables. Their names start with `ledger_`, so that a PostgreSQL database can hold other programs' tables too."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

VERSION_TABLE = "ledger_version"
"""Alembic's, under our own name: `alembic_version` may belong to another program in the same database."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite itself keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Name the zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class StorableText(TypeDecorator[str]):
    """Any Python text: what a model samples may hold NUL (PostgreSQL refuses it) or lone surrogates (not UTF-8)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Put U+FFFD for NUL and `?` for a lone surrogate."""
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Base(DeclarativeBase):
    """Maps Python types to columns."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, type[TypeEngine[Any]] | TypeEngine[Any]]] = {
        datetime: UtcDateTime,
        str: StorableText,
        dict[str, Any]: JSON,
        dict[str, float]: JSON,
        list[str]: JSON,
        list[float]: JSON(none_as_null=True),
    }


def _parent(column: str) -> MappedColumn[int]:
    return mapped_column(ForeignKey(column, ondelete="CASCADE"))


class Sweep(Base):
    """One version of a sweep."""

    __tablename__ = "ledger_sweeps"
    __table_args__ = (UniqueConstraint("name", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[int]
    spec: Mapped[dict[str, Any]]
    identity: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    git_commit: Mapped[str | None]
    created_at: Mapped[datetime]
    mlflow_run_id: Mapped[str | None]


class Lease(Base):
    """Who drives a sweep: one row each, made with the sweep. `token` only grows."""

    __tablename__ = "ledger_leases"

    sweep_id: Mapped[int] = mapped_column(ForeignKey("ledger_sweeps.id", ondelete="CASCADE"), primary_key=True)
    token: Mapped[int] = mapped_column(BigInteger)
    held: Mapped[bool]
    holder: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int] = mapped_column(BigInteger)
    pid_scope: Mapped[str]
    process_started: Mapped[float]
    ttl_s: Mapped[float]
    expires_at: Mapped[datetime]


class Trial(Base):
    """One candidate of a sweep, with what its last observation said."""

    __tablename__ = "ledger_trials"
    __table_args__ = (
        UniqueConstraint("sweep_id", "number"),
        UniqueConstraint("sweep_id", "params_hash", "replicate"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    sweep_id: Mapped[int] = _parent("ledger_sweeps.id")
    number: Mapped[int]
    state: Mapped[str]
    params: Mapped[dict[str, Any]]
    params_hash: Mapped[str]
    replicate: Mapped[int]
    origin: Mapped[str]
    sampler_state: Mapped[dict[str, Any]]
    config: Mapped[dict[str, Any]]
    objective_values: Mapped[list[float] | None]
    metrics: Mapped[dict[str, float]]
    step: Mapped[int]
    total_steps: Mapped[int]
    reason: Mapped[str | None]
    attempts: Mapped[int]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    mlflow_run_id: Mapped[str | None]


class CostColumns:
    """Cumulative cost; `CostRecord` documents the fields."""

    flops: Mapped[float] = mapped_column(default=0.0)
    tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    device_seconds: Mapped[float] = mapped_column(default=0.0)
    evaluation_flops: Mapped[float] = mapped_column(default=0.0)
    evaluation_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    evaluation_device_seconds: Mapped[float] = mapped_column(default=0.0)


class Cost(CostColumns, Base):
    """What a trial has cost, all attempts together: one row each, made with the trial. It never decreases."""

    __tablename__ = "ledger_costs"

    trial_id: Mapped[int] = mapped_column(ForeignKey("ledger_trials.id", ondelete="CASCADE"), primary_key=True)


class Attempt(Base):
    """One try at running a trial; open while `ended_at` is null, and at most one of a trial is."""

    __tablename__ = "ledger_attempts"

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("ledger_trials.id", ondelete="CASCADE"), index=True)
    token: Mapped[int] = mapped_column(BigInteger)
    host: Mapped[str]
    pid: Mapped[int] = mapped_column(BigInteger)
    ttl_s: Mapped[float]
    lease_expires_at: Mapped[datetime]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    exit_reason: Mapped[str | None]


class Observation(CostColumns, Base):
    """One step's report; its cost columns hold what was reported."""

    __tablename__ = "ledger_observations"
    __table_args__ = (UniqueConstraint("trial_id", "step"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = _parent("ledger_trials.id")
    attempt_id: Mapped[int] = _parent("ledger_attempts.id")
    step: Mapped[int]
    metrics: Mapped[dict[str, float]]
    non_finite: Mapped[list[str]]
    final: Mapped[bool]
    at: Mapped[datetime]


class Evaluation(Base):
    """One sampled answer to one problem, in the order in which it was reported."""

    __tablename__ = "ledger_evaluations"

    observation_id: Mapped[int] = mapped_column(
        ForeignKey("ledger_observations.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    data_source: Mapped[str]
    problem_id: Mapped[str]
    sample_index: Mapped[int]
    prompt: Mapped[str]
    response: Mapped[str]
    answer: Mapped[str]
    ground_truth: Mapped[str]
    correct: Mapped[bool]
    response_length: Mapped[int]


class Promotion(Base):
    """A trial that was chosen. Rows are only added; the latest of an alias, over all sweeps, is the one that counts."""

    __tablename__ = "ledger_promotions"
    __table_args__ = (Index(None, "sweep_id", "alias"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    sweep_id: Mapped[int] = _parent("ledger_sweeps.id")
    trial_id: Mapped[int] = _parent("ledger_trials.id")
    alias: Mapped[str]
    who: Mapped[str]
    why: Mapped[str]
    at: Mapped[datetime]
    confirmed: Mapped[bool]
    evidence: Mapped[dict[str, Any]]
    previous: Mapped[int | None]
    restores: Mapped[int | None]
