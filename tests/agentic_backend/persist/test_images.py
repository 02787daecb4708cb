"""Images in Postgres: stored with their attachment or not at all, found by their owner only, gone with it."""

import asyncio
from dataclasses import replace

from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.attachments import Attachment
from agentic_backend.session.images import Image
from backend_kit.auth import AuditAction, AuditEvent, Identity
from tests.agentic_backend.records import USER, new_session, rows
from tests.support.postgres import Database

BYTES = bytes(range(256)) * 40_000
"""About as many as an image may have."""


def picture(session_id: str, attachment_id: str = "a1", name: str = "map.png") -> tuple[Attachment, Image]:
    attachment = Attachment(attachment_id, session_id, USER, name, "image/png", len(BYTES), "", None)
    return attachment, Image(attachment_id, name, "image/png", 640, 480, BYTES)


async def keep(persistence: Persistence, made: tuple[Attachment, Image], most: int = 5) -> str:
    return await persistence.attachments.keep(made[0], most, made[1])


async def test_an_image_comes_back_as_it_was_stored_and_to_its_owner_only(persistence: Persistence) -> None:
    session, other = await new_session(persistence), await new_session(persistence)
    made = picture(session.id)
    assert await keep(persistence, made) == "kept"
    assert await keep(persistence, made) == "kept"  # a statement whose connection was lost is run again
    note = Attachment("a2", session.id, USER, "a.md", "text/markdown", 1, "a", "d1")
    assert await persistence.attachments.keep(note, 5) == "kept"

    images = persistence.attachments.images
    assert await images(USER, session.id, ["a1", "a2", "a3"]) == {"a1": made[1]}
    assert await images(USER, None, ["a1"]) == {"a1": made[1]}
    assert await images(USER, session.id, []) == {}
    assert await images("bob", session.id, ["a1"]) == {}
    assert await images(USER, other.id, ["a1"]) == {}
    assert await persistence.attachments.find("a1", USER, session.id) == made[0]
    assert "quokka" not in repr(replace(made[1], content=b"quokka"))


async def test_what_is_no_attachment_has_no_bytes(persistence: Persistence, database: Database) -> None:
    session = await new_session(persistence)
    assert await keep(persistence, picture(session.id)) == "kept"
    assert await keep(persistence, picture(session.id, "a2")) == "duplicate"
    assert await keep(persistence, picture(session.id, "a3", "b.png"), most=1) == "limit"
    assert await keep(persistence, picture("nowhere", "a4", "c.png")) == "gone"
    assert rows(database.dsn, "SELECT attachment_id FROM attachment_image") == [("a1",)]


async def test_an_image_goes_with_its_attachment_and_leaves_nothing_elsewhere(
    persistence: Persistence, database: Database
) -> None:
    session = await new_session(persistence)
    event = AuditEvent.by(Identity(USER, USER), AuditAction.ATTACHMENT_DELETED, "attachment", "a1")
    for attachment_id in ("a1", "a2"):
        assert await keep(persistence, picture(session.id, attachment_id, f"{attachment_id}.png")) == "kept"
    assert await persistence.attachments.delete("a1", USER, session.id, event)
    assert rows(database.dsn, "SELECT attachment_id FROM attachment_image") == [("a2",)]

    assert await persistence.store.delete(session.id, USER)
    assert await persistence.attachments.images(USER, session.id, ["a2"]) == {}
    for table in ("session_attachments", "attachment_image", "attachment_leftover"):
        counted = await asyncio.to_thread(rows, database.dsn, f"SELECT count(*) FROM {table}")  # noqa: S608 - ours
        assert counted == [(0,)]
