"""The server of a service in the test's own process."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

from backend_kit.http import ServeSettings, build_server
from backend_kit.http.server import Drain, DrainServer
from tests.support.patience import PATIENCE_S


class SilentServer(DrainServer):
    """A server that leaves the signals of the process to the test run."""

    def capture_signals(self) -> AbstractContextManager[None]:
        """Take over none."""
        return nullcontext()


def silent_server(app: Any, drain: Drain, settings: ServeSettings) -> SilentServer:
    """As `build_server`, for a test."""
    return SilentServer(build_server(app, drain, settings).config, drain)


@asynccontextmanager
async def served(app: Any, *sockets: socket.socket) -> AsyncIterator[None]:
    """An application that has nothing to drain, on these sockets, for as long as the block."""

    async def drain() -> None:
        pass

    server = silent_server(app, drain, ServeSettings(loop="none"))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=list(sockets)))
        try:
            yield
        finally:
            server.stop()
            await asyncio.wait([serving], timeout=PATIENCE_S)
