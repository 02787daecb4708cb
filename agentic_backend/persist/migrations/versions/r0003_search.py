"""Full-text search in conversations, and one feedback a message."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the indexes. Who writes waits for it; an operator may have made the first before, without."""
    # The user is a word of each message: a search looks only at the places where both are. Hashed, because a word
    # may have 2 KB and no parser makes one that begins with an @. What follows 100,000 characters cannot be found: a
    # vector holds 1 MiB, and a message that is too large for it could not be stored.
    op.execute("""
        CREATE INDEX IF NOT EXISTS session_history_words ON session_history USING gin ((
            array_to_tsvector(ARRAY['@' || md5(user_id)]) || to_tsvector('simple', left(
                jsonb_path_query_first(parts_json, '$[*] ? (@.type == "text").text') #>> '{}', 100000))
        )) WHERE channel = 'final'
    """)
    op.create_index("feedbacks_one_a_message", "feedbacks", ["session_id", "user_id", "message_id"], unique=True)


def downgrade() -> None:
    """Drop them."""
    op.drop_index("feedbacks_one_a_message")
    op.drop_index("session_history_words")
