"""A TCP proxy that fails on demand: `python -m tests.chaos.proxy --target PORT …`, told what to do line by line.

Once it listens it prints a line with `proxy PORT control PORT` for each target, all on loopback. A control port takes
one command a line and answers `ok`, the status, or `error` with words; it may be used by several at once.

| command | effect on connections open and to come |
|---|---|
| `delay up|down|both MEAN JITTER` | each piece goes on MEAN ± JITTER ms after it came, never before its predecessor |
| `loss up|down|both PERCENT` | so many pieces are lost, and sent again as TCP does: see `Direction.pause_s` |
| `rate up|down|both BYTES` | at most so many bytes a second; 0: no limit |
| `hold [up|down|both]` | black hole: nothing gets through that way, the end of a connection included |
| `release [up|down|both]` | what was held goes on |
| `strand [up|down|both]` | as `hold`, for good, for the connections that are open now; new ones are well |
| `ignore` | a connect has no answer: it is neither accepted nor refused; open ones go on |
| `refuse` | the port is closed: new connections are refused by the kernel, open ones go on |
| `accept` | the port is open again |
| `reset` | every open connection ends with RST on both sides; new ones are served |
| `normal` | all of the above undone but `strand` |
| `status` | `open=N up=BYTES down=BYTES`, bytes forwarded since the start |

`up` is what the client sends to the target, `down` what comes back. The kernel between the client and the proxy answers
for a connection of which nothing gets through, keepalive probes included: whoever notices it, does so by what it hears.
With one direction held a connection is half-open.
"""

import argparse
import asyncio
import contextlib
import random
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PIECE = 64 * 1024
_QUEUE_PIECES = 64
_RST = struct.pack("ii", 1, 0)
_SLICE_S = 0.02
_CONNECT_S = 5.0
_BACKLOG = 512
NO_LIMIT = 0
RESEND_S = 0.2
"""The least time after which Linux sends again what was not acknowledged; it doubles each time."""
HANDSHAKE_S = 1.0
"""The same of a connect (RFC 6298)."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass(slots=True)
class Direction:
    """What happens to the bytes of one direction: milliseconds of delay, percent that are lost, bytes a second (0: no
    limit). `gate` is not set while nothing gets through; each connection keeps the one that it began with."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_pct: float = 0.0
    bytes_per_s: int = NO_LIMIT
    forwarded: int = 0
    gate: asyncio.Event = field(default_factory=_open_gate)

    def pause_s(self, draw: random.Random, resend_s: float = RESEND_S) -> float:
        """How long the next piece waits, and with it all behind it. Where it is lost it comes `resend_s` later, three
        times that where it is lost again, seven times, and so on."""
        late_s = max(0.0, self.delay_ms + draw.uniform(-self.jitter_ms, self.jitter_ms)) / 1e3
        while self.loss_pct and draw.uniform(0, 100) < self.loss_pct:
            late_s += resend_s
            resend_s *= 2
        return late_s


@dataclass(slots=True)
class Faults:
    """What the proxy does now, shared by its connections."""

    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    draw: random.Random = field(default_factory=random.Random)

    def named(self, which: str) -> list[Direction]:
        """The directions of `up`, `down` or `both`. Raises ValueError."""
        chosen = {"up": [self.up], "down": [self.down], "both": [self.up, self.down]}
        if which not in chosen:
            raise ValueError("a direction is up, down or both")
        return chosen[which]


@dataclass(slots=True)
class _Pipe:
    """One direction of one connection."""

    way: Direction
    gate: asyncio.Event
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    back: asyncio.Event
    """The gate of the other direction, by which it would be known that nobody is there any more."""


