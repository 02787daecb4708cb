"""The server process: one bound socket, uvicorn with our protocols, and a shutdown that loses no turn."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - the first route in a thread would load it on the loop: 0.06 s
import uvicorn
from prometheus_client import CollectorRegistry

from backend_kit.aio.tasks import TaskRegistry
from backend_kit.http.connections import ConnectionMetrics, OpenConnections
from backend_kit.http.http1 import HardenedHttp
from backend_kit.http.redact import install_redaction
from backend_kit.http.ws import HardenedWS
from backend_kit.settings import ConnectionBounds

logger = logging.getLogger(__name__)

Drain = Callable[[], Awaitable[None]]
"""Ends the application's work in order (docs/operations.md#stopping-without-loss, 1 to 5). Called once, on the loop."""

EXIT_FORCED = 1
_FORCE_AFTER_S = 0.2
_UNSENT_BYTES = 128 * 1024
_DESCRIPTORS = 65_536
_FEW_DESCRIPTORS = 256
_TICK_S = 1.0
_REFRESH = 0
"""The tick of uvicorn's at which it renews the Date of its answers, which has whole seconds."""


class CannotListen(Exception):
    """The address is taken, or not ours. `str()` is one line for the operator."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How the server treats connections. Times in seconds, sizes in bytes.

    `health_paths` are answered also above the bounds of `connections`.
    `drain_limit_s` bounds the drain callback as a whole, whatever it waits for.
    """

    ws_max_size: int = 256 * 1024
    ws_ping_interval_s: float = 20.0
    ws_ping_timeout_s: float = 20.0
    ws_deflate: bool = False
    ws_linger_s: float = HardenedWS.linger_s
    connections: ConnectionBounds = field(default_factory=ConnectionBounds)
    health_paths: Collection[str] = ()
    backlog: int = 2048
    drain_limit_s: float = 60.0
    graceful_s: int = 5
    loop: str = "uvloop"


