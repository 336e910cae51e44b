"""The first version of the ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables, each after those that it refers to."""
    _sweeps()
    _leases()
    _trials()
    _costs()
    _attempts()
    _observations()
    _evaluations()
    _promotions()


def _sweeps() -> None:
    op.create_table(
        "ledger_sweeps",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("git_commit", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mlflow_run_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_sweeps")),
        sa.UniqueConstraint("name", "version", name=op.f("uq_ledger_sweeps_name_version")),
    )


def _leases() -> None:
    op.create_table(
        "ledger_leases",
        sa.Column("sweep_id", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("pid_scope", sa.Text(), nullable=False),
        sa.Column("process_started", sa.Double(), nullable=False),
        sa.Column("ttl_s", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["sweep_id"], ["ledger_sweeps.id"], name=op.f("fk_ledger_leases_sweep_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sweep_id", name=op.f("pk_ledger_leases")),
    )


def _trials() -> None:
    op.create_table(
        "ledger_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sweep_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("params_hash", sa.Text(), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("sampler_state", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("objective_values", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("mlflow_run_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["sweep_id"], ["ledger_sweeps.id"], name=op.f("fk_ledger_trials_sweep_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_trials")),
        sa.UniqueConstraint("sweep_id", "number", name=op.f("uq_ledger_trials_sweep_id_number")),
        sa.UniqueConstraint(
            "sweep_id",
            "params_hash",
            "replicate",
            name=op.f("uq_ledger_trials_sweep_id_params_hash_replicate"),
        ),
    )


def _costs() -> None:
    op.create_table(
        "ledger_costs",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("device_seconds", sa.Double(), nullable=False),
        sa.Column("evaluation_flops", sa.Double(), nullable=False),
        sa.Column("evaluation_tokens", sa.BigInteger(), nullable=False),
        sa.Column("evaluation_device_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["ledger_trials.id"], name=op.f("fk_ledger_costs_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_ledger_costs")),
    )


def _attempts() -> None:
    op.create_table(
        "ledger_attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("ttl_s", sa.Double(), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["ledger_trials.id"], name=op.f("fk_ledger_attempts_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_attempts")),
    )
    op.create_index(op.f("ix_ledger_attempts_trial_id"), "ledger_attempts", ["trial_id"], unique=False)


def _observations() -> None:
    op.create_table(
        "ledger_observations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("non_finite", sa.JSON(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("device_seconds", sa.Double(), nullable=False),
        sa.Column("evaluation_flops", sa.Double(), nullable=False),
        sa.Column("evaluation_tokens", sa.BigInteger(), nullable=False),
        sa.Column("evaluation_device_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["ledger_attempts.id"],
            name=op.f("fk_ledger_observations_attempt_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["ledger_trials.id"],
            name=op.f("fk_ledger_observations_trial_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_observations")),
        sa.UniqueConstraint("trial_id", "step", name=op.f("uq_ledger_observations_trial_id_step")),
    )


def _evaluations() -> None:
    op.create_table(
        "ledger_evaluations",
        sa.Column("observation_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("data_source", sa.Text(), nullable=False),
        sa.Column("problem_id", sa.Text(), nullable=False),
        sa.Column("sample_index", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("ground_truth", sa.Text(), nullable=False),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("response_length", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["observation_id"],
            ["ledger_observations.id"],
            name=op.f("fk_ledger_evaluations_observation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("observation_id", "position", name=op.f("pk_ledger_evaluations")),
    )


def _promotions() -> None:
    op.create_table(
        "ledger_promotions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sweep_id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["sweep_id"], ["ledger_sweeps.id"], name=op.f("fk_ledger_promotions_sweep_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["ledger_trials.id"], name=op.f("fk_ledger_promotions_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_promotions")),
    )
    op.create_index(
        op.f("ix_ledger_promotions_sweep_id_alias"), "ledger_promotions", ["sweep_id", "alias"], unique=False
    )
