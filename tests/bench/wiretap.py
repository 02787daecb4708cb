"""TCP relays on loopback that write down what passes them and when: HTTP/1.1 exchanges, and statements of Postgres.

    python -m tests.bench.wiretap --tap model:http:8099 --tap database:postgres:5543

A tap is NAME:KIND:PORT and forwards to PORT. It prints `taps NAME PORT … control PORT`; the control port takes lines:
`dump PATH` (what was recorded so far, a JSON object a line), `delay NAME MS` (each piece of an answer is passed on so
much later), `delay-refused NAME MS` (so much later again, what is refused), `hold NAME` and `release NAME` (what
clients send waits meanwhile), `cut NAME` (end its connections).

Times are of CLOCK_MONOTONIC, which all processes share, in seconds: `begun` and `asked` are the first and the last byte
of a request, `answered` the last byte of the answer as it came, `first` and `ended` its first and last byte as they
were passed on.
"""

import argparse
import asyncio
import json
import re
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import uvloop

Record = dict[str, Any]
_MARK = re.compile(rb"#t(\d+)#")
_MODEL = re.compile(rb'"model": ?"([^"]+)"')
_CONTENT = re.compile(rb'"(?:content|arguments)": ?"(?!")')
_USAGE = re.compile(rb'"prompt_tokens": ?(\d+), ?"completion_tokens": ?(\d+)')
_EXCHANGE = re.compile(rb'"exchange_id": ?"([^"]+)"')
_TOOL = re.compile(rb'"method": ?"([^"]+)"')
_KEPT_SQL, _KEPT_PARAMETER = 400, 64


class MessageReader:
    """Cuts one direction of an HTTP/1.1 connection into heads, pieces of bodies and ends."""

    def __init__(self) -> None:
        self._rest = b""
        self._state: Literal["head", "length", "size", "chunk", "trailer"] = "head"
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[Literal["head", "body", "end"], bytes]]:
        """What is complete now, in order. A body without a length has none."""
        data, self._rest = self._rest + data, b""
        while data:
            if self._state in ("length", "chunk"):
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                # The end of a line behind a chunk is passed with it: nobody looks at it.
                yield "body", piece
                if self._left == 0:
                    if self._state == "length":
                        yield self._end()
                    else:
                        self._state = "size"
                continue
            mark = b"\r\n\r\n" if self._state == "head" else b"\r\n"
            line, found, after = data.partition(mark)
            if not found:
                self._rest = data
                return
            data = after
            if self._state == "head":
                yield "head", line
                if self._after_head(line):
                    yield self._end()
            elif self._state == "size":
                size = int(line.split(b";")[0], 16)
                self._state, self._left = ("chunk", size + 2) if size else ("trailer", 0)
            elif not line:
                yield self._end()

    def _end(self) -> tuple[Literal["end"], bytes]:
        self._state = "head"
        return "end", b""

    def _after_head(self, head: bytes) -> bool:
        """Choose how the body ends; whether there is none."""
        lowered = head.lower()
        if b"\r\ntransfer-encoding: chunked" in lowered:
            self._state = "size"
            return False
        length = re.search(rb"\r\ncontent-length: *(\d+)", lowered)
        self._left = int(length.group(1)) if length else 0
        self._state = "length"
        return self._left == 0


class Wire(Protocol):
    """What one connection says, as records. `status` is that of the last answer of HTTP, else 0."""

    status: int

    def up(self, data: bytes, now: float) -> None:
        """The client has sent this."""

    def down(self, data: bytes, now: float) -> list[Record]:
        """The server has sent this: the records that begin to be answered or end with it."""


class HttpWire:
    """HTTP/1.1: a record an exchange. Of answers of a model also how many pieces had text, when the first came, the
    longest time between two, and its count of tokens."""

    def __init__(self) -> None:
        self.status = 0
        self._requests, self._answers = MessageReader(), MessageReader()
        self._open: deque[Record] = deque()
        self._body = b""
        self._tail = b""
        self._since: float | None = None

    def up(self, data: bytes, now: float) -> None:
        """See `Wire`."""
        self._since = now if self._since is None else self._since
        for kind, piece in self._requests.feed(data):
            if kind == "head":
                method, path, _ = piece.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                self._body = b""
                self._open.append({"method": method, "path": path, "begun": self._since})
            elif kind == "body":
                self._body += piece
            else:
                record, body = self._open[-1], self._body
                record["asked"] = now
                self._since = None
                record["marks"] = sorted({int(mark) for mark in _MARK.findall(body)})
                for name, pattern in (("model", _MODEL), ("call", _TOOL)):
                    if found := pattern.search(body):
                        record[name] = found.group(1).decode()
                if record["path"].endswith("/embeddings"):
                    texts = json.loads(body)["input"]
                    record["inputs"] = 1 if isinstance(texts, str) else len(texts)

    def down(self, data: bytes, now: float) -> list[Record]:
        """See `Wire`."""
        told = []
        for kind, piece in self._answers.feed(data):
            if not self._open:
                continue
            record = self._open[0]
            if kind == "head":
                status = int(piece.split(b" ", 2)[1])
                if status >= 200:
                    record["status"] = self.status = status
            elif "status" not in record:
                continue
            elif kind == "body":
                record["bytes"] = record.get("bytes", 0) + len(piece)
                self._look(record, piece, now)
            else:
                record["answered"] = now
                told.append(self._open.popleft())
                self._tail = b""
        return told

    def _look(self, record: Record, piece: bytes, now: float) -> None:
        texts = len(_CONTENT.findall(piece))
        if texts:
            if "text_at" not in record:
                record["text_at"] = now
            else:
                record["gap"] = max(record.get("gap", 0.0), now - record["last_text_at"])
            record["last_text_at"] = now
            record["texts"] = record.get("texts", 0) + texts
        window = self._tail + piece
        if usage := _USAGE.search(window):
            record["usage"] = [int(count) for count in usage.groups()]
        self._tail = window[-200:]


