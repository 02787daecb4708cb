"""A service to be ended by signals: `python -m tests.backend_kit.http.drain_app PORT MODE`.

It echoes on `/echo`. Its drain ends when a socket says `finish`; in mode `hang` never; in mode `broken` it raises. In
mode `slow-start` the application does not come up.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from backend_kit.http import ServeSettings, health_router, listen, serve


class Service:
    """The application's state."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.draining = False
        self.finished = asyncio.Event()

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        """Ready until told to end."""
        return not self.draining, "draining" if self.draining else "ready", {"postgres": "up"}

    async def drain(self) -> None:
        """End the work."""
        self.draining = True
        print("drain began", flush=True)
        if self.mode == "broken":
            raise ValueError("drain failed")
        await (asyncio.Event().wait() if self.mode == "hang" else self.finished.wait())
        print("drain ended", flush=True)


def build(service: Service) -> FastAPI:
    """The application."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        print("starting", flush=True)
        if service.mode == "slow-start":
            await asyncio.sleep(60)
        print("started", flush=True)
        yield
        print("closed", flush=True)

    app = FastAPI(lifespan=lifespan)
    app.include_router(health_router(service, ""))

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                text = await websocket.receive_text()
                await websocket.send_text(text)
                if text == "finish":
                    service.finished.set()
        except WebSocketDisconnect as error:
            print(f"socket ended with {error.code}", flush=True)

    return app


def main() -> None:
    """Serve until a signal."""
    logging.basicConfig(level=logging.INFO)
    service = Service(sys.argv[2])
    settings = ServeSettings(drain_limit_s=0.3 if service.mode == "limited" else 60.0)
    if service.mode == "limited":
        service.mode = "hang"
    sock = listen("127.0.0.1", int(sys.argv[1]))
    raise SystemExit(serve(build(service), sock, drain=service.drain, settings=settings))


if __name__ == "__main__":
    main()
