"""The statements of migrations that say more than alembic can."""
