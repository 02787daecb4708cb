"""Why a user rated an answer as they did, and feedback newest first for those who read it all."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
works_from = "0012"


def upgrade() -> None:
    """Add the column and the index. Older programs store feedback without a reason."""
    op.execute("ALTER TABLE feedbacks ADD COLUMN reason text")
    op.execute("CREATE INDEX feedbacks_newest ON feedbacks (created_at DESC, id)")


def downgrade() -> None:
    """Drop both, with the reasons that were given."""
    op.execute("DROP INDEX feedbacks_newest")
    op.execute("ALTER TABLE feedbacks DROP COLUMN reason")
