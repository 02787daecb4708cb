"""A connection that has ended goes at once: nothing of it waits for the collector, which may not come for hours."""

import asyncio
import gc
from typing import Any

import h11
import pytest
from websockets.asyncio.client import connect
from websockets.server import ServerProtocol

from backend_kit.http import ServeSettings, build_server, listen
from backend_kit.http.http1 import HardenedHttp
from backend_kit.http.ws import HardenedWS
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
    else:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": "heard"})


def alive(kind: type) -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


async def test_ended_connections_leave_no_cycles() -> None:
    async def nothing() -> None:
        pass

    sock = listen("127.0.0.1", 0)
    server = build_server(app, nothing, ServeSettings(loop="none"))
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    port = sock.getsockname()[1]
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok")
            writer.close()
            async with connect(f"ws://127.0.0.1:{port}/") as socket:
                await socket.send("hello")
                assert await socket.recv() == "heard"
        async with asyncio.timeout(PATIENCE_S):
            while server.server_state.connections or server.server_state.tasks:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        left = [alive(kind) for kind in (HardenedHttp, HardenedWS, ServerProtocol, h11.Connection)]
        assert [len(kind) for kind in left] == [0, 0, 0, 0]
    finally:
        gc.enable()
        server.stop()
        await serving
