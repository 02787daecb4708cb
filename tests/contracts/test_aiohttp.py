"""What aiohttp does beyond its documentation, for clients that hold bytes and connections to a bound."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from agentic_backend.knowledge.attachments import _Lent
from agentic_backend.llm.body import leave, take, waiter_of
from backend_kit.client.connections import Connections, body_of, open_session
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


async def test_so_many_idle_connections_are_kept_as_may_be_and_a_free_one_is_waited_for_so_long() -> None:
    """backend_kit/client/connections.py closes what `_release` would keep beyond that, by `_conns`, and bounds
    `_wait_for_available_connection`, whose TimeoutError the library takes for one of connecting."""
    opened, let_go = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal opened
        opened += request.protocol not in known
        known.add(request.protocol)
        await let_go.wait()
        return web.Response()

    known: set[object] = set()
    app = web.Application()
    app.router.add_get("/", answer)

    async def at_once(http: aiohttp.ClientSession, count: int) -> None:
        async def get() -> None:
            async with http.get(server.make_url("/")) as response:
                await response.read()

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(get())

    async with TestServer(app) as server:
        async with open_session(Connections(max_idle=2, max_connections=4, pool_s=PATIENCE_S)) as http:
            let_go.set()
            await at_once(http, 1)
            assert opened == 1
            # The first of them are kept, those that end later are not; a kept one is used before another is opened.
            let_go.clear()
            asking = asyncio.create_task(at_once(http, 4))
            async with asyncio.timeout(PATIENCE_S):
                while opened < 4:  # noqa: ASYNC110 - a server tells nobody
                    await asyncio.sleep(0.01)
            let_go.set()
            await asking
            await at_once(http, 4)
            assert opened == 6
            assert len(known) == 6
        let_go.clear()
        async with open_session(Connections(max_connections=1, connect_s=PATIENCE_S, pool_s=0.05)) as http:
            asking = asyncio.create_task(at_once(http, 1))
            async with asyncio.timeout(PATIENCE_S):
                while opened < 7:  # noqa: ASYNC110 - a server tells nobody
                    await asyncio.sleep(0.01)
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await http.get(server.make_url("/"))
            let_go.set()
            await asking


async def test_a_server_that_takes_no_more_of_a_body_ends_the_request_with_a_plain_timeout() -> None:
    """agentic_backend/llm/failures.py tells it from a connection that is not made and from an answer that is silent by
    its class, and backend_kit/client/connections.py writes in pieces what does not go out at once."""
    done = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined] # nothing else leaves a body where it is
        await done.wait()
        writer.transport.abort()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with open_session(Connections(connect_s=PATIENCE_S, read_s=PATIENCE_S)) as http:
            with pytest.raises(TimeoutError) as raised:
                await http.post(url, data=body_of(bytes(32 * 1024 * 1024), 0.1))
            assert type(raised.value) is TimeoutError
            assert raised.value.errno is None
        done.set()
    data = bytes(range(256)) * 1024
    sent = body_of(data, PATIENCE_S)
    assert isinstance(sent, aiohttp.payload.Payload)
    async with posted(sent) as received:
        assert received == data
    assert body_of(b"short", 1.0) == b"short"


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


class Connection(asyncio.Transport):
    """A connection that the test reads for aiohttp."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Body:
    """The body of an answer that aiohttp parses."""

    content: aiohttp.StreamReader

    def __init__(self, chunked: bool) -> None:
        self.chunked = chunked
        self.connection = Connection()
        self.protocol = ResponseHandler(asyncio.get_running_loop())
        self.protocol.connection_made(self.connection)
        self.protocol.set_response_params(read_bufsize=64, read_until_eof=not chunked)

    async def begin(self) -> None:
        kind = b"Transfer-Encoding: chunked" if self.chunked else b"Connection: close"
        self.protocol.data_received(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % kind)
        _, self.content = await self.protocol.read()

    def feed(self, data: bytes) -> None:
        self.protocol.data_received(self.framed(data))

    def framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    def feed_end(self) -> None:
        if self.chunked:
            self.protocol.data_received(b"0\r\n\r\n")
        else:
            self.protocol.connection_lost(None)

    @property
    def state(self) -> tuple[object, ...]:
        content = self.content
        return content._size, content._cursor, content.total_bytes, content.at_eof(), self.connection.paused


