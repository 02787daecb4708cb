"""What later exchanges have superseded (decision 101)."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
works_from = "0012"


def upgrade() -> None:
    """Create the index of questions that began behind an earlier message. Who writes waits for it; an operator may
    have made it before, without. Older programs write its questions, too, where they go on with a turn."""
    op.execute("""
        CREATE INDEX IF NOT EXISTS session_history_forks ON session_history (session_id, user_id, rank) WHERE
        CASE WHEN role = 'user' AND channel = 'final'
            AND jsonb_typeof(metadata_json #> '{extras,after_rank}') = 'number'
        THEN (metadata_json #> '{extras,after_rank}')::numeric < rank - 1 ELSE false END
    """)


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("session_history_forks")
