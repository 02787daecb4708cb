"""A model behind connections that are kept, which are counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.agentic_backend.llm.scripted import DONE, finish, token
from tests.agentic_backend.records import until


class WatchedModel:
    """Says "Hello", the second half of it once it may: `let_go` is set unless a test clears it."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self.base_url = ""
        self.asked: list[dict[str, Any]] = []
        self.refusals = 0
        """So many requests are answered with 503 first."""
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.seen: set[Any] = set()
        """Every connection that a request came by."""

    @property
    def open(self) -> int:
        """Connections that are open."""
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        self.seen.add(request.protocol)
        self.asked.append(await request.json())
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(token("Hel"))
        await self.let_go.wait()
        await response.write(token("lo") + finish() + DONE)
        return response

    async def until_asked(self, times: int) -> None:
        """Return once so many requests have come."""
        await until(lambda: len(self.asked) >= times)


@asynccontextmanager
async def watched_model() -> AsyncIterator[WatchedModel]:
    """Serve until the block ends."""
    app = web.Application(client_max_size=64 << 20)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    model = WatchedModel(runner)
    app.router.add_post("/v1/chat/completions", model.answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        model.let_go.set()
        await runner.cleanup()
