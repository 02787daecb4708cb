"""Images through both services: drawn anew, shown to their owner alone, kept over restarts, gone with their session."""

import asyncio
import json
import os
from typing import Any

import psycopg
from PIL import Image

from tests.integration.test_attachments import both, call, knowledge, settings, upload
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow
from tests.support.mock_llm import MockModel
from tests.support.people import headers_of
from tests.support.pictures import MIMES, SECRET, encoded, halves, of_so_many, opened, with_metadata
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hits

__all__ = ["knowledge"]
"""The fixture of attachments."""


async def shown(
    service: RunningService, attachment_id: str, session_id: str | None = None, user: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an image."""
    params = {} if session_id is None else {"session_id": session_id}
    headers = {} if user is None else headers_of(user)
    url = f"{BASE}/chatbot/upload/{attachment_id}/image"
    async with service.http.get(url, params=params, headers=headers) as response:
        return response.status, dict(response.headers), await response.read()


async def rows(database: Database) -> tuple[int, int, int, int]:
    """Attachments, images, leftovers, and documents in the index."""

    def count() -> tuple[int, ...]:
        tables = ("session_attachments", "attachment_image", "attachment_leftover", '"turnwise-chunks".documents')
        with psycopg.connect(database.dsn) as connection:
            statement = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)  # noqa: S608 - ours
            (found,) = connection.execute(statement.encode()).fetchall()
            return found

    one, two, three, four = await asyncio.to_thread(count)
    return one, two, three, four


async def taken(service: RunningService, session_id: str, name: str, data: bytes, **options: Any) -> dict[str, Any]:
    status, given = await upload(service, session_id, name, data, **options)
    assert status == 200, given
    answer: dict[str, Any] = given
    return answer


async def test_an_image_is_attached_without_what_its_camera_wrote(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id, other = [await service.create_session(agent_id="Rico") for _ in range(2)]
        for format_, mime in MIMES.items():
            given = await taken(service, session_id, f"{format_}.txt", with_metadata(format_, orientation=6))
            attachment_id = given.pop("attachment_id")
            assert given.pop("session")["id"] == session_id
            assert given.pop("attached_at")
            status, headers, body = await shown(service, attachment_id, session_id)
            assert given == {
                "session_id": session_id,
                "filename": f"{format_}.txt",
                "mime": mime,
                "size_bytes": len(body),
                "width": 32,
                "height": 64,
                "preview_chars": 0,
            }
            assert (status, headers["Content-Type"], headers["Content-Length"]) == (200, mime, str(len(body)))
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
            assert headers["Cache-Control"] == "private, max-age=31536000, immutable"
            assert headers["Content-Disposition"] == "inline"
            image = opened(body)
            assert (image.format, image.size, dict(image.getexif())) == (format_, (32, 64), {})
            assert SECRET.encode() not in body
            assert b"Exif" not in body
            assert (await shown(service, attachment_id))[2] == body
            assert (await shown(service, attachment_id, other))[0] == 404
            status, text = await call(service, "GET", f"upload/{attachment_id}/summary")
            assert (status, json.loads(text)["summary_md"]) == (200, "")
        assert await rows(database) == (3, 3, 0, 0)
        listed = {session["id"]: session for session in await service.get("/chatbot/sessions")}
        assert listed[session_id]["file_names"] == ["PNG.txt", "JPEG.txt", "WEBP.txt"]


async def test_a_large_image_comes_in_parts_and_stays_over_a_restart(
    start_service: StartService, knowledge: RunningKnowledgeFlow
) -> None:
    def noise() -> bytes:
        return encoded(Image.frombytes("RGB", (1200, 900), os.urandom(1200 * 900 * 3)), "PNG", compress_level=1)

    data = await asyncio.to_thread(noise)
    async with start_service(**settings(knowledge.port)) as service:
        session_id = await service.create_session(agent_id="Rico")
        given = await taken(service, session_id, "noise.png", data)
        store = service.instances[0].running.chat.attachments.store
        image = (await store.images("admin", session_id, [given["attachment_id"], "unknown"]))[given["attachment_id"]]
        assert (image.name, image.mime, image.width, image.height) == ("noise.png", "image/png", 1200, 900)
        assert len(image.content) == given["size_bytes"] > 3 * 1024 * 1024
    async with start_service(**settings(1)) as service:
        status, headers, body = await shown(service, given["attachment_id"])
        assert (status, headers["Content-Length"], body) == (200, str(len(body)), image.content)


async def test_an_image_is_its_owners_alone(
    start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with both(start_service, database, mock_llm) as (service, _):
        _, body = await call(service, "POST", "session", "ann", json={"agent_id": "Rico"})
        session_id = json.loads(body)["id"]
        given = await taken(service, session_id, "a.png", encoded(halves(), "PNG"), user="ann")
        note = (await upload(service, session_id, "a.md", "# Notes\n\nOf pumps.\n", user="ann"))[1]
        assert (await shown(service, given["attachment_id"], user="ann"))[0] == 200
        for of_session in (None, session_id):
            unknown = await shown(service, "unknown", of_session, "bob")
            assert (unknown[0], json.loads(unknown[2])["detail"]["code"]) == (404, "attachment_not_found")
            for user, attachment_id in (("bob", given["attachment_id"]), ("ann", note["attachment_id"])):
                status, _, text = await shown(service, attachment_id, of_session, user)
                assert (status, text) == (404, unknown[2])
        assert (await shown(service, given["attachment_id"]))[0] == 401
        assert (
            await service.instances[0].running.chat.attachments.store.images(
                "bob", session_id, [given["attachment_id"]]
            )
            == {}
        )


async def test_images_go_one_by_one_and_with_their_session(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id = await service.create_session(agent_id="Rico")
        data = encoded(halves(), "WEBP")
        one, two = [await taken(service, session_id, f"{number}.webp", data) for number in range(2)]
        assert await rows(database) == (2, 2, 0, 0)
        assert (await call(service, "DELETE", f"upload/{one['attachment_id']}"))[0] == 204
        assert (await shown(service, one["attachment_id"]))[0] == 404
        assert await rows(database) == (1, 1, 0, 0)
        assert await call(service, "DELETE", f"session/{session_id}") == (200, "true")
        assert (await shown(service, two["attachment_id"]))[0] == 404
        assert await rows(database) == (0, 0, 0, 0)


async def test_images_that_may_not_be_attached(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    picture = encoded(halves(), "PNG")
    async with start_service(**settings(knowledge.port, max_attached_files_per_user=2)) as service:
        session_id = await service.create_session(agent_id="Rico")

        async def refused(name: str, data: bytes) -> tuple[int, str, str]:
            status, detail = await upload(service, session_id, name, data)
            return status, detail["code"], detail["message"]

        for name, data, sentence in (
            ("page.png", b"<html><script>alert(1)</script></html>", "Files of this type are not supported."),
            ("cut.png", picture[:60], "The file is damaged, or not of the type that its name says."),
            ("bomb.png", of_so_many("PNG", 20_000, 20_000), "The image has more than 40 million pixels."),
            ("head.jpg", b"\xff\xd8\xff", "The file is no whole PNG, JPEG or WebP image, whatever its name says."),
        ):
            assert await refused(name, data) == (400, "upload_processing_failed", sentence)
        large = picture + bytes(10 * 1024 * 1024)
        assert await refused("large.png", large) == (400, "attachment_too_large", "The attachment is too large.")
        assert hits(service, "max_attached_file_size_mb") == 1
        await taken(service, session_id, "a.png", picture)
        assert (await refused("a.png", picture))[:2] == (409, "attachment_duplicate")
        await taken(service, session_id, "b.png", picture)
        assert (await refused("c.png", picture))[:2] == (400, "attachment_limit_reached")
        assert await rows(database) == (2, 2, 0, 0)


async def test_without_knowledge_flow_an_image_is_refused(start_service: StartService, database: Database) -> None:
    async with start_service(**settings(1)) as service:
        session_id = await service.create_session(agent_id="Rico")
        status, detail = await upload(service, session_id, "a.png", encoded(halves(), "PNG"))
        assert (status, detail["code"]) == (503, "kf_unavailable")
