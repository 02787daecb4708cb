"""When a session was last used by this server's clock, whatever clocks its writers have: what retention goes by."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; what is there was last used when its service said so, but not in the future."""
    op.add_column("session", sa.Column("used_at", sa.TIMESTAMP(timezone=True), server_default=sa.func.now()))
    op.execute("UPDATE session SET used_at = least(updated_at, now())")
    op.alter_column("session", "used_at", nullable=False)
    # A trigger sees each write: of an instance that still runs the version before this one, or by hand, too. Who sets
    # the column means it.
    op.execute("""
        CREATE FUNCTION note_session_use() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.used_at = now();
            RETURN NEW;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER session_is_used BEFORE UPDATE ON session
        FOR EACH ROW WHEN (NEW.used_at IS NOT DISTINCT FROM OLD.used_at) EXECUTE FUNCTION note_session_use()
    """)


def downgrade() -> None:
    """Drop it: retention goes by `updated_at` again."""
    op.execute("DROP TRIGGER session_is_used ON session")
    op.execute("DROP FUNCTION note_session_use")
    op.drop_column("session", "used_at")
