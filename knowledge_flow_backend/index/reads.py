"""Who reads what others have shared: noted once in a while for each library and document, however often it is read."""

from collections.abc import Sequence
from typing import Final, Literal

from sqlalchemy import text

from backend_kit.auth import AuditAction, AuditEvent, Lately, NoteEvent
from backend_kit.db.audit import adding
from knowledge_flow_backend.index.models import ChunkHit, Reader

# Only Postgres knows the owner, and a reader does not wait for it: reads by the owner are left out when the events are
# written, except of what was deleted within that moment.
ADD_EVENTS: Final = text(
    adding(
        """NOT (e.action = 'read_by_share' AND CASE e.kind
        WHEN 'library' THEN EXISTS (SELECT FROM tags t WHERE t.id = e.object_id AND t.owner_id = e.actor)
        ELSE EXISTS (SELECT FROM documents d WHERE d.uid = e.object_id AND d.owner_id = e.actor) END)"""
    )
)


class SharedReads:
    """Gets every read; records those that are new."""

    def __init__(self, note: NoteEvent, lately: Lately) -> None:
        self._note = note
        self._lately = lately

    def of_hits(self, reader: Reader, hits: Sequence[ChunkHit]) -> None:
        """A search found these: the reader has read in their libraries."""
        for library in {library for hit in hits for library in hit.tag_ids}:
            self._of(reader, "library", library)

    def of_document(self, reader: Reader, uid: str) -> None:
        """The reader has read text of this document."""
        self._of(reader, "document", uid)

    def _of(self, reader: Reader, kind: Literal["library", "document"], id_: str) -> None:
        if self._lately.is_new((reader.user_id, reader.key_id, kind, id_)):
            self._note(AuditEvent.by(reader, AuditAction.READ_BY_SHARE, kind, id_))