class Link:
    """One client's connection and its way to the target."""

    def __init__(self, faults: Faults, client: Streams) -> None:
        self._faults = faults
        self._up, self._down = faults.up.gate, faults.down.gate
        self._client = client
        self._target: Streams | None = None
        self._task = asyncio.current_task()

    async def run(self, target: int) -> None:
        """Connect to a port of loopback, and forward both ways until both sides have ended, or one has broken."""
        try:
            for gate in (self._up, self._down):  # nobody hears of a connection whose handshake does not get through
                await gate.wait()
            async with asyncio.timeout(_CONNECT_S):
                self._target = await asyncio.open_connection("127.0.0.1", target)
        except OSError:  # the target is away: say so the way a refused port does, as well as an accepted one can
            self._break()
            return
        await self._forward(self._client, self._target)

    def reset(self) -> None:
        """End both sides with RST."""
        self._break()
        assert self._task is not None
        self._task.cancel()

    async def _forward(self, client: Streams, target: Streams) -> None:
        faults, up, down = self._faults, self._up, self._down
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(_Pipe(faults.up, up, client[0], target[1], down)))
                group.create_task(self._pump(_Pipe(faults.down, down, target[0], client[1], up)))
        except* OSError:
            self._break()  # a peer that broke off is passed on as such
        finally:
            for _, writer in (client, target):
                writer.close()

    def _break(self) -> None:
        for streams in (self._client, self._target):
            if streams is None:
                continue
            sock = streams[1].get_extra_info("socket")
            with contextlib.suppress(OSError):
                if sock is not None and sock.fileno() >= 0:  # of one that has ended uvloop tells none, or one without
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            streams[1].transport.abort()

    async def _pump(self, pipe: _Pipe) -> None:
        # Bounded: behind a slow way the reading stops, and the sender feels it.
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_PIECES)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(pieces, pipe))
            group.create_task(self._give(pieces, pipe))

    async def _take(self, pieces: "asyncio.Queue[tuple[float, bytes]]", pipe: _Pipe) -> None:
        clock = asyncio.get_running_loop().time
        due, resend_s = 0.0, HANDSHAKE_S
        while True:
            await pipe.gate.wait()
            try:
                piece = await pipe.reader.read(_PIECE)
            except OSError:
                await pipe.gate.wait()
                raise
            # In order, whatever the jitter, and whatever was lost before.
            due = max(due, clock() + pipe.way.pause_s(self._faults.draw, resend_s))
            resend_s = RESEND_S
            await pieces.put((due, piece))
            if not piece:
                return

    async def _give(self, pieces: "asyncio.Queue[tuple[float, bytes]]", pipe: _Pipe) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, piece = await pieces.get()
            if (wait_s := due - clock()) > 0:
                await asyncio.sleep(wait_s)
            try:
                if not piece:
                    await pipe.gate.wait()
                    if pipe.writer.can_write_eof() and not pipe.writer.is_closing():
                        pipe.writer.write_eof()
                    return
                await self._write(piece, pipe)
            except OSError:
                await pipe.back.wait()
                raise

    async def _write(self, piece: bytes, pipe: _Pipe) -> None:
        """Hand over a piece, in slices where the rate is limited: a limit may change in the middle of it."""
        way, writer = pipe.way, pipe.writer
        while piece:
            await pipe.gate.wait()
            if writer.is_closing():  # uvloop's would raise RuntimeError
                raise ConnectionResetError
            size = len(piece) if way.bytes_per_s == NO_LIMIT else max(1, int(way.bytes_per_s * _SLICE_S))
            writer.write(piece[:size])
            await writer.drain()
            way.forwarded += len(piece[:size])
            piece = piece[size:]
            if way.bytes_per_s != NO_LIMIT:
                await asyncio.sleep(_SLICE_S)


