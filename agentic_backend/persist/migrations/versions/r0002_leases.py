"""Which instance may run turns of a session, where several share the database."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of leases."""
    op.create_table(
        "session_lease",
        # The row stays when the lease has ended, so that the fence goes on from there; it goes with its session.
        sa.Column("session_id", sa.Text, sa.ForeignKey("session.session_id", ondelete="CASCADE"), primary_key=True),
        # The instance that has it, or had it last.
        sa.Column("holder", sa.Text, nullable=False),
        # Grows with each change of the holder; what is written under an older one is refused.
        sa.Column("fence", sa.BigInteger, nullable=False),
        # By this server's clock.
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=False),
    )


def downgrade() -> None:
    """Drop it: leases do not outlive the instances that hold them."""
    op.drop_table("session_lease")
