"""Rewrites the words of chunks: names of code by their parts and whole (decision 32)."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# To the parser of Postgres `asyncio.gather` is a host name and `<b>` a tag: punctuation goes before it reads the text.
# The apostrophe stands twice, as in any literal.
PUNCTUATION = "!\"#$%&''()*+,-./:;<=>?@[\\]^_`{|}~"
BLANKS = " " * (len(PUNCTUATION) - 1)

# A dotted name counts whole and by each of its tails: in a text that says `gather`, `asyncio.gather` and
# `tasks.asyncio.gather` are different things. At most 8 parts each, so that a line of dots costs no more than prose.
SEARCH_WORDS = rf"""
CREATE FUNCTION search_words(written text) RETURNS tsvector LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $f$
SELECT to_tsvector('english', translate(written, '{PUNCTUATION}', '{BLANKS}')) || coalesce((
    SELECT CAST(string_agg(DISTINCT '''' || lower(tail.name) || '''\:1', ' ') AS tsvector)
    FROM regexp_matches(written, '[0-9A-Za-z_]+(?:\.[0-9A-Za-z_]+){{1,7}}|[0-9A-Za-z]*_[0-9A-Za-z_]*', 'g') AS found,
        LATERAL string_to_array(found[1], '.') AS parts,
        LATERAL (SELECT array_to_string(parts[n:], '.') AS name FROM generate_subscripts(parts, 1) AS n) AS tail
    WHERE tail.name ~ '[._]' AND tail.name ~ '[0-9A-Za-z]' AND length(tail.name) <= 200
), '')
$f$
"""  # noqa: S608 - constants of this module
WORDS = "setweight(search_words(title || ' ' || section), 'A') || search_words(content)"


def upgrade() -> None:
    """Write every chunk's words again: half a millisecond each, and nothing is searched meanwhile."""
    op.execute("SET LOCAL statement_timeout = 0")
    op.execute(SEARCH_WORDS)
    op.execute("ALTER TABLE chunks DROP COLUMN words")
    op.execute(f"ALTER TABLE chunks ADD COLUMN words tsvector NOT NULL GENERATED ALWAYS AS ({WORDS}) STORED")
    op.execute("ALTER TABLE chunks ALTER COLUMN words SET STORAGE MAIN")
    op.create_index("chunks_words", "chunks", ["words"], postgresql_using="gin", postgresql_with={"fastupdate": "off"})
    # They count other words; ANALYZE and the service make new ones.
    op.execute(sa.text("DELETE FROM common_words"))


def downgrade() -> None:
    """Raises NotImplementedError: an older program would look for words that are not there."""
    raise NotImplementedError("start the newer version")