class _Door:
    """A listening port of loopback, 0 for a free one: open, closed, or one that does not answer a connect."""

    def __init__(self, port: int, served: Callable[[socket.socket], None]) -> None:
        self.port = port
        self._served = served
        self._listener: socket.socket | None = None
        self._plug: socket.socket | None = None

    def open(self) -> None:
        """Accept connections; harmless where it does."""
        loop = asyncio.get_running_loop()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
        elif self._plug is None:
            return
        else:
            self._listener.listen(_BACKLOG)
            self._accept()
            self._unplug()
        loop.add_reader(self._listener, self._accept)

    def ignore(self) -> None:
        """Let connects wait: a queue that is full has the kernel leave them without an answer."""
        if self._plug is None:
            self.open()
            assert self._listener is not None
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.listen(0)
            self._plug = socket.socket()
            self._plug.setblocking(False)
            self._plug.connect_ex(("127.0.0.1", self.port))

    def close(self) -> None:
        """Have the kernel refuse connections."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self._unplug()

    def _accept(self) -> None:
        assert self._listener is not None
        plug = None if self._plug is None else self._plug.getsockname()
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted, peer = self._listener.accept()
                if peer == plug:
                    accepted.close()
                else:
                    self._served(accepted)

    def _unplug(self) -> None:
        if self._plug is not None:
            self._plug.close()
            self._plug = None


class FaultProxy:
    """Listens on `port` (0: a free one) of loopback and forwards to `target` there, with the faults it is told."""

    def __init__(self, target: int, port: int = 0, *, seed: int = 0) -> None:
        self.faults = Faults(draw=random.Random(seed))  # noqa: S311 - jitter
        self._target = target
        self._door = _Door(port, self._serve)
        self._links: set[Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._commands: dict[str, Callable[..., None]] = {
            "delay": self._delay,
            "loss": self._loss,
            "rate": self._rate,
            "hold": self._hold,
            "release": self._release,
            "strand": self._strand,
            "ignore": self._door.ignore,
            "refuse": self._door.close,
            "accept": self._door.open,
            "reset": self._reset,
            "normal": self._normal,
        }

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._door.port

    async def accept(self) -> None:
        """Open the port; harmless where it is open."""
        self._door.open()

    async def command(self, line: str) -> str:
        """Do what a line says; the answer to it."""
        name, *arguments = line.split() or [""]
        try:
            if name == "status":
                faults = self.faults
                return f"open={len(self._links)} up={faults.up.forwarded} down={faults.down.forwarded}"
            self._commands[name](*arguments)
        except KeyError:
            return f"error unknown command {name!r}"
        except (TypeError, ValueError) as error:
            return f"error {error}"
        return "ok"

    def close(self) -> None:
        """Close the port and every connection."""
        self._door.close()
        self._reset()

    def _serve(self, accepted: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._link(accepted))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _link(self, accepted: socket.socket) -> None:
        link = Link(self.faults, await asyncio.open_connection(sock=accepted))
        self._links.add(link)
        try:
            await link.run(self._target)
        finally:
            self._links.discard(link)

    def _delay(self, which: str, mean: str, jitter: str) -> None:
        for way in self.faults.named(which):
            way.delay_ms, way.jitter_ms = float(mean), float(jitter)

    def _loss(self, which: str, percent: str) -> None:
        if not 0 <= float(percent) < 100:
            raise ValueError("some of the pieces must get through")
        for way in self.faults.named(which):
            way.loss_pct = float(percent)

    def _rate(self, which: str, limit: str) -> None:
        for way in self.faults.named(which):
            way.bytes_per_s = int(limit)

    def _hold(self, which: str = "both") -> None:
        for way in self.faults.named(which):
            way.gate.clear()

    def _release(self, which: str = "both") -> None:
        for way in self.faults.named(which):
            way.gate.set()

    def _strand(self, which: str = "both") -> None:
        for way in self.faults.named(which):
            way.gate.clear()
            way.gate = _open_gate()

    def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    def _normal(self) -> None:
        self._delay("both", "0", "0")
        self._loss("both", "0")
        self._rate("both", "0")
        self._release()
        self._door.open()


async def serve_control(proxy: FaultProxy) -> asyncio.Server:
    """The control port of a proxy."""

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(f"{await proxy.command(line.decode(errors='replace'))}\n".encode())
                await writer.drain()
        writer.close()

    return await asyncio.start_server(obey, "127.0.0.1", 0)


async def serve(targets: Sequence[int], seed: int) -> None:
    """Run until the process is ended."""
    said = []
    for number, target in enumerate(targets):
        proxy = FaultProxy(target, seed=seed + number)
        await proxy.accept()
        control = await serve_control(proxy)
        said.append(f"proxy {proxy.port} control {control.sockets[0].getsockname()[1]}")
    print(*said, flush=True)
    await asyncio.Event().wait()


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(description="A TCP proxy on loopback that fails on demand.")
    parser.add_argument("--target", type=int, action="append", required=True, help="port of 127.0.0.1 to forward to")
    parser.add_argument("--seed", type=int, default=0, help="seed of the jitter, and of what is lost")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.target, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
