"""Sessions: what they wait for, what they never keep, and which of it is counted."""

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from backend_kit.client.connections import Connections, open_session
from backend_kit.kpi import Kpi, Ledger
from tests.backend_kit.client.server import serving


async def rows_of(waits: list[float] | None, row: str | None) -> list[str]:
    """Three requests over one connection; the names of the rows that they left in the turn's ledger."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response()

    ledger = Ledger(Kpi(CollectorRegistry(), service="agentic"))
    observe = waits.append if waits is not None else None
    limits = Connections(max_connections=1)
    with ledger.activate():
        async with serving(answer) as url, open_session(limits, pool_wait=observe, pool_wait_row=row) as session:

            async def get() -> None:
                async with session.get(url) as response:
                    await response.read()

            await asyncio.gather(*(get() for _ in range(3)))
    return [found["phase"] for found in ledger.rows()]


@pytest.mark.servers
async def test_only_calls_that_waited_for_a_connection_are_counted_and_stand_in_the_ledger() -> None:
    waits: list[float] = []
    assert await rows_of(waits, "some_pool_wait") == ["some_pool_wait"] * 2
    assert len(waits) == 2
    assert min(waits) > 0


@pytest.mark.servers
async def test_without_a_name_nothing_stands_in_the_ledger() -> None:
    waits: list[float] = []
    assert await rows_of(waits, None) == []
    assert len(waits) == 2
    assert await rows_of(None, "some_pool_wait") == []


@pytest.mark.servers
async def test_cookies_are_not_kept() -> None:
    cookies: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie"))
        return web.Response(headers={"Set-Cookie": "a=b"})

    async with serving(answer) as url, open_session(Connections()) as session:
        for _ in range(2):
            await (await session.get(url)).read()
    assert cookies == [None, None]


@pytest.mark.servers
async def test_a_peer_that_vanished_is_noticed_by_the_kernel() -> None:
    looked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await looked.wait()
        return response

    async with serving(answer) as url, open_session(Connections()) as session, session.get(url) as response:
        assert response.connection is not None
        assert response.connection.transport is not None
        ours = response.connection.transport.get_extra_info("socket")
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        assert [ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names] == [10, 5, 2, 20_000]
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        looked.set()


@pytest.mark.parametrize(
    ("limits", "bounds"),
    [
        (Connections(connect_s=1, pool_s=2, read_s=4), aiohttp.ClientTimeout(7, 3, 4, 1)),
        (Connections(connect_s=1, pool_s=2), aiohttp.ClientTimeout(None, 3, None, 1)),
        (Connections(connect_s=1, pool_s=None, read_s=4), aiohttp.ClientTimeout(None, None, 4, 1)),
    ],
)
async def test_an_attempt_is_bounded_where_each_of_its_parts_is(
    limits: Connections, bounds: aiohttp.ClientTimeout
) -> None:
    async with open_session(limits) as session:
        assert session.timeout == bounds


@pytest.mark.parametrize("name", ["connect_s", "read_s", "pool_s", "keepalive_s"])
def test_a_limit_that_is_not_positive_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="positive"):
        Connections(**{name: 0})
    with pytest.raises(ValueError, match="positive"):
        Connections(max_connections=-1)


@pytest.mark.servers
@pytest.mark.parametrize("stopped", [False, True])
async def test_a_wait_in_vain_is_counted_too(stopped: bool) -> None:
    waits: list[float] = []
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def answer(_request: web.Request) -> web.Response:
        asked.set()
        await let_go.wait()
        return web.Response()

    ledger = Ledger(Kpi(CollectorRegistry(), service="agentic"))
    limits = Connections(max_connections=1, pool_s=None if stopped else 0.05)
    with ledger.activate():
        async with (
            serving(answer) as url,
            open_session(limits, pool_wait=waits.append, pool_wait_row="some_pool_wait") as session,
            asyncio.TaskGroup() as group,
        ):
            first = group.create_task(session.get(url))
            await asked.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05 if stopped else None):
                    await session.get(url)
            let_go.set()
            (await first).release()
    assert len(waits) == 1
    assert [found["phase"] for found in ledger.rows()] == ["some_pool_wait"]
