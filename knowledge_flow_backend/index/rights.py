"""Who reads a library, as a condition on its row `t`: one text, so that search and every other route cannot differ."""

from typing import Final

READS_LIBRARY: Final = """(t.owner_id = :reader OR t.everyone OR :reader = ANY(t.reader_users)
        OR t.reader_groups && CAST(:groups AS text[]))"""
"""Takes `reader` (text) and `groups` (list of text), both of a verified identity."""