async def bodies(chunked: bool) -> tuple[Body, Body]:
    """Two alike."""
    both = Body(chunked), Body(chunked)
    for body in both:
        await body.begin()
    return both


@pytest.mark.parametrize("chunked", [True, False])
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=90), max_size=20),
    cuts=st.lists(st.integers(1, 60), min_size=1),
    reads=st.lists(st.booleans(), min_size=1),
    ends=st.booleans(),
)
async def test_all_that_has_arrived_is_what_readany_returns(
    chunked: bool, chunks: list[bytes], cuts: list[int], reads: list[bool], ends: bool
) -> None:
    """agentic_backend/llm/body.py: same bytes and counts, and the connection goes on, however a stream is cut.

    In between, aiohttp may pause one chunk sooner or later, of the 4,096 that it allows.
    """
    ours, theirs = await bodies(chunked)
    raw = b"".join(map(ours.framed, chunks))
    for cut, read in zip(cycle(cuts), cycle(reads), strict=False):
        if not raw:
            break
        piece, raw = raw[:cut], raw[cut:]
        ours.protocol.data_received(piece)
        theirs.protocol.data_received(piece)
        if read:
            assert await drained(ours, taken) == await drained(theirs, aiohttp.StreamReader.readany)
            assert ours.state == theirs.state
    if ends:
        ours.feed_end()
        theirs.feed_end()
    assert await drained(ours, taken) == await drained(theirs, aiohttp.StreamReader.readany)
    assert ours.state == theirs.state
    if ends:
        assert take(ours.content) == await theirs.content.readany() == b""


async def drained(body: Body, read: Callable[[aiohttp.StreamReader], Awaitable[bytes]]) -> bytes:
    """All that can be read without waiting. A read may let in what the parser had held back."""
    whole = b""
    while body.content._buffer:
        whole += await read(body.content)
    return whole


async def taken(content: aiohttp.StreamReader) -> bytes:
    return take(content)


async def test_who_waits_for_a_body_is_woken_by_data_its_end_and_an_exception() -> None:
    """agentic_backend/llm/body.py waits as `readany` does, but not in a task."""
    body, ended = await bodies(chunked=True)
    waiter = waiter_of(body.content)
    assert waiter is not None
    body.feed(b"one")
    body.feed(b"two")
    assert (waiter.result(), waiter_of(body.content), take(body.content)) == (None, None, b"onetwo")
    waiter = waiter_of(body.content)
    assert waiter is not None
    body.content.set_exception(ValueError("lost"))
    assert isinstance(waiter.exception(), ValueError)
    assert waiter_of(body.content) is None
    with pytest.raises(ValueError, match="lost"):
        take(body.content)
    waiter = waiter_of(ended.content)
    assert waiter is not None
    ended.feed_end()
    assert (waiter.result(), waiter_of(ended.content), take(ended.content)) == (None, None, b"")


async def test_who_waits_no_longer_leaves_the_body_to_others() -> None:
    """agentic_backend/llm/body.py: `readany` refuses a body for which somebody waits."""
    body, broken = await bodies(chunked=True)
    for each in (body, broken):
        waiter = waiter_of(each.content)
        assert waiter is not None
        if each is broken:
            each.content.set_exception(ValueError("lost"))
        leave(each.content, waiter)
    body.feed(b"one")
    assert await body.content.readany() == b"one"
    with pytest.raises(ValueError, match="lost"):
        await broken.content.readany()
