"""A search as the parameters of its statements, and a row of theirs as a hit."""

from collections.abc import Sequence
from typing import Any

from knowledge_flow_backend.index import ChunkHit, IndexQuery


def scope_of(query: IndexQuery) -> dict[str, object]:
    """Who reads, and where is searched."""
    return {
        "reader": query.reader.user_id,
        "groups": list(query.reader.groups),
        "corpus": query.corpus,
        "libraries": None if query.libraries is None else list(query.libraries),
        "documents": None if query.documents is None else list(query.documents),
        "session": query.session_id,
    }


def candidates_of(query: IndexQuery) -> int:
    """Chunks of each half. At least as many as hits are wanted: with few in both, those of one must fill the list."""
    return max(query.candidates, query.limit)


def hit_of(row: Sequence[Any]) -> ChunkHit:
    """The columns stand in the order of the fields; the last three are arrays, null where there is no library."""
    return ChunkHit(*row[:-3], *(tuple(names or ()) for names in row[-3:]))
