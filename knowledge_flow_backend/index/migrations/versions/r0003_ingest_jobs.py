"""Files that were received and are not in the index yet, with their bytes: another process takes over a dead one's."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both tables; a document that is deleted takes its job with it, a job its bytes."""
    op.create_table(
        "ingest_jobs",
        sa.Column("document_uid", sa.Text, sa.ForeignKey("documents.uid", ondelete="CASCADE"), primary_key=True),
        # The mark of the claim in documents.stages: an upload with another mark has lost the document.
        sa.Column("claim", sa.Text, nullable=False, unique=True),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("tag_ids", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("source_tag", sa.Text),
        # Of the document when the file came: a higher one with the same bytes means that it was written.
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("leased_until", sa.TIMESTAMP(timezone=True), nullable=False),
        # Processes that died over it.
        sa.Column("deaths", sa.Integer, nullable=False, server_default="0"),
        sa.Column("received_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "ingest_pieces",
        sa.Column(
            "document_uid", sa.Text, sa.ForeignKey("ingest_jobs.document_uid", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("document_uid", "ordinal"),
    )
    # They live for a minute: compressing them would cost more than it saves.
    op.execute("ALTER TABLE ingest_pieces ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Drop both; files that are not in the index yet are lost."""
    op.drop_table("ingest_pieces")
    op.drop_table("ingest_jobs")
