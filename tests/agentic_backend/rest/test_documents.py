"""What the page reads of documents: passed on for the caller, and nothing else of knowledge flow."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import pytest
from aiohttp import web

from tests.support.ports import free_port
from tests.support.service import BASE, RunningService, StartService, service, start_service

__all__ = ["service", "start_service"]

UID = "7a1b"


def listed(uid: str, path: str, title: str = "Some title", *tags: str) -> dict[str, object]:
    """A document as a listing of knowledge flow has it."""
    name = path.rpartition("/")[2]
    names = {"title": title, "file_name": name, "file_path": path, "mime_type": "text/markdown"}
    return {"document_uid": uid, **names, "tag_ids": list(tags or ("t1",))}


LIBRARY = [
    listed(UID, "texts/guide.md"),
    listed("search", "texts/search.md", "Search"),
    listed("readme", "README.md", "Read me"),
    listed("a", "texts/a/notes.md"),
    listed("b", "texts/b/notes.md"),
    listed("spaced", "texts/two words.md"),
    listed("titled", "x1.pdf", "Betriebshandbuch"),
    listed("elsewhere", "texts/secret.md", "Secret", "t2"),
]


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

    async def metadata(request: web.Request) -> web.Response:
        seen.append(request)
        if request.match_info["uid"] == "odd":
            return web.json_response({"title": 1})
        if request.match_info["uid"] != UID:
            return web.json_response({"detail": "Document not found."}, status=404)
        return web.json_response(listed(UID, "texts/guide.md"))

    async def browse(request: web.Request) -> web.Response:
        seen.append(request)
        wanted = await request.json()
        assert wanted["filters"]["tag_ids"] == ["t1"]
        name = wanted["filters"]["name"].lower()
        found = [one for one in LIBRARY if name in f"{one['file_name']} {one['title']}".lower()]
        return web.json_response({"total": len(found), "documents": found})

    app = web.Application()
    app.router.add_get("/kf/documents/metadata/{uid}", metadata)
    app.router.add_post("/kf/documents/browse", browse)
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


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        ("search.md", "search"),
        ("./search.md", "search"),
        ("../texts/search.md", "search"),
        ("../README.md", "readme"),
        ("/README.md", "readme"),
        ("../../../README.md", "readme"),
        ("a/notes.md", "a"),
        ("../b/search.md", "search"),  # moved since: the only one of that name
        ("two%20words.md", "spaced"),
        ("SEARCH.md", "search"),
        ("search", "search"),
        ("betriebshandbuch", "titled"),
    ],
)
async def test_a_relative_link_leads_to_the_document_of_that_path_or_name(reading, path, uid):
    found = await reading.get(f"/documents/{UID}/linked?{urlencode({'path': path})}")
    assert found["document_uid"] == uid
    assert set(found) == {"document_uid", "title", "file_name", "mime_type"}


@pytest.mark.parametrize(
    "path", ["notes.md", "missing.md", "guide.md", "secret.md", "..", "/", "sear", "texts/", "%00"]
)
async def test_a_link_that_names_none_or_several_or_what_is_in_another_library_leads_nowhere(reading, path):
    async with reading.http.get(f"{BASE}/documents/{UID}/linked", params={"path": path}) as response:
        assert response.status == 404, path


async def test_what_is_asked_of_a_link_is_bounded_and_a_broken_answer_is_said(reading, seen):
    for path in ("", "x" * 1001, "a\0b"):
        async with reading.http.get(f"{BASE}/documents/{UID}/linked", params={"path": path}) as response:
            assert response.status == 422
    assert await status_of(reading, f"/documents/{UID}/linked") == 422
    assert seen == []
    assert await status_of(reading, "/documents/unknown/linked?path=x.md") == 404
    assert await status_of(reading, "/documents/odd/linked?path=x.md") == 503


async def test_a_stranger_is_refused_before_knowledge_flow_is_asked(start_service, seen):
    security = {"user": {"enabled": True}, "hs256_secret": "0123456789abcdef" * 2}
    async with knowledge_flow(seen) as url, start_service(ai={"knowledge_flow_url": url}, security=security) as running:
        assert await status_of(running, f"/documents/{UID}/markdown") == 401
        assert await status_of(running, f"/documents/{UID}/chunks/c1") == 401
        assert await status_of(running, f"/documents/{UID}/linked?path=x.md") == 401
    assert seen == []


async def test_a_knowledge_flow_that_fails_is_said_with_its_code(reading):
    async with reading.http.get(f"{BASE}/documents/ill/markdown") as response:
        assert response.status == 503
        assert (await response.json())["detail"]["code"] == "kf_unavailable"
