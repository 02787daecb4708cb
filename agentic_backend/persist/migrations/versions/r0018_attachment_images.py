"""Images that are attached to sessions: their bytes are kept here, beside the conversation that they belong to."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
works_from = "0012"


def upgrade() -> None:
    """Create the table. Older programs list and delete an image as any attachment, and serve none."""
    op.execute("""
        CREATE TABLE attachment_image (
            attachment_id text PRIMARY KEY REFERENCES session_attachments (attachment_id) ON DELETE CASCADE,
            width integer NOT NULL CHECK (width > 0),
            height integer NOT NULL CHECK (height > 0),
            content bytea NOT NULL
        )
    """)
    # Images are compressed already: to try again costs time with each one.
    op.execute("ALTER TABLE attachment_image ALTER COLUMN content SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Drop it: attached images have no bytes then."""
    op.drop_table("attachment_image")
