"""What we use of the HTTP libraries of providers' SDKs."""

from collections.abc import AsyncIterator
from types import ModuleType

import httpx
import httpx2
import pytest

from agentic_backend.llm.providers.transport import AnswerTooLarge, client_arguments
from backend_kit.client.connections import Connections


@pytest.mark.parametrize("http", [httpx, httpx2])
async def test_a_hook_may_put_another_stream_into_an_answer(http: ModuleType) -> None:
    """agentic_backend/llm/providers/transport.py bounds the body of an answer (`response.stream`) while it is read."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 500_000

    transport = http.MockTransport(lambda _request: http.Response(200, content=endless()))
    arguments = client_arguments(http, Connections())
    async with http.AsyncClient(transport=transport, **arguments) as client, client.stream("GET", "http://a/") as body:
        with pytest.raises(AnswerTooLarge):
            await body.aread()
