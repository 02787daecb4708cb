"""What the page does with libraries: the routes of the table are passed on for the caller, and nothing else of
knowledge flow; files pass in pieces."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentic_backend.rest.libraries import PASSED_ROUTES, PREFIX
from agentic_backend.rest.scopes import ROUTE_COSTS, SCOPES
from knowledge_flow_backend.scopes import ROUTE_COSTS as KNOWLEDGE_COSTS
from knowledge_flow_backend.scopes import SCOPES as KNOWLEDGE_SCOPES
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.service import BASE, RunningService, StartService, service, start_service

__all__ = ["service", "start_service"]

MIB = 1024 * 1024
LARGE = 64 * MIB
UNDER_WAY = 24 * MIB
"""What the kernel's buffers of both connections may hold."""
BROKEN_OFF = b'{"step": "index"}\n'


@dataclass
class Played:
    """A knowledge flow that answers as the test says."""

    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    answer: web.Response | None = None
    sent: int = 0
    received: int = 0
    most_under_way: int = 0
    lines: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)
    """Of the answer to an upload; None ends it, `BROKEN_OFF` is the last before it breaks off."""

    async def any(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.path.endswith("/upload-process-documents"):
            return await self.upload(request)
        self.bodies.append(await request.read())
        if request.path.endswith("/raw_content/whole"):
            return await self.file(request)
        assert self.answer is not None
        return self.answer

    async def upload(self, request: web.Request) -> web.StreamResponse:
        if self.answer is not None:
            return self.answer
        async for piece in request.content.iter_any():
            self.received += len(piece)
            self.most_under_way = max(self.most_under_way, self.sent - self.received)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while (line := await self.lines.get()) is not None:
            await response.write(line)
            if line == BROKEN_OFF:
                assert request.transport is not None
                request.transport.abort()
                return response
        return response

    async def file(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/html", "Content-Disposition": "attachment; filename=a.html"}
        response = web.StreamResponse(headers={**headers, "Set-Cookie": "a=b"})
        response.content_length = LARGE
        await response.prepare(request)
        for _ in range(LARGE // MIB):
            await response.write(bytes(MIB))
        return response


@asynccontextmanager
async def knowledge_flow(played: Played) -> AsyncIterator[str]:
    """It on a real port; its base address."""
    app = web.Application(client_max_size=4 * MIB)
    app.router.add_route("*", "/kf/{rest:.*}", played.any)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/kf"
    finally:
        await runner.cleanup()


@pytest.fixture
async def played() -> Played:
    """What knowledge flow answers, and what it was asked."""
    return Played()


@pytest.fixture
async def keeping(start_service: StartService, played: Played) -> AsyncIterator[RunningService]:
    """The service beside that knowledge flow."""
    async with knowledge_flow(played) as url, start_service(ai={"knowledge_flow_url": url}) as running:
        yield running


async def ask(running: RunningService, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """Status and body of a request."""
    async with running.http.request(method, f"{BASE}{PREFIX}{path}", **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


def test_each_route_costs_and_takes_what_that_of_knowledge_flow_does() -> None:
    for route in PASSED_ROUTES:
        path = route.path.replace("/tags/{uid}", "/tags/{tag_id}")
        there, here = f"{route.method} {path}", f"{route.method} {PREFIX}{route.path}"
        assert SCOPES[here] == KNOWLEDGE_SCOPES[there]
        assert ROUTE_COSTS[here] == KNOWLEDGE_COSTS[there]


async def test_a_call_is_passed_on_with_the_callers_token_and_its_answer_comes_back(keeping, played):
    played.answer = web.json_response({"id": "t1"}, status=201)
    assert await ask(keeping, "POST", "/tags", json={"name": "Manuals"}) == (201, {"id": "t1"})
    (request,) = played.seen
    assert (request.method, request.path) == ("POST", "/kf/tags")
    assert request.headers["Authorization"] == "Bearer local"
    assert json.loads(played.bodies[0]) == {"name": "Manuals"}
    played.answer = web.Response(status=204)
    assert await ask(keeping, "DELETE", "/documents/d1") == (204, None)
    assert played.seen[-1].path == "/kf/documents/d1"


async def test_no_path_climbs_out_of_the_table(keeping, played):
    for uid in ("%2e%2e", "..%2fvector", "a%2fb", "a%00b", "x" * 129, "%3fq", "a%23b"):
        status, _ = await ask(keeping, "GET", f"/documents/metadata/{uid}")
        assert status in {404, 422}, uid
    for method, path in (("GET", "/audit/events"), ("POST", "/vector/rerank"), ("GET", "/ready"), ("PATCH", "/tags")):
        status, _ = await ask(keeping, method, path)
        assert status in {404, 405}, path
    assert played.seen == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"a"', b"\xff"])
async def test_what_is_no_json_object_is_refused_here(keeping, played, body):
    headers = {"Content-Type": "application/json"}
    status, answer = await ask(keeping, "POST", "/documents/browse", data=body, headers=headers)
    assert (status, answer["detail"]["code"]) == (422, "bad_request")
    status, answer = await ask(keeping, "POST", "/tags", data=b"{}", headers={"Content-Type": "text/plain"})
    assert (status, answer["detail"]["field"]) == (422, "Content-Type")
    assert played.seen == []


async def test_a_refusal_keeps_its_code_and_field_in_our_words(keeping, played):
    detail = {"code": "bad_request", "message": "<b>not ours</b>", "field": "name"}
    played.answer = web.json_response({"detail": detail}, status=422)
    status, answer = await ask(keeping, "POST", "/tags", json={"name": ""})
    assert status == 422
    assert answer["detail"] == {"code": "bad_request", "message": "The request could not be read.", "field": "name"}
    for status_there, given, status_here, code in (
        (409, {"detail": {"code": "conflict"}}, 409, "conflict"),
        (401, {"detail": "Token expired"}, 401, "unauthenticated"),
        (500, {"detail": {"code": "internal"}}, 503, "kf_unavailable"),
        (418, {"detail": {"code": "teapot"}}, 503, "kf_unavailable"),
        (302, {}, 503, "kf_unavailable"),
        (200, {}, 503, "kf_unavailable"),
    ):
        played.answer = web.json_response(given, status=status_there)
        status, answer = await ask(keeping, "POST", "/tags", json={})
        assert (status, answer["detail"]["code"]) == (status_here, code)
    played.answer = web.json_response({"detail": "Library not found."}, status=404)
    status, answer = await ask(keeping, "DELETE", "/tags/t1")
    assert (status, answer["detail"]) == (404, "This library or document is not there, or not for you.")
    wait = {"Retry-After": "7"}
    played.answer = web.json_response({"detail": {"code": "overloaded"}}, status=503, headers=wait)
    async with keeping.http.get(f"{BASE}{PREFIX}/tags") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "7")


async def test_a_stranger_is_refused_before_knowledge_flow_is_asked(start_service, played):
    security = {"user": {"enabled": True}, "hs256_secret": "0123456789abcdef" * 2}
    async with (
        knowledge_flow(played) as url,
        start_service(ai={"knowledge_flow_url": url}, security=security) as running,
    ):
        for route in PASSED_ROUTES:
            status, _ = await ask(running, route.method, route.path.replace("{uid}", "a"))
            assert status == 401
    assert played.seen == []


async def test_where_knowledge_flow_is_away_each_route_says_so(start_service):
    async with start_service(ai={"knowledge_flow_url": f"http://127.0.0.1:{free_port()}/kf"}) as running:
        for route in PASSED_ROUTES:
            sent: dict[str, Any] = {"json": {}} if route.takes_json else {}
            if route.kind == "upload":
                sent = {"data": form(b"some text")}
            status, answer = await ask(running, route.method, route.path.replace("{uid}", "a"), **sent)
            assert (status, answer["detail"]["code"]) == (503, "kf_unavailable"), route


def form(content: Any, name: str = "a.md") -> aiohttp.FormData:
    data = aiohttp.FormData()
    data.add_field("files", content, filename=name, content_type="application/octet-stream")
    return data


async def test_a_large_upload_passes_and_little_of_it_is_held(keeping, played):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(LARGE // MIB):
            played.sent += MIB
            yield bytes(MIB)

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    await played.lines.put(b'{"step": "done"}\n')
    await played.lines.put(None)
    status, answer = await ask(keeping, "POST", "/upload-process-documents", data=pieces(), headers=headers)
    assert (status, answer) == (200, {"step": "done"})
    assert played.received == LARGE
    assert played.most_under_way <= UNDER_WAY
    assert played.seen[0].headers["Content-Type"] == "multipart/form-data; boundary=b"


async def test_lines_come_while_the_upload_is_worked_on(keeping, played):
    url = f"{BASE}{PREFIX}/upload-process-documents"
    first, second = b'{"step": "parse"}\n', b'{"step": "embed"}\n'
    await played.lines.put(first)
    async with keeping.http.post(url, data=form(b"x" * 1000)) as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"
        assert await response.content.readline() == first
        await played.lines.put(second)
        assert await response.content.readline() == second
        await played.lines.put(None)
        assert await response.read() == b""
    assert int(played.seen[0].headers["Content-Length"]) == played.received


async def test_an_answer_that_breaks_off_does_so_here_too(keeping, played):
    await played.lines.put(BROKEN_OFF)
    async with keeping.http.post(f"{BASE}{PREFIX}/upload-process-documents", data=form(b"x")) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_an_upload_that_is_refused_at_once_is_said_before_all_of_it_has_come(keeping, played):
    played.answer = web.json_response({"detail": {"code": "too_large"}}, status=413)
    never = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        await never.wait()

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with asyncio.timeout(PATIENCE_S):
        status, answer = await ask(keeping, "POST", "/upload-process-documents", data=pieces(), headers=headers)
    assert (status, answer["detail"]["code"]) == (413, "too_large")


async def test_what_is_no_form_is_no_upload(keeping, played):
    for kind in ("application/json", "multipart/mixed; boundary=b", "multipart/form-data; boundary=" + "b" * 300):
        headers = {"Content-Type": kind}
        status, answer = await ask(keeping, "POST", "/upload-process-documents", data=b"{}", headers=headers)
        assert (status, answer["detail"]["field"]) == (422, "Content-Type"), kind
    assert played.seen == []


async def test_a_large_file_comes_back_as_a_download_that_can_run_nothing(keeping):
    async with keeping.http.get(f"{BASE}{PREFIX}/raw_content/whole") as response:
        assert response.headers["Content-Disposition"] == "attachment; filename=a.html"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in response.headers
        received = 0
        async for piece in response.content.iter_any():
            received += len(piece)
    assert received == LARGE
