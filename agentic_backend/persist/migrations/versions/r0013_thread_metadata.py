"""What clients of LangGraph's door keep with a session, and when it was made."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
works_from = "0012"


def upgrade() -> None:
    """Add the columns. Nobody knows when the sessions that are there were made: theirs stays null."""
    op.execute("ALTER TABLE session ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}', ADD COLUMN created_at timestamptz")
    op.execute("ALTER TABLE session ALTER COLUMN created_at SET DEFAULT now()")
    # Each turn updates its session, and writes an entry into each index of it: not into this one, for most.
    op.execute("""
        CREATE INDEX session_by_metadata ON session USING gin (metadata jsonb_path_ops) WHERE metadata <> '{}'
    """)


def downgrade() -> None:
    """Drop them, with what clients kept."""
    op.execute("DROP INDEX session_by_metadata")
    op.execute("ALTER TABLE session DROP COLUMN metadata, DROP COLUMN created_at")