class PostgresWire:
    """Postgres' protocol: a record for each time that the server is asked, which ends with its ReadyForQuery. A
    statement that is only prepared belongs to its first use, which follows at once."""

    _LOGIN, _NO_TLS = 196608, (80877103, 80877104)

    def __init__(self) -> None:
        self.status = 0
        self._up, self._down = b"", b""
        self._logged_in = False
        self._refusals = 0
        self._application = ""
        self._names: dict[str, str] = {}
        self._next: Record | None = None
        self._prepared: Record | None = None
        self._copies = False
        self._since = 0.0
        self._first: float | None = None
        self._open: deque[Record] = deque()

    def up(self, data: bytes, now: float) -> None:
        """See `Wire`."""
        self._since = self._since if self._up else now
        self._first = now if self._first is None else self._first
        buffer = self._up + data
        while not self._logged_in and len(buffer) >= 8:
            length, code = struct.unpack_from("!ii", buffer)
            if len(buffer) < length:
                break
            if code in self._NO_TLS:
                self._refusals += 1
            elif code == self._LOGIN:
                self._logged_in = True
                words = buffer[8:length].split(b"\0")
                pairs = dict(zip(words[::2], words[1::2], strict=False))
                self._application = pairs.get(b"application_name", b"").decode()
                self._open.append(
                    {"application": self._application, "sql": "LOGIN", "begun": self._first, "asked": now}
                )
            buffer = buffer[length:]
        while self._logged_in and len(buffer) >= 5:
            length = 1 + int.from_bytes(buffer[1:5], "big")
            if len(buffer) < length:
                break
            self._said(buffer[:1], buffer[5:length], now)
            buffer = buffer[length:]
            self._since = now
        self._up = buffer

    def down(self, data: bytes, now: float) -> list[Record]:
        """See `Wire`."""
        if self._refusals and not self._down:
            self._refusals -= 1
            data = data[1:]
        buffer, told, at = self._down + data, [], 0
        while len(buffer) - at >= 5:
            length = 1 + int.from_bytes(buffer[at + 1 : at + 5], "big")
            if len(buffer) - at < length:
                break
            kind = buffer[at : at + 1]
            if kind == b"E" and self._open:
                self._open[0]["failed"] = True
            elif kind == b"D" and self._open:
                self._open[0]["rows"] = self._open[0].get("rows", 0) + 1
            elif kind == b"Z" and self._open:
                record = self._open.popleft()
                record["answered"] = now
                if record.pop("unused", False):
                    self._prepared = record
                else:
                    told.append(record)
            at += length
        self._down = buffer[at:]
        return told

    def _said(self, kind: bytes, body: bytes, now: float) -> None:
        if kind in (b"d", b"c", b"f"):  # rows of a COPY, to a statement that was asked before
            self._copies = True
            return
        if self._copies:
            self._copies = False
            if kind == b"S":
                return
        if self._next is None:
            self._next = {"application": self._application, "sql": "", "begun": self._since}
        record = self._next
        if kind == b"Q":
            record["sql"] = body[:_KEPT_SQL].rstrip(b"\0").decode(errors="replace")
        elif kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self._names[name.decode()] = record["sql"] = " ".join(sql.decode(errors="replace").split())[:_KEPT_SQL]
            record["unused"] = True
        elif kind == b"B":
            self._bound(record, body)
            record.pop("unused", None)
            if self._prepared is not None and self._prepared["sql"] == record["sql"]:
                record["begun"], self._prepared = self._prepared["begun"], None
        if kind in (b"Q", b"S"):
            record["asked"] = now
            self._open.append(record)
            self._next = None

    def _bound(self, record: Record, body: bytes) -> None:
        _, name, rest = body.split(b"\0", 2)
        record["sql"] = self._names.get(name.decode(), record["sql"])
        (formats,) = struct.unpack_from("!h", rest)
        at = 2 + 2 * formats
        (count,) = struct.unpack_from("!h", rest, at)
        at += 2
        values = []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", rest, at)
            at += 4
            if length >= 0:
                value = rest[at : at + length]
                values.append(value[:_KEPT_PARAMETER].decode(errors="replace"))
                if found := _EXCHANGE.findall(value):
                    record["exchanges"] = sorted({one.decode() for one in found})
                at += length
        record["values"] = values


