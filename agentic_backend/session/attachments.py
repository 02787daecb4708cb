"""Files attached to sessions, the port that stores them, and the removal of their documents after deletion."""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from agentic_backend.errors import HistoryUnavailable, KfUnavailable, Unauthenticated
from agentic_backend.knowledge import Caller
from agentic_backend.session.images import Image, ImageStore
from backend_kit.auth import AuditEvent, Credentials, KeyScope
from backend_kit.kpi import Kpi

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0
_MAX_OWNERS: Final = 1000

Verdict = Literal["kept", "duplicate", "limit", "gone"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of a session. `document_uid` is its id in knowledge flow, None if knowledge flow keeps nothing of it, as
    for an image; `summary_md` is the beginning of its text."""

    attachment_id: str
    session_id: str
    user_id: str
    name: str
    mime: str
    size_bytes: int
    summary_md: str
    document_uid: str | None

    def wire(self) -> dict[str, Any]:
        """The attachment in the answers to an upload and to a summary request."""
        return {
            "session_id": self.session_id,
            "attachment_id": self.attachment_id,
            "filename": self.name,
            "mime": self.mime,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class Leftover:
    """A document in knowledge flow whose attachment was deleted here; `with_session`: with its whole session."""

    document_uid: str
    user_id: str
    session_id: str
    with_session: bool


class AttachmentStore(ImageStore, Protocol):
    """Attachments of users' own sessions, deleted with them. Each method may raise `HistoryUnavailable`."""

    async def verdict(self, user_id: str, session_id: str, name: str, most: int) -> Verdict:
        """What `keep` would return for a file of that name now, before it is read."""

    async def keep(self, attachment: Attachment, most: int, image: Image | None = None) -> Verdict:
        """Store it if the user has fewer than `most`, and the session exists and has none of that name; with the bytes
        of `image` where it is one."""

    async def image_part(self, image: Attachment, start: int, size: int) -> bytes:
        """At most `size` bytes of an image from byte `start` on, counted from 0; empty if the image is gone."""

    async def find(self, attachment_id: str, user_id: str, session_id: str | None) -> Attachment | None:
        """An attachment of the user (and of that session, if given), or None."""

    async def delete(self, attachment_id: str, user_id: str, session_id: str | None, event: AuditEvent) -> bool:
        """Delete an attachment of the user; False if it does not exist. Its document becomes a leftover."""

    async def leave(self, attachment: Attachment) -> None:
        """Record the document of an attachment that was not kept as a leftover, if it has one."""

    async def leftovers(self, user_ids: list[str]) -> list[Leftover]:
        """The leftovers of these users, the oldest first, some hundreds at most."""

    async def forget_leftovers(self, document_uids: list[str]) -> None:
        """Drop leftovers that were deleted in knowledge flow."""


class AttachmentDocuments(Protocol):
    """Knowledge flow, which deletes only for the owner. Each method may raise `KfUnavailable`, or
    `Unauthenticated` if it does not accept the caller's token."""

    async def delete(self, document_uid: str, session_id: str, caller: Caller) -> None:
        """Delete one document; not an error if it does not exist."""

    async def delete_session(self, session_id: str, caller: Caller) -> None:
        """Delete all documents that the caller attached to a session."""


class Leftovers:
    """Deletes the documents of deleted attachments in knowledge flow.

    Their list is in Postgres, written with each deletion, so it survives this process. Knowledge flow deletes only for
    the owner, so each document is deleted with its owner's token: immediately after their own deletion, every 30 s
    while knowledge flow is away, otherwise at the owner's next request.
    """

    def __init__(self, store: AttachmentStore, documents: AttachmentDocuments, kpi: Kpi) -> None:
        self._kpi = kpi
        self._store = store
        self._documents = documents
        self._owners: dict[str, Credentials | None] = {}
        self._now = asyncio.Event()

    def note_owner(self, user_id: str, credentials: Credentials | None, *, at_once: bool = False) -> None:
        """Note that a user's token, or a key that may ingest, is available to delete their leftovers. Never waits."""
        grant = None if credentials is None else credentials.grant
        if grant is not None and not grant.may(KeyScope.INGEST):
            return
        self._owners.pop(user_id, None)
        self._owners[user_id] = credentials
        if len(self._owners) > _MAX_OWNERS:
            del self._owners[next(iter(self._owners))]
        if at_once:
            self._now.set()

    async def delete_leftovers(self) -> None:
        """Delete leftovers after each deletion and every 30 s, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S * random.uniform(0.9, 1.1)):  # noqa: S311 # spreads load
                    await self._now.wait()
            except TimeoutError:
                pass
            self._now.clear()
            await self.look()

    async def look(self) -> None:
        """Delete the leftovers of the noted users; drop those users who have none left."""
        owners = dict(self._owners)
        if not owners:
            return
        gone: list[str] = []
        try:
            with self._kpi.phase("attachments_list_on_delete"):
                left = await self._store.leftovers(list(owners))
            for user_id, credentials in owners.items():
                own = [one for one in left if one.user_id == user_id]
                if await self._deleted(own, Caller(credentials), gone) and self._owners.get(user_id) is credentials:
                    del self._owners[user_id]
            if gone:
                await self._store.forget_leftovers(gone)
        except HistoryUnavailable:
            return  # the store has logged it; deleting a document again is no failure

    async def _deleted(self, left: list[Leftover], caller: Caller, gone: list[str]) -> bool:
        """Delete the leftovers of one user, adding the deleted ones to `gone`. False if a retry is needed."""
        sessions: set[str] = set()
        try:
            for one in left:
                if not one.with_session:
                    await self._documents.delete(one.document_uid, one.session_id, caller)
                elif one.session_id not in sessions:
                    await self._documents.delete_session(one.session_id, caller)
                    sessions.add(one.session_id)
                gone.append(one.document_uid)
        except KfUnavailable:
            logger.warning("deleted attachments are still in knowledge flow: %d or more; retrying", len(left))
            return False
        except Unauthenticated:
            return True  # the token has expired: the owner's next request brings another
        return True
