"""Whether a user may have one more session: of many asked for at once, exactly those within the limit are made."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A function, because its count sees what others have committed while it waited for the lock."""
    op.execute("""
        CREATE FUNCTION room_for_session(owner text, most bigint) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            IF most = 0 THEN
                RETURN true;
            END IF;
            PERFORM pg_advisory_xact_lock(hashtextextended('sessions of ' || owner, 0));
            RETURN (SELECT count(*) FROM session s WHERE s.user_id = owner) < most;
        END $$
    """)


def downgrade() -> None:
    """Drop it."""
    op.execute("DROP FUNCTION room_for_session")
