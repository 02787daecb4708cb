"""A proxy before the real OpenSearch node that misbehaves on demand, and counts what it is asked."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

from backend_kit.wire import dumps

Answer = Callable[[web.Request], Awaitable[web.Response | None]]
"""What is answered in the node's stead; None where the node is asked."""

_KEPT = ("Content-Type",)


class FaultyOpenSearch:
    """`async with FaultyOpenSearch(node.url) as faulty`: a cluster at `faulty.url`.

    `refuse`: connections are cut. `answer`: decides for each request. `requests` are what came, as "METHOD /path";
    `most_at_once` is how many of them ran at the same time at most.
    """

    def __init__(self, url: str) -> None:
        self.refuse = False
        self.answer: Answer | None = None
        self.requests: list[str] = []
        self.most_at_once = 0
        self.url = ""
        self._node = url
        self._running = 0
        self._came = asyncio.Event()

    async def __aenter__(self) -> "FaultyOpenSearch":
        self._client = aiohttp.ClientSession(self._node)
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._client.close()

    def count(self, part: str) -> int:
        """How many requests hold this text."""
        return sum(part in request for request in self.requests)

    async def asked(self, times: int, part: str = "") -> None:
        """Wait until so many requests with this text have come."""
        while self.count(part) < times:
            self._came.clear()
            await self._came.wait()

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        self._came.set()
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            if self.refuse:
                assert request.transport is not None
                request.transport.abort()
                return web.Response(status=503)
            if self.answer is not None and (answer := await self.answer(request)) is not None:
                return answer
            return await self.ask_node(request)
        finally:
            self._running -= 1

    async def bulk(self, request: web.Request, lines: bytes) -> Any:
        """The node's answer to other lines than those that came."""
        headers = {"Content-Type": "application/x-ndjson"}
        async with self._client.post(request.path_qs, data=lines, headers=headers) as got:
            return await got.json()

    async def ask_node(self, request: web.Request) -> web.Response:
        """What the node answers."""
        headers = {name: request.headers[name] for name in _KEPT if name in request.headers}
        body = await request.read()
        async with self._client.request(request.method, request.path_qs, data=body or None, headers=headers) as got:
            return web.Response(body=await got.read(), status=got.status, content_type=got.content_type)


def says(status: int, part: str = "/_search", kind: str = "canary_exception") -> Answer:
    """Answer requests of this path with a status and words that must not get any further."""
    body = dumps({"error": {"type": kind, "reason": "canary words"}, "status": status})

    async def answer(request: web.Request) -> web.Response | None:
        return web.Response(body=body, status=status, content_type="application/json") if part in request.path else None

    return answer


def holds(part: str = "/_search") -> tuple[Answer, asyncio.Event]:
    """Leave requests of this path without an answer until the event is set."""
    let = asyncio.Event()

    async def answer(request: web.Request) -> web.Response | None:
        if part in request.path:
            await let.wait()
        return None

    return answer, let
