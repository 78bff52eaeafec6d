"""How often a room was tried again for events that could not be checked."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `resync_jobs.uncheckable_attempts`."""
    op.add_column(
        "resync_jobs",
        sa.Column("uncheckable_attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("resync_jobs", "uncheckable_attempts")
