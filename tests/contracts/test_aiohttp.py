"""What aiohttp does beyond its documentation, for clients that hold bytes and connections to a bound."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentic_backend.knowledge.attachments import _Lent
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers


class WatchedFile(io.BytesIO):
    """Says where it was closed."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.closed_by: list[threading.Thread] = []
        self.was_closed = threading.Event()

    def close(self) -> None:
        self.closed_by.append(threading.current_thread())
        super().close()
        self.was_closed.set()


@asynccontextmanager
async def posted(payload: aiohttp.payload.Payload) -> AsyncIterator[bytes]:
    """What a server receives of a payload, once the request is over."""
    received = b""

    async def take(request: web.Request) -> web.Response:
        nonlocal received
        received = await request.read()
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        async with http.post(server.make_url("/"), data=payload) as response:
            assert response.status == 200
        yield received


async def test_a_payload_closes_its_file_in_a_thread_and_only_by_close() -> None:
    """agentic_backend/knowledge/attachments.py hands out files that are its caller's to close: it overrides `_close`,
    which is the only way to them, and sets `_consumed`, as the library's own does."""
    theirs = WatchedFile(b"theirs")
    async with posted(aiohttp.payload.IOBasePayload(theirs)) as received:
        assert received == b"theirs"
        assert await asyncio.to_thread(theirs.was_closed.wait, PATIENCE_S)
    assert theirs.closed_by != [threading.current_thread()]

    lent = WatchedFile(b"lent")
    payload = _Lent(lent)
    async with posted(payload) as received:
        assert received == b"lent"
    assert payload.consumed
    assert lent.closed_by == []


async def test_a_get_whose_connection_is_lost_is_sent_twice_and_a_post_once() -> None:
    """agentic_backend/knowledge/client.py tries a POST again itself and leaves a GET to the library."""
    asked: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n"))[:4])
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for method in ("GET", "POST"):
            with pytest.raises(aiohttp.ClientError):
                await http.request(method, url)
    assert asked == [b"GET ", b"GET ", b"POST"]


class Late(Exception):
    pass


async def test_an_exception_set_on_the_content_wakes_who_reads_it() -> None:
    """agentic_backend/llm/client.py ends a silent stream by a timer that sets its failure on the response's content."""
    over = asyncio.Event()

    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a token")
        await over.wait()
        return response

    app = web.Application()
    app.router.add_get("/", stall)
    async with TestServer(app) as server, aiohttp.ClientSession() as http, http.get(server.make_url("/")) as response:
        assert await response.content.readany() == b"a token"
        asyncio.get_running_loop().call_soon(response.content.set_exception, Late())
        with pytest.raises(Late):
            await response.content.readany()
        assert not response.content.at_eof()
        response.close()
        over.set()
