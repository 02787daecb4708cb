"""Files as they were uploaded, stored so that a piece of one is read without the pieces before it."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """For files that are written from now on; those that are there stay readable, at a higher cost a piece."""
    # A compressed value is unpacked from its beginning for each piece of it.
    op.execute("ALTER TABLE document_contents ALTER COLUMN raw SET STORAGE EXTERNAL")


def downgrade() -> None:
    """As it was."""
    op.execute("ALTER TABLE document_contents ALTER COLUMN raw SET STORAGE EXTENDED")
