"""Documents with their content, libraries, chunks with their vectors and words."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TSVECTOR
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WORDS = "setweight(to_tsvector('english', title || ' ' || section), 'A') || to_tsvector('english', content)"


class Vector(UserDefinedType[str]):
    """pgvector's type, without a length: the first write to the index gives it the length of its model."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """The name of the type."""
        return "vector"


def upgrade() -> None:
    """Create everything in the schema that the search path names first."""
    _index_info()
    _documents()
    _document_contents()
    _tags()
    _chunks()
    _common_words()


def downgrade() -> None:
    """Raises NotImplementedError: it would delete every document."""
    raise NotImplementedError("the first revision is not undone")


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    default = None if nullable else sa.func.now()
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=nullable, server_default=default)


def _index_info() -> None:
    """One row after the first write: which embedder wrote it. Another one is refused with schema_mismatch."""
    op.create_table(
        "index_info",
        sa.Column("one_row", sa.Boolean, sa.CheckConstraint("one_row"), primary_key=True, server_default=sa.true()),
        sa.Column("embedding_model", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        _time("created_at"),
    )


def _documents() -> None:
    op.create_table(
        "documents",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("owner_id", sa.Text, nullable=False),
        # An attachment: its owner sees it in this session, nobody else anywhere.
        sa.Column("session_id", sa.Text),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("file_name", sa.Text, nullable=False),
        sa.Column("file_path", sa.Text),
        sa.Column("mime_type", sa.Text, nullable=False),
        sa.Column("type", sa.Text),
        sa.Column("source_tag", sa.Text),
        sa.Column("author", sa.Text),
        sa.Column("language", sa.Text),
        sa.Column("license", sa.Text),
        sa.Column("repository", sa.Text),
        sa.Column("pull_location", sa.Text),
        sa.Column("confidential", sa.Boolean, nullable=False, server_default=sa.false()),
        # Of the file; when the row was made and changed stands below.
        _time("created", nullable=True),
        _time("modified", nullable=True),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        # Grows with each replacement of the content.
        sa.Column("version", sa.Integer, nullable=False, server_default="0"),
        sa.Column("retrievable", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("status", sa.Text, nullable=False, server_default="processing"),
        # {"parse": {"status", "ms"}, …}
        sa.Column("stages", JSONB, nullable=False, server_default="{}"),
        # A word of the closed list of reasons, never an exception text.
        sa.Column("error", sa.Text),
        sa.Column("chunk_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("token_count", sa.BigInteger, nullable=False, server_default="0"),
        _time("ingested_at"),
        _time("updated_at"),
        sa.CheckConstraint("status IN ('processing', 'ready', 'failed')", name="documents_status_is_known"),
    )
    op.create_index("documents_by_owner", "documents", ["owner_id", sa.text("updated_at DESC")])
    op.create_index("documents_by_content", "documents", ["owner_id", "content_hash"])
    op.create_index(
        "documents_by_session", "documents", ["session_id"], postgresql_where=sa.text("session_id IS NOT NULL")
    )


def _document_contents() -> None:
    """Apart from the document's row, which every search reads."""
    op.create_table(
        "document_contents",
        sa.Column("document_uid", sa.Text, sa.ForeignKey("documents.uid", ondelete="CASCADE"), primary_key=True),
        sa.Column("markdown", sa.Text, nullable=False),
        sa.Column("raw", sa.LargeBinary, nullable=False),
    )


def _tags() -> None:
    """Libraries. Their owner reads them, and whom the three columns of readers name."""
    op.create_table(
        "tags",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        # The libraries above this one, "a/b"; "" at the top.
        sa.Column("path", sa.Text, nullable=False, server_default=""),
        sa.Column("type", sa.Text, nullable=False, server_default="document"),
        sa.Column("description", sa.Text),
        sa.Column("owner_id", sa.Text, nullable=False),
        sa.Column("everyone", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("reader_users", ARRAY(sa.Text), nullable=False, server_default="{}"),
        sa.Column("reader_groups", ARRAY(sa.Text), nullable=False, server_default="{}"),
        _time("created_at"),
        _time("updated_at"),
        sa.UniqueConstraint("owner_id", "path", "name", name="tags_one_name_a_place"),
    )
    op.create_table(
        "document_tags",
        sa.Column("document_uid", sa.Text, sa.ForeignKey("documents.uid", ondelete="CASCADE"), nullable=False),
        sa.Column("tag_id", sa.Text, sa.ForeignKey("tags.id", ondelete="CASCADE"), nullable=False),
        sa.PrimaryKeyConstraint("document_uid", "tag_id"),
    )
    op.create_index("document_tags_by_tag", "document_tags", ["tag_id"])


def _chunks() -> None:
    op.create_table(
        "chunks",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("uid", sa.Text, nullable=False, unique=True),
        sa.Column("document_uid", sa.Text, sa.ForeignKey("documents.uid", ondelete="CASCADE"), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        # The document's title, kept here because its words count in the search.
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("section", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("page", sa.Integer),
        sa.Column("char_start", sa.Integer, nullable=False),
        sa.Column("char_end", sa.Integer, nullable=False),
        sa.Column("token_count", sa.Integer, nullable=False),
        sa.Column("embedding", Vector(), nullable=False),
        sa.Column("words", TSVECTOR, sa.Computed(WORDS, persisted=True), nullable=False),
        sa.UniqueConstraint("document_uid", "ordinal", name="chunks_one_of_each_ordinal"),
    )
    # A lexical search ranks hundreds of chunks by `words`: kept in the row and uncompressed, it costs 1 µs to read and
    # not 8. What leaves the row when it grows is the text, of which a search reads its few hits.
    op.execute("ALTER TABLE chunks SET (toast_tuple_target = 4080)")
    op.execute("ALTER TABLE chunks ALTER COLUMN words SET STORAGE MAIN")
    # Without a list of pending entries, which every search would have to read through.
    op.create_index("chunks_words", "chunks", ["words"], postgresql_using="gin", postgresql_with={"fastupdate": "off"})


def _common_words() -> None:
    """How many chunks hold each of the commonest words, from Postgres' own statistics: counting those is dear."""
    op.create_table(
        "common_words",
        sa.Column("word", sa.Text, primary_key=True),
        sa.Column("chunks", sa.BigInteger, nullable=False),
    )
