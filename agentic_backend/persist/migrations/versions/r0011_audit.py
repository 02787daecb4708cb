"""The audit log (docs/operations.md#audit-log)."""

from alembic import op

from backend_kit.db.audit import CREATE_AUDIT, DROP_AUDIT

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, which is only added to, and what holds that."""
    for statement in CREATE_AUDIT:
        op.execute(statement)


def downgrade() -> None:
    """Drop it with all events."""
    for statement in DROP_AUDIT:
        op.execute(statement)
