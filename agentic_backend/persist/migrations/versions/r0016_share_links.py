"""Links by which others read a conversation (docs/protocol.md#shared-conversations)."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

works_from = "0012"


def upgrade() -> None:
    """Create the table. A revoked link has no row; those of a session go with it."""
    op.execute("""
        CREATE TABLE share_link (
            id text PRIMARY KEY,
            digest bytea NOT NULL UNIQUE,
            session_id text NOT NULL REFERENCES session (session_id) ON DELETE CASCADE,
            user_id text NOT NULL,
            audience text NOT NULL CHECK (audience IN ('signed_in', 'anybody')),
            up_to integer CHECK (up_to >= 0),
            created_at timestamptz NOT NULL DEFAULT now(),
            expires_at timestamptz
        )
    """)
    op.create_index("share_link_by_session", "share_link", ["session_id", "user_id"])


def downgrade() -> None:
    """Drop it: every link is revoked."""
    op.drop_table("share_link")
