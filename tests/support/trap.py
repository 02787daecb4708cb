"""A server that nobody should call: it counts who does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Trap:
    """Where it listens, and how often it was called."""

    port: int
    calls: int = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """URLs of it in the spellings by which filters are passed: decimal, octal, IPv6-mapped, with a user."""
        hosts = ("127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "[::ffff:127.0.0.1]", "evil@127.0.0.1")
        return tuple(f"http://{host}:{self.port}/trap" for host in hosts)


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    """One on a free port of this machine, for as long as the block runs."""
    made = Trap(0)

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.calls += 1
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
