"""Sessions, their history and what hangs on them; feedback; agents that were made over REST."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of docs/contract.md#tables."""
    _session()
    _history()
    _attachments()
    _feedbacks()
    _agent()


def downgrade() -> None:
    """Refused: it would delete every conversation."""
    raise NotImplementedError("the first revision is not undone")


def _session() -> None:
    op.create_table(
        "session",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        # {"title": text, "next_rank": int, "preferences": {…}}
        sa.Column("session_data", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.TIMESTAMP(timezone=True), nullable=False),
        # Grows with each turn; an older turn that arrives late does not overwrite a newer one.
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_index("session_by_user", "session", ["user_id", sa.text("updated_at DESC")])


def _history() -> None:
    op.create_table(
        "session_history",
        # What hangs on a session goes with it, also what was written while the delete waited for its lock.
        sa.Column("session_id", sa.Text, sa.ForeignKey("session.session_id", ondelete="CASCADE"), nullable=False),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("timestamp", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("exchange_id", sa.Text, nullable=False),
        sa.Column("parts_json", JSONB, nullable=False),
        sa.Column("metadata_json", JSONB, nullable=False),
        # Windows of history walk this key backwards.
        sa.PrimaryKeyConstraint("session_id", "user_id", "rank"),
        # The last guard against two turns with the same rank.
        sa.UniqueConstraint("session_id", "rank", name="session_history_one_message_a_rank"),
        sa.CheckConstraint("jsonb_typeof(parts_json) = 'array'", name="session_history_parts_are_a_list"),
        sa.CheckConstraint("jsonb_typeof(metadata_json) = 'object'", name="session_history_metadata_is_an_object"),
    )


def _attachments() -> None:
    op.create_table(
        "session_attachments",
        sa.Column("attachment_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, sa.ForeignKey("session.session_id", ondelete="CASCADE"), nullable=False),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("mime", sa.Text),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("summary_md", sa.Text, nullable=False, server_default=""),
        sa.Column("document_uid", sa.Text),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("updated_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_index("session_attachments_by_session", "session_attachments", ["session_id"])


def _feedbacks() -> None:
    op.create_table(
        "feedbacks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, sa.ForeignKey("session.session_id", ondelete="CASCADE"), nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("agent_name", sa.Text, nullable=False),
        sa.Column("rating", sa.SmallInteger, nullable=False),
        sa.Column("comment", sa.Text),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("rating BETWEEN 1 AND 5", name="feedbacks_rating_is_1_to_5"),
    )
    op.create_index("feedbacks_by_session", "feedbacks", ["session_id"])
    op.create_index("feedbacks_by_user", "feedbacks", ["user_id", sa.text("created_at DESC")])


def _agent() -> None:
    op.create_table(
        "agent",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload_json", JSONB, nullable=False),
        sa.Column("updated_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
    )
