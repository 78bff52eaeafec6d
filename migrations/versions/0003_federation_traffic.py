"""What other servers sent us, and what they have not confirmed yet."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create `resync_received_transactions` and `resync_outgoing_events`."""
    op.create_table(
        "resync_received_transactions",
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("transaction_id", sa.Text, nullable=False),
        sa.Column("received_ts", sa.BigInteger, nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint(
            "origin", "transaction_id", name="resync_received_transactions_pkey"
        ),
    )
    op.create_index(
        "resync_received_transactions_ts", "resync_received_transactions", ["received_ts"]
    )
    op.create_table(
        "resync_outgoing_events",
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("event_id", sa.Text, nullable=False),
        sa.Column("room_id", sa.Text, nullable=False),
        sa.Column("stream_ordering", sa.BigInteger, nullable=False),
        sa.Column("queued_ts", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("destination", "event_id", name="resync_outgoing_events_pkey"),
    )
    op.create_index(
        "resync_outgoing_events_order",
        "resync_outgoing_events",
        ["destination", "stream_ordering"],
    )


def downgrade() -> None:
    """Drop both."""
    op.drop_table("resync_outgoing_events")
    op.drop_table("resync_received_transactions")
