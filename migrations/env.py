"""Run by alembic: applies the migrations on the connection that `storage.migrate` passes in."""

from alembic import context

from storage.migrate import VERSION_TABLE
from storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # SQLite can roll table definitions back, and the caller's transaction spans all migrations.
    transactional_ddl=True,
)
context.run_migrations()
