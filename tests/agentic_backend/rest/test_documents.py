"""What the page reads of documents: passed on for the caller, and nothing else of knowledge flow."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.support.ports import free_port
from tests.support.service import BASE, RunningService, StartService, service, start_service

__all__ = ["service", "start_service"]

UID = "7a1b"


@asynccontextmanager
async def knowledge_flow(seen: list[web.Request]) -> AsyncIterator[str]:
    """A knowledge flow with one document, on a real port; its base address."""

    async def markdown(request: web.Request) -> web.Response:
        seen.append(request)
        if request.match_info["uid"] == "ill":
            return web.Response(status=500)
        if request.match_info["uid"] != UID:
            return web.json_response({"detail": "Document not found."}, status=404)
        return web.json_response({"content": "# A title\n"})

    async def chunk(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"text": "A title", "start": 2, "end": 9, "section": "", "page": None})

    app = web.Application()
    app.router.add_get("/kf/markdown/{uid}", markdown)
    app.router.add_get("/kf/documents/{uid}/chunks/{chunk}", chunk)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/kf"
    finally:
        await runner.cleanup()


@pytest.fixture
async def seen() -> list[web.Request]:
    """The requests that reached knowledge flow."""
    return []


@pytest.fixture
async def reading(start_service: StartService, seen: list[web.Request]) -> AsyncIterator[RunningService]:
    """The service beside that knowledge flow."""
    async with knowledge_flow(seen) as url, start_service(ai={"knowledge_flow_url": url}) as running:
        yield running


async def status_of(running: RunningService, path: str, **options: object) -> int:
    async with running.http.get(BASE + path, **options) as response:  # type: ignore[arg-type]
        return response.status


async def test_a_document_and_a_passage_are_passed_on_with_the_callers_token(reading, seen):
    assert await reading.get(f"/documents/{UID}/markdown") == {"content": "# A title\n"}
    assert (await reading.get(f"/documents/{UID}/chunks/c1"))["text"] == "A title"
    assert [request.headers["Authorization"] for request in seen] == ["Bearer local", "Bearer local"]
    assert [request.path for request in seen] == [f"/kf/markdown/{UID}", f"/kf/documents/{UID}/chunks/c1"]


async def test_what_is_missing_is_404_and_opens_no_circuit(reading):
    for _ in range(30):
        assert await status_of(reading, "/documents/unknown/markdown") == 404
    assert await status_of(reading, f"/documents/{UID}/markdown") == 200


async def test_no_path_climbs_out_of_the_two_that_there_are(reading, seen):
    for uid in ("%2e%2e", "..%2fvector", "a%2fb", "a%00b", "x" * 129, "%3fq", "a%23b"):
        assert await status_of(reading, f"/documents/{uid}/markdown") in {404, 422}, uid
        assert await status_of(reading, f"/documents/{UID}/chunks/{uid}") in {404, 422}, uid
    assert seen == []


async def test_a_stranger_is_refused_before_knowledge_flow_is_asked(start_service, seen):
    security = {"user": {"enabled": True}, "hs256_secret": "0123456789abcdef" * 2}
    async with knowledge_flow(seen) as url, start_service(ai={"knowledge_flow_url": url}, security=security) as running:
        assert await status_of(running, f"/documents/{UID}/markdown") == 401
        assert await status_of(running, f"/documents/{UID}/chunks/c1") == 401
    assert seen == []


async def test_a_knowledge_flow_that_fails_is_said_with_its_code(reading):
    async with reading.http.get(f"{BASE}/documents/ill/markdown") as response:
        assert response.status == 503
        assert (await response.json())["detail"]["code"] == "kf_unavailable"
