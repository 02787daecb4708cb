"""What a connection of websockets is made of; what its codec is made of stands in test_uvicorn.py."""

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError

pytestmark = pytest.mark.servers


async def test_a_client_can_be_cut_off_by_its_transport() -> None:
    """ws_bench/load/client.py vanishes without a close frame by `transport.abort`."""
    seen: asyncio.Future[ConnectionClosed] = asyncio.get_running_loop().create_future()

    async def watch(connection: ServerConnection) -> None:
        try:
            await connection.recv()
        except ConnectionClosed as closed:
            seen.set_result(closed)

    async with serve(watch, "127.0.0.1", 0) as server:
        client = await connect(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}")
        client.transport.abort()
        closed = await seen
        assert isinstance(closed, ConnectionClosedError)
        assert closed.rcvd is None
        await client.wait_closed()
