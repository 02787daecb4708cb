"""The fake model in the test's own loop."""

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from backend_kit.wire import dumps
from ws_bench.fakes.mock_llm import MockLlm, parse_mock_flags


class Model:
    """A running fake model and a client of it."""

    def __init__(self, server: MockLlm, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.base_url = f"http://127.0.0.1:{server.port}"

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.http.post(self.base_url + path, data=io.BytesIO(dumps(body))) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.base_url + path) as response:
            return response.status, await response.json()

    async def stats(self) -> Any:
        return (await self.get("/stats"))[1]


StartModel = Callable[..., Awaitable[Model]]


@pytest.fixture
async def start_model() -> AsyncIterator[StartModel]:
    """Start fake models with flags; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def start(*argv: str) -> Model:
            server = MockLlm(parse_mock_flags(["--port", "0", *argv]))
            await server.start()
            stack.push_async_callback(server.close)
            return Model(server, await stack.enter_async_context(aiohttp.ClientSession()))

        yield start


@pytest.fixture
async def model(start_model: StartModel) -> Model:
    """A fake model without knobs."""
    return await start_model()
