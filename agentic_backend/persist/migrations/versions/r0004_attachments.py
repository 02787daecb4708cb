"""Attachments: kept within a limit, and what is left of deleted ones in knowledge flow."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of leftovers with its trigger, and the function that keeps an attachment."""
    op.create_index("session_attachments_by_user", "session_attachments", ["user_id"])
    op.create_table(
        "attachment_leftover",
        sa.Column("document_uid", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        # The session that it was attached to, which may be gone.
        sa.Column("attached_to", sa.Text, nullable=False),
        sa.Column("left_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_index("attachment_leftover_by_user", "attachment_leftover", ["user_id"])
    _note_what_is_left()
    _keep()


def downgrade() -> None:
    """Drop them: what is left in knowledge flow stays there."""
    op.execute("DROP TRIGGER attachment_is_left ON session_attachments")
    op.execute("DROP FUNCTION note_leftover_attachment")
    op.execute("DROP FUNCTION keep_attachment")
    op.drop_table("attachment_leftover")
    op.drop_index("session_attachments_by_user")


def _note_what_is_left() -> None:
    """A trigger sees every way in which an attachment is deleted: alone, with its session, by retention, by hand."""
    op.execute("""
        CREATE FUNCTION note_leftover_attachment() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO attachment_leftover (document_uid, user_id, attached_to)
            VALUES (OLD.document_uid, OLD.user_id, OLD.session_id) ON CONFLICT DO NOTHING;
            RETURN NULL;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER attachment_is_left AFTER DELETE ON session_attachments
        FOR EACH ROW WHEN (OLD.document_uid IS NOT NULL) EXECUTE FUNCTION note_leftover_attachment()
    """)


def _keep() -> None:
    """A function, because each of its statements sees what the others before the lock have written."""
    op.execute("""
        CREATE FUNCTION keep_attachment(attachment jsonb, most bigint) RETURNS text LANGUAGE plpgsql AS $$
        DECLARE
            kept session_attachments;
        BEGIN
            kept = jsonb_populate_record(NULL::session_attachments, attachment);
            PERFORM pg_advisory_xact_lock(hashtextextended('attachments of ' || kept.user_id, 0));
            IF EXISTS (SELECT FROM session_attachments a WHERE a.attachment_id = kept.attachment_id) THEN
                RETURN 'kept';
            ELSIF EXISTS (
                SELECT FROM session_attachments a WHERE a.session_id = kept.session_id AND a.name = kept.name
            ) THEN
                RETURN 'duplicate';
            ELSIF (SELECT count(*) FROM session_attachments a WHERE a.user_id = kept.user_id) >= most THEN
                RETURN 'limit';
            END IF;
            INSERT INTO session_attachments
                (attachment_id, session_id, user_id, name, mime, size_bytes, summary_md, document_uid)
            SELECT kept.attachment_id, s.session_id, s.user_id, kept.name, kept.mime, kept.size_bytes, kept.summary_md,
                kept.document_uid
            FROM session s WHERE s.session_id = kept.session_id AND s.user_id = kept.user_id FOR KEY SHARE;
            RETURN CASE WHEN FOUND THEN 'kept' ELSE 'gone' END;
        END $$
    """)
