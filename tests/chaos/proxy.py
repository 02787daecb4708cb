"""A TCP proxy that fails on demand: `python -m tests.chaos.proxy --target PORT`, told what to do line by line.

It prints `proxy PORT control PORT` once it listens, both on loopback. The control port takes one command a line and
answers `ok`, the status, or `error` with words; it may be used by several at once.

| command | effect on connections open and to come |
|---|---|
| `delay up|down|both MEAN JITTER` | each piece goes on MEAN ± JITTER ms after it came, never before its predecessor |
| `rate up|down|both BYTES` | at most so many bytes a second; 0: no limit |
| `hold` | black hole: nothing is read or forwarded, nothing is closed |
| `release` | what was held goes on |
| `refuse` | the port is closed: new connections are refused by the kernel, open ones go on |
| `accept` | the port is open again |
| `reset` | every open connection ends with RST on both sides; new ones are served |
| `normal` | all of the above undone |
| `status` | `open=N up=BYTES down=BYTES`, bytes forwarded since the start |

`up` is what the client sends to the target, `down` what comes back.
"""

import argparse
import asyncio
import contextlib
import random
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

_PIECE = 64 * 1024
_QUEUE_PIECES = 64
_RST = struct.pack("ii", 1, 0)
_SLICE_S = 0.02
_CONNECT_S = 5.0
NO_LIMIT = 0


@dataclass(slots=True)
class Direction:
    """What happens to the bytes of one direction: milliseconds of delay, bytes a second (0: no limit)."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    bytes_per_s: int = NO_LIMIT
    forwarded: int = 0

    def pause_s(self, draw: random.Random) -> float:
        """How long the next piece waits."""
        return max(0.0, self.delay_ms + draw.uniform(-self.jitter_ms, self.jitter_ms)) / 1e3


@dataclass(slots=True)
class Faults:
    """What the proxy does now, shared by its connections. `flowing` is not set while it is a black hole."""

    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    draw: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.flowing.set()

    def named(self, which: str) -> list[Direction]:
        """The directions of `up`, `down` or `both`. Raises ValueError."""
        chosen = {"up": [self.up], "down": [self.down], "both": [self.up, self.down]}
        if which not in chosen:
            raise ValueError("a direction is up, down or both")
        return chosen[which]


class Link:
    """One client's connection and its way to the target."""

    def __init__(
        self,
        faults: Faults,
        client: "tuple[asyncio.StreamReader, asyncio.StreamWriter]",
        target: "tuple[asyncio.StreamReader, asyncio.StreamWriter]",
    ) -> None:
        self._faults = faults
        self._client = client
        self._target = target

    async def run(self) -> None:
        """Forward both ways until both sides have ended, or one has broken."""
        (from_client, to_client), (from_target, to_target) = self._client, self._target
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(from_client, to_target, self._faults.up))
                group.create_task(self._pump(from_target, to_client, self._faults.down))
        except* OSError:
            self.reset()  # a peer that broke off is passed on as such
        finally:
            for writer in (to_client, to_target):
                writer.close()

    def reset(self) -> None:
        """End both sides with RST."""
        for _, writer in (self._client, self._target):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        # Bounded: behind a slow way the reading stops, and the sender feels it.
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_PIECES)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(reader, pieces, way))
            group.create_task(self._give(pieces, writer, way))

    async def _take(
        self, reader: asyncio.StreamReader, pieces: "asyncio.Queue[tuple[float, bytes]]", way: Direction
    ) -> None:
        clock = asyncio.get_running_loop().time
        due = 0.0
        while True:
            await self._faults.flowing.wait()
            piece = await reader.read(_PIECE)
            due = max(due, clock() + way.pause_s(self._faults.draw))  # in order, whatever the jitter
            await pieces.put((due, piece))
            if not piece:
                return

    async def _give(
        self, pieces: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, piece = await pieces.get()
            if (wait_s := due - clock()) > 0:
                await asyncio.sleep(wait_s)
            if not piece:
                await self._faults.flowing.wait()
                if writer.can_write_eof():
                    writer.write_eof()
                return
            await self._write(piece, writer, way)

    async def _write(self, piece: bytes, writer: asyncio.StreamWriter, way: Direction) -> None:
        """Hand over a piece, in slices where the rate is limited: a limit may change in the middle of it."""
        while piece:
            await self._faults.flowing.wait()
            size = len(piece) if way.bytes_per_s == NO_LIMIT else max(1, int(way.bytes_per_s * _SLICE_S))
            writer.write(piece[:size])
            await writer.drain()
            way.forwarded += len(piece[:size])
            piece = piece[size:]
            if way.bytes_per_s != NO_LIMIT:
                await asyncio.sleep(_SLICE_S)


class FaultProxy:
    """Listens on `port` (0: a free one) of loopback and forwards to `target` there, with the faults it is told."""

    def __init__(self, target: int, port: int = 0, *, seed: int = 0) -> None:
        self.port = port
        self.faults = Faults(draw=random.Random(seed))  # noqa: S311 - jitter
        self._target = target
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._commands: dict[str, Callable[..., None]] = {
            "delay": self._delay,
            "rate": self._rate,
            "hold": self.faults.flowing.clear,
            "release": self.faults.flowing.set,
            "refuse": self._refuse,
            "reset": self._reset,
        }

    async def accept(self) -> None:
        """Open the port; harmless where it is open."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
            self.port = self._server.sockets[0].getsockname()[1]

    async def command(self, line: str) -> str:
        """Do what a line says; the answer to it."""
        name, *arguments = line.split() or [""]
        try:
            if name == "status":
                faults = self.faults
                return f"open={len(self._links)} up={faults.up.forwarded} down={faults.down.forwarded}"
            if name in ("accept", "normal"):
                if name == "normal":
                    self._normal()
                await self.accept()
                return "ok"
            self._commands[name](*arguments)
        except KeyError:
            return f"error unknown command {name!r}"
        except (TypeError, ValueError) as error:
            return f"error {error}"
        return "ok"

    def close(self) -> None:
        """Close the port and every connection."""
        self._refuse()
        self._reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                target = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the target is away: say so the way a refused port does, as well as an accepted one can
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            writer.transport.abort()
            return
        link = Link(self.faults, (reader, writer), target)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def _delay(self, which: str, mean: str, jitter: str) -> None:
        for way in self.faults.named(which):
            way.delay_ms, way.jitter_ms = float(mean), float(jitter)

    def _rate(self, which: str, limit: str) -> None:
        for way in self.faults.named(which):
            way.bytes_per_s = int(limit)

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    def _normal(self) -> None:
        self._delay("both", "0", "0")
        self._rate("both", "0")
        self.faults.flowing.set()


async def serve_control(proxy: FaultProxy) -> asyncio.Server:
    """The control port of a proxy."""

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(f"{await proxy.command(line.decode(errors='replace'))}\n".encode())
                await writer.drain()
        writer.close()

    return await asyncio.start_server(obey, "127.0.0.1", 0)


async def serve(target: int, port: int, seed: int) -> None:
    """Run until the process is ended."""
    proxy = FaultProxy(target, port, seed=seed)
    await proxy.accept()
    control = await serve_control(proxy)
    print(f"proxy {proxy.port} control {control.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(description="A TCP proxy on loopback that fails on demand.")
    parser.add_argument("--target", type=int, required=True, help="port of 127.0.0.1 to forward to")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (0: a free one)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the jitter")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.target, options.port, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
