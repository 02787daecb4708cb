"""Agents that are made over REST: one of each name."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index; the table is there, and nothing has written to it before."""
    op.create_index("agent_one_of_a_name", "agent", ["name"], unique=True)


def downgrade() -> None:
    """Drop it."""
    op.drop_index("agent_one_of_a_name")
