"""A server that accepts every connection and never says a word."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.patience import PATIENCE_S


@asynccontextmanager
async def silent_port() -> AsyncIterator[int]:
    """Its port on 127.0.0.1, until the block ends."""
    over = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
        await server.wait_closed()
