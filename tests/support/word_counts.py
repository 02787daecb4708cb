"""Counts of words for chunks that were written past the service: all at once, as the migration fills them."""

from typing import Any

import psycopg

from knowledge_flow_backend.index.migrations.versions.r0006_word_counts import FILL


def count_anew(connection: "psycopg.Connection[Any]") -> None:
    """Forget every count, and count what is there; in the index that the search path names."""
    with connection.transaction():
        connection.execute("TRUNCATE word_notes, counted_documents, word_counts, word_places")
        for statement in FILL:
            connection.execute(statement.encode())