_WIRES: dict[str, Callable[[], Wire]] = {"http": HttpWire, "postgres": PostgresWire}


class Tap:
    """One listening port and what passed it."""

    def __init__(self, name: str, kind: str, target: int) -> None:
        self.name = name
        self.wire = _WIRES[kind]
        self.target = target
        self.delay_s = 0.0
        self.refused_delay_s = 0.0
        self.records: list[Record] = []
        self.links: set[Link] = set()
        self.port = 0
        self.held = False
        self._numbers = iter(range(1 << 40))

    async def listen(self) -> None:
        """Open a port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Near(Link(self, next(self._numbers))), "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]

    def hold(self, *, held: bool) -> None:
        """Keep what clients send, or let it go on."""
        self.held = held
        for link in tuple(self.links):
            link.let_go()


class Link:
    """One connection of a client with its connection to the target."""

    def __init__(self, tap: Tap, number: int) -> None:
        self._tap = tap
        self._number = number
        self._wire = tap.wire()
        self._loop = asyncio.get_running_loop()
        self._kept: list[bytes] = []
        self._down: deque[tuple[float, bytes, list[Record]]] = deque()
        self.near: asyncio.Transport | None = None
        self.far: asyncio.Transport | None = None
        tap.links.add(self)

    async def connect(self) -> None:
        """Connect to the target; what came meanwhile follows."""
        try:
            await self._loop.create_connection(lambda: Far(self), "127.0.0.1", self._tap.target)
        except OSError:
            self.end()
            return
        self.let_go()

    def let_go(self) -> None:
        """Send on what was kept, if it may be."""
        if self.far is not None and not self._tap.held:
            kept, self._kept = self._kept, []
            for data in kept:
                self.far.write(data)

    def up(self, data: bytes) -> None:
        """From the client."""
        self._wire.up(data, time.perf_counter())
        self._kept.append(data)
        self.let_go()

    def down(self, data: bytes) -> None:
        """From the target: passed on after the delay, in order."""
        now = time.perf_counter()
        records = self._wire.down(data, now)
        delay_s = self._tap.delay_s + (self._tap.refused_delay_s if self._wire.status >= 400 else 0.0)
        self._down.append((now + delay_s, data, records))
        if len(self._down) == 1:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._down:
            due, data, records = self._down[0]
            if (early_s := due - time.perf_counter()) > 0:
                self._loop.call_later(early_s, self._pass_on)
                return
            self._down.popleft()
            if self.near is not None and not self.near.is_closing():
                self.near.write(data)
            for record in records:
                record["ended"] = time.perf_counter()
                record["link"] = self._number
                self._tap.records.append(record)

    def end(self) -> None:
        """Either side has gone: so does the other."""
        self._tap.links.discard(self)
        for transport in (self.near, self.far):
            if transport is not None:
                transport.close()


class Near(asyncio.Protocol):
    """The client's side."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._link.near = cast("asyncio.Transport", transport)
        self._connecting = asyncio.get_running_loop().create_task(self._link.connect())

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._link.up(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by the loop."""
        self._link.end()


class Far(asyncio.Protocol):
    """The target's side."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._link.far = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._link.down(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by the loop."""
        self._link.end()


class Control:
    """Does what lines say."""

    def __init__(self, taps: dict[str, Tap]) -> None:
        self._taps = taps

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the bench."""
        while line := await reader.readline():
            self._obey(*line.decode().split())
            writer.write(b"ok\n")
        writer.close()

    def _obey(self, command: str, argument: str, value: str = "") -> None:
        if command == "dump":
            rows = [json.dumps({"tap": tap.name, **one}) for tap in self._taps.values() for one in tap.records]
            Path(argument).write_text("\n".join([*rows, ""]))
        elif command == "delay":
            self._taps[argument].delay_s = float(value) / 1e3
        elif command == "delay-refused":
            self._taps[argument].refused_delay_s = float(value) / 1e3
        elif command == "cut":
            for link in tuple(self._taps[argument].links):
                link.end()
        else:
            self._taps[argument].hold(held=command == "hold")


async def serve(taps: list[Tap]) -> None:
    """Relay until the process is ended."""
    for tap in taps:
        await tap.listen()
    control = await asyncio.start_server(Control({tap.name: tap for tap in taps}).serve, "127.0.0.1", 0)
    said = [f"{tap.name} {tap.port}" for tap in taps]
    print("taps", *said, "control", control.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(description="Relays that record what passes them.")
    parser.add_argument("--tap", action="append", required=True, help="NAME:KIND:PORT")
    taps = []
    for spec in parser.parse_args().tap:
        name, kind, port = spec.split(":")
        taps.append(Tap(name, kind, int(port)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(taps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
