"""The places that a session's own attachments are guaranteed among the hits."""

from collections.abc import Sequence
from dataclasses import replace

from knowledge_flow_backend.index import ChunkHit


def with_attachments(hits: Sequence[ChunkHit], attached: Sequence[ChunkHit], limit: int) -> list[ChunkHit]:
    """At most `limit` hits, best first, with as many of the best attached ones as fit.

    An attachment that does not rank high enough replaces the worst hit and comes last. Its score, from another search,
    is cut to that of the hit before it, so that scores keep descending.
    """
    guaranteed = {hit.chunk_uid for hit in attached[:limit]}
    found = {hit.chunk_uid for hit in hits}
    missing = [hit for hit in attached[:limit] if hit.chunk_uid not in found]
    surplus = len(hits) + len(missing) - limit
    kept: list[ChunkHit] = []
    for hit in reversed(hits):
        if surplus > 0 and hit.chunk_uid not in guaranteed:
            surplus -= 1
        else:
            kept.append(hit)
    kept.reverse()
    for hit in missing:
        lowest = kept[-1].score if kept else hit.score
        kept.append(replace(hit, score=min(hit.score, lowest)))
    return kept
