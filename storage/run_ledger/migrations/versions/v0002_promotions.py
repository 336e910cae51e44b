"""Promotions with their evidence, and what they took the place of. Until now, `platform export` noted itself there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what was noted so far were exports, which nobody promoted."""
    table = "ledger_promotions"
    op.add_column(table, sa.Column("confirmed", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column(table, sa.Column("evidence", sa.JSON(), server_default="{}", nullable=False))
    op.add_column(table, sa.Column("previous", sa.Integer(), nullable=True))
    op.add_column(table, sa.Column("restores", sa.Integer(), nullable=True))
    op.execute("UPDATE ledger_promotions SET alias = 'exported'")
    op.execute(
        "UPDATE ledger_promotions SET previous = (SELECT max(earlier.id) FROM ledger_promotions AS earlier "
        "WHERE earlier.id < ledger_promotions.id AND earlier.alias = ledger_promotions.alias "
        "AND earlier.trial_id <> ledger_promotions.trial_id)"
    )
