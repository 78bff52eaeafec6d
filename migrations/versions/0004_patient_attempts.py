"""How often a room was tried again for what a later attempt may have."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_COUNTERS = ("uncheckable_attempts", "unknown_parent_attempts")


def upgrade() -> None:
    """Add both counters to `resync_jobs`."""
    for name in _COUNTERS:
        op.add_column(
            "resync_jobs", sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0"))
        )


def downgrade() -> None:
    """Drop them."""
    for name in _COUNTERS:
        op.drop_column("resync_jobs", name)
