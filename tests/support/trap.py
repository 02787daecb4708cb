"""A server that nobody should call: it counts who does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_HOSTS = (
    *("127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "[::ffff:127.0.0.1]", "evil@127.0.0.1"),
    *("127.1", "0x7f000001", "0", "[::1]", "[::ffff:7f00:1]", "LOCALHOST.", "127.0.0.1%2f.example.com@127.0.0.1"),
)


@dataclass(slots=True)
class Trap:
    """Where it listens, and how often it was called."""

    port: int
    calls: int = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """URLs of it in the spellings by which filters are passed: names that resolve to this machine, decimal, octal,
        hexadecimal, short, IPv6, IPv6-mapped, with a user, without a scheme."""
        return (*(f"http://{host}:{self.port}/trap" for host in _HOSTS), f"//127.0.0.1:{self.port}/trap")


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    """One on a free port of this machine, for as long as the block runs."""
    made = Trap(0)

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.calls += 1
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server, contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(OSError):  # a machine without IPv6
            await stack.enter_async_context(await asyncio.start_server(count, "::1", made.port))
        yield made
