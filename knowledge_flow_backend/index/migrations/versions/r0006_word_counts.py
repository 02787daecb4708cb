"""How many passages hold a word, counted apart for each set of documents that one reader reads or does not read."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# As in engines/pgvector/word_counts.py, which counts from here on; this revision stays as it is.
FILL = (
    """CREATE TEMPORARY TABLE placed ON COMMIT DROP AS
    SELECT d.uid, d.owner_id, d.session_id, t.tag_ids,
        encode(sha256(convert_to(CAST(
            jsonb_build_array(d.owner_id, d.session_id, t.tag_ids) AS text), 'UTF8')), 'hex') AS key
    FROM documents d, LATERAL (
        SELECT coalesce(array_agg(dt.tag_id ORDER BY dt.tag_id), '{}') AS tag_ids FROM document_tags dt
        WHERE dt.document_uid = d.uid AND d.session_id IS NULL
    ) t
    WHERE d.retrievable AND EXISTS (SELECT FROM chunks c WHERE c.document_uid = d.uid)""",
    """INSERT INTO word_places (key, owner_id, session_id, tag_ids)
    SELECT DISTINCT key, owner_id, session_id, tag_ids FROM placed""",
    """INSERT INTO counted_documents (document_uid, place, chunks, words, counts)
    SELECT d.uid, p.id, c.chunks, c.words, c.counts
    FROM placed d JOIN word_places p USING (key), LATERAL (
        SELECT (SELECT count(*) FROM chunks n WHERE n.document_uid = d.uid) AS chunks,
            coalesce(array_agg(w.word), '{}') AS words, coalesce(array_agg(w.n), '{}') AS counts
        FROM (SELECT u.word, CAST(count(*) AS int) AS n FROM chunks k, unnest(tsvector_to_array(k.words)) AS u(word)
              WHERE k.document_uid = d.uid GROUP BY u.word) w
    ) c""",
    """INSERT INTO word_counts (place, word, chunks)
    SELECT k.place, u.word, sum(u.n) FROM counted_documents k, unnest(k.words, k.counts) AS u(word, n) GROUP BY 1, 2""",
    """UPDATE word_places p SET chunks = s.chunks
    FROM (SELECT place, sum(chunks) AS chunks FROM counted_documents GROUP BY place) s WHERE s.place = p.id""",
)


def upgrade() -> None:
    """Add the counts and fill them: a third of a millisecond for each passage, and nothing is written meanwhile."""
    op.execute("SET LOCAL statement_timeout = 0")
    _tables()
    # The triggers lock the tables against writes: what is counted here is all there is.
    _notice_documents()
    _notice_chunks()
    for statement in FILL:
        op.execute(sa.text(statement))


def downgrade() -> None:
    """Raises NotImplementedError: an older program would not count what it writes."""
    raise NotImplementedError("start the newer version")


def _tables() -> None:
    # The documents of an owner that stand in the same libraries, or in one session: who reads one of them reads all.
    op.create_table(
        "word_places",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("owner_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text),
        sa.Column("tag_ids", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("chunks", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_index("word_places_by_owner", "word_places", ["owner_id"], postgresql_where=sa.text("session_id IS NULL"))
    op.create_index("word_places_by_tag", "word_places", ["tag_ids"], postgresql_using="gin")
    op.create_index(
        "word_places_by_session", "word_places", ["session_id"], postgresql_where=sa.text("session_id IS NOT NULL")
    )
    op.create_table(
        "word_counts",
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("word", sa.Text, nullable=False),
        sa.Column("chunks", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("place", "word"),
        postgresql_with={"fillfactor": "80"},  # its rows are rewritten where they stand
    )
    # As what each document was counted: that is taken off when it changes or goes, whatever it holds by then.
    op.create_table(
        "counted_documents",
        sa.Column("document_uid", sa.Text, primary_key=True),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("chunks", sa.BigInteger, nullable=False),
        sa.Column("words", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("counts", sa.ARRAY(sa.Integer), nullable=False),
    )
    # Documents that are to be counted again. Only ever added to: no two writers wait for each other.
    op.create_table(
        "word_notes",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("document_uid", sa.Text, nullable=False),
    )


def _notice_documents() -> None:
    op.execute(
        """CREATE FUNCTION note_words_of_document() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO word_notes (document_uid) VALUES (NEW.uid);
            RETURN NULL;
        END $$"""
    )
    op.execute(
        """CREATE TRIGGER recount_document AFTER UPDATE OF retrievable, owner_id, session_id ON documents FOR EACH ROW
        WHEN ((OLD.retrievable, OLD.owner_id, OLD.session_id)
            IS DISTINCT FROM (NEW.retrievable, NEW.owner_id, NEW.session_id))
        EXECUTE FUNCTION note_words_of_document()"""
    )
    op.execute(
        """CREATE FUNCTION note_words_of_place() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO word_notes (document_uid)
            SELECT DISTINCT uid FROM unnest(ARRAY[OLD.document_uid, NEW.document_uid]) AS u(uid) WHERE uid IS NOT NULL;
            RETURN NULL;
        END $$"""
    )
    op.execute(
        """CREATE TRIGGER recount_place AFTER INSERT OR UPDATE OR DELETE ON document_tags FOR EACH ROW
        EXECUTE FUNCTION note_words_of_place()"""
    )


def _notice_chunks() -> None:
    """A note for each statement, not for each of its rows. One that deletes a document deletes its chunks."""
    op.execute(
        """CREATE FUNCTION note_words_of_chunks() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO word_notes (document_uid) SELECT DISTINCT document_uid FROM touched;
            RETURN NULL;
        END $$"""
    )
    for name, event, image in (
        ("inserted", "INSERT", "NEW"),
        ("deleted", "DELETE", "OLD"),
        ("updated", "UPDATE", "NEW"),
    ):
        op.execute(
            f"""CREATE TRIGGER recount_{name} AFTER {event} ON chunks REFERENCING {image} TABLE AS touched
            FOR EACH STATEMENT EXECUTE FUNCTION note_words_of_chunks()"""
        )