class DrainServer(uvicorn.Server):
    """A uvicorn server that drains before it shuts down.

    uvicorn closes every WebSocket with 1012 within 10 ms of SIGTERM, before the lifespan hears of it
    (docs/libraries.md#U1). Here the first SIGTERM, SIGINT or, by `serve`, SIGHUP (a terminal is closed) runs `drain`
    while the server keeps serving; only then does uvicorn's own shutdown begin. A second signal ends the process within
    a second. After a drain the exit code is 0: the signal is not raised again.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Drain, *, drain_limit_s: float = 60.0, tick_s: float = _TICK_S
    ) -> None:
        super().__init__(config)
        install_redaction()
        self._drain = drain
        self._drain_limit_s = drain_limit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = TaskRegistry()
        self._stopping = False
        self._ending = asyncio.Event()
        self._tick_s = tick_s

    @property
    def draining(self) -> bool:
        """Whether shutdown has been requested."""
        return self._stopping

    def stop(self) -> None:
        """Begin the drain, as the first signal does. From any thread; a second call has no effect."""
        if self._stopping:
            return
        self._stopping = True
        if self._loop is None:
            # Still starting, nothing accepted: uvicorn ends after the start, with the lifespan's shutdown.
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_drain)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the shape of a handler
        """The signal handler: first drain, then force."""
        if not self._stopping:
            self.stop()
            return
        self.should_exit = True
        self.force_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
        # A thread or a `finally` may delay the end longer than promised; what was acknowledged is on disk.
        timer = threading.Timer(_FORCE_AFTER_S, os._exit, (EXIT_FORCED,))
        timer.daemon = True
        timer.start()

    async def main_loop(self) -> None:
        """Serve until the drain has ended.

        Not the parent's: it looks ten times a second whether it should end, which is most of an idle process' work.
        """
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(_REFRESH):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s):
                    await self._ending.wait()
        await self._tasks.aclose(0.0 if self.force_exit else 1.0)

    def _begin_drain(self) -> None:
        self._tasks.spawn("drain", self._run_drain)

    async def _run_drain(self) -> None:
        logger.info("draining")
        try:
            async with asyncio.timeout(self._drain_limit_s):
                await self._drain()
            logger.info("drained")
        finally:
            self.should_exit = True
            self._ending.set()


def listen(host: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket, so that a taken port is known before anything heavy starts. Raises `CannotListen`.

    Connections made before the application has started wait in the backlog.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
    hold_back_unsent(sock)
    sock.setblocking(False)
    return sock


def hold_back_unsent(sock: socket.socket) -> None:
    """Have the sockets that a listening one accepts take little for a peer that does not read.

    Without it the kernel takes up to 4 MB, and neither the sends nor their deadline notice.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def build_server(
    app: Any, drain: Drain, settings: ServeSettings | None = None, metrics: ConnectionMetrics | None = None
) -> DrainServer:
    """The server of an ASGI application, not yet started: `await server.serve(sockets=[sock])`."""
    chosen = settings or ServeSettings()
    bounds = chosen.connections
    among = OpenConnections(bounds, descriptors(), metrics or ConnectionMetrics(CollectorRegistry()))
    http = {"bounds": bounds, "among": among, "health_paths": frozenset(chosen.health_paths)}
    # Never TRACE: uvicorn would print whole scopes there, headers included.
    level = max(logging.DEBUG, logging.getLogger().getEffectiveLevel())
    config = uvicorn.Config(
        app,
        loop=chosen.loop,
        http=type("Http", (HardenedHttp,), http),
        ws=type("Ws", (HardenedWS,), {"linger_s": chosen.ws_linger_s}),
        ws_max_size=chosen.ws_max_size,
        ws_ping_interval=chosen.ws_ping_interval_s,
        ws_ping_timeout=chosen.ws_ping_timeout_s,
        ws_per_message_deflate=chosen.ws_deflate,
        lifespan="on",
        log_config=None,
        log_level=level,
        access_log=False,
        server_header=False,
        proxy_headers=bool(bounds.trusted_proxies),
        forwarded_allow_ips=list(bounds.trusted_proxies),
        # No limit_concurrency: it counts sockets, lets them in and then answers 503 to health checks
        # (docs/libraries.md#U7).
        backlog=chosen.backlog,
        timeout_keep_alive=bounds.idle_s,
        timeout_graceful_shutdown=chosen.graceful_s,
    )
    return DrainServer(config, drain, drain_limit_s=chosen.drain_limit_s)


def descriptors() -> int:
    """How many files the process may open, at most 65,536."""
    return _at_most_all(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptor_limit() -> None:
    """Let the process open as many files as its hard limit allows, up to what `descriptors` returns at most.

    Soft limits are 1,024 by custom, for the sake of `select`, which nothing here uses.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors() < (wanted := _at_most_all(hard)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if (few := descriptors()) < _FEW_DESCRIPTORS:
        said = "the process may open %d files, sockets included: raise its hard limit (ulimit -Hn, LimitNOFILE)"
        logger.warning(said, few)


def _at_most_all(limit: int) -> int:
    return _DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, _DESCRIPTORS)


def serve(
    app: Any,
    sock: socket.socket,
    *beside: socket.socket,
    drain: Drain,
    settings: ServeSettings | None = None,
    metrics: ConnectionMetrics | None = None,
) -> int:
    """Run an ASGI application on a listening socket, and those `beside` it, until a signal ends it. Returns the exit
    code.

    0 after a drain, 1 where a second signal cut it short. An application whose lifespan fails ends the process with 3
    (SystemExit), as uvicorn does.
    """
    raise_descriptor_limit()
    server = build_server(app, drain, settings, metrics)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else our parent wants it ignored: nohup
        signal.signal(signal.SIGHUP, server.handle_exit)
    logger.info("listening on http://%s:%d", *sock.getsockname()[:2])
    server.run(sockets=[sock, *beside])
    return EXIT_FORCED if server.force_exit else 0
