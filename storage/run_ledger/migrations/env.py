"""How Alembic reaches the ledger: over the connection that `migrate` was given, in its transaction."""

from __future__ import annotations

from alembic import context

from run_ledger.models import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=False,
    transaction_per_migration=False,
)
context.run_migrations()
