"""The jobs: one row per room that was ever partially joined here."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create `resync_jobs`."""
    op.create_table(
        "resync_jobs",
        sa.Column("room_id", sa.Text, nullable=False),
        sa.Column("room_version", sa.Text),
        sa.Column("joined_via", sa.Text),
        sa.Column("join_event_id", sa.Text),
        sa.Column("created_ts", sa.BigInteger, nullable=False),
        sa.Column("updated_ts", sa.BigInteger, nullable=False),
        sa.Column("completed_ts", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("next_attempt_ts", sa.BigInteger, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("last_error_server", sa.Text),
        sa.Column("phase", sa.Text),
        sa.Column("done", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("total", sa.BigInteger),
        sa.Column("given_up", sa.JSON, nullable=False, server_default=sa.text("'[]'")),
        sa.PrimaryKeyConstraint("room_id", name="resync_jobs_pkey"),
    )
    op.create_index("resync_jobs_created", "resync_jobs", ["created_ts", "room_id"])
    op.create_index(
        "resync_jobs_due",
        "resync_jobs",
        ["next_attempt_ts"],
        postgresql_where=sa.text("completed_ts IS NULL"),
        sqlite_where=sa.text("completed_ts IS NULL"),
    )


def downgrade() -> None:
    """Drop `resync_jobs`."""
    op.drop_table("resync_jobs")
