"""What an engine beside Postgres needs: which one wrote the index, and which documents it has not followed yet."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it. With pgvector the columns stay empty and no trigger fires."""
    op.add_column("index_info", sa.Column("engine", sa.Text, nullable=False, server_default="pgvector"))
    # Names one write of a document in the other engine. Chunks there of any other one are old, or not valid yet.
    op.add_column("documents", sa.Column("generation", sa.Text))
    op.create_index(
        "documents_by_generation",
        "documents",
        ["generation"],
        unique=True,
        postgresql_where=sa.text("generation IS NOT NULL"),
    )
    _index_identity()
    _index_pending()
    _notice_documents()
    _notice_places()


def downgrade() -> None:
    """Raises NotImplementedError: the other engine would keep chunks that nothing refers to."""
    raise NotImplementedError("delete the index and ingest again")


def _index_identity() -> None:
    """One row: tells two databases apart that name the same index on the same cluster."""
    op.create_table(
        "index_identity",
        sa.Column("one_row", sa.Boolean, sa.CheckConstraint("one_row"), primary_key=True, server_default=sa.true()),
        sa.Column("token", sa.Text, nullable=False, server_default=sa.text("CAST(gen_random_uuid() AS text)")),
    )
    op.execute("INSERT INTO index_identity DEFAULT VALUES")


def _index_pending() -> None:
    """Documents whose chunks in the other engine differ from what stands here, or are about to.

    `generation` set: chunks of it are to be deleted unless it is the document's own. Null: what a query filters by has
    changed. `intent`: a write that is under way, or was when its process died.
    """
    op.create_table(
        "index_pending",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("document_uid", sa.Text, nullable=False),
        sa.Column("generation", sa.Text),
        sa.Column("intent", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("noted_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now()),
    )


def _notice_documents() -> None:
    op.execute(
        """CREATE FUNCTION note_old_generation() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO index_pending (document_uid, generation) VALUES (OLD.uid, OLD.generation);
            RETURN NULL;
        END $$"""
    )
    op.execute(
        """CREATE FUNCTION note_changed_document() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO index_pending (document_uid) VALUES (NEW.uid);
            RETURN NULL;
        END $$"""
    )
    op.execute(
        """CREATE TRIGGER old_generation AFTER DELETE ON documents FOR EACH ROW
        WHEN (OLD.generation IS NOT NULL) EXECUTE FUNCTION note_old_generation()"""
    )
    op.execute(
        """CREATE TRIGGER replaced_generation AFTER UPDATE OF generation ON documents FOR EACH ROW
        WHEN (OLD.generation IS NOT NULL AND OLD.generation IS DISTINCT FROM NEW.generation)
        EXECUTE FUNCTION note_old_generation()"""
    )
    op.execute(
        """CREATE TRIGGER changed_document AFTER UPDATE OF retrievable, title, owner_id, session_id ON documents
        FOR EACH ROW WHEN (OLD.generation = NEW.generation
            AND (OLD.retrievable, OLD.title, OLD.owner_id, OLD.session_id)
            IS DISTINCT FROM (NEW.retrievable, NEW.title, NEW.owner_id, NEW.session_id))
        EXECUTE FUNCTION note_changed_document()"""
    )


def _notice_places() -> None:
    op.execute(
        """CREATE FUNCTION note_changed_place() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO index_pending (document_uid)
            SELECT uid FROM documents WHERE generation IS NOT NULL AND uid IN (OLD.document_uid, NEW.document_uid);
            RETURN NULL;
        END $$"""
    )
    op.execute(
        """CREATE TRIGGER changed_place AFTER INSERT OR UPDATE OR DELETE ON document_tags FOR EACH ROW
        EXECUTE FUNCTION note_changed_place()"""
    )
