"""A server on a loopback port in a thread of its own, an application whose sockets misbehave on demand, raw clients."""

import asyncio
import logging
import queue
import socket
import struct
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from backend_kit.http import ServeSettings, build_server, listen
from backend_kit.http.server import DrainServer
from tests.support.patience import PATIENCE_S

Scope = dict[str, Any]
LARGE = 16 << 20
"""Bytes of an answer: more than the buffers of two kernels take."""
TEXTS = ("one", "zwei \u00fc", "", "x" * 200, "y" * 70_000, "\U0001f600", "last")


async def no_drain() -> None:
    """Nothing to end."""


@dataclass
class SocketApp:
    """An ASGI application. `seen` gets what happened, in order; `release` lets the waiting handlers go on."""

    seen: "queue.Queue[tuple[Any, ...]]" = field(default_factory=queue.Queue)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Dispatch by the kind and the path."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            assert (await receive())["type"] == "websocket.connect"
            await getattr(self, scope["path"].strip("/").replace("-", "_"))(scope, receive, send)

    async def _http(self, scope: Scope, receive: Any, send: Any) -> None:
        handlers = {
            "/abort": lambda: self.abort_http(scope, send),
            "/answer-then-read": lambda: self.answer_then_read(receive, send),
            "/client": lambda: self.name_client(scope, send),
            "/flood-pieces": lambda: self.flood_pieces(scope, receive, send),
            "/gone": lambda: self.wait_gone(scope),
            "/large": lambda: self.say_much(send),
            "/pieces": lambda: self.pieces(scope, send),
            "/read": lambda: self.read(receive, send),
            "/read-later": lambda: self.read_later(receive, send),
        }
        await handlers.get(scope["path"], lambda: self.say_ok(send))()

    async def _lifespan(self, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.seen.put(("lifespan", "shutdown"))
        await send({"type": "lifespan.shutdown.complete"})

    async def say_ok(self, send: Any) -> None:
        """A whole answer."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def say_much(self, send: Any) -> None:
        """A whole answer of `LARGE` bytes in one message; record when it was handed over."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        await send({"type": "http.response.body", "body": bytes(range(256)) * (LARGE // 256)})
        self.seen.put(("handed over",))

    async def name_client(self, scope: Scope, send: Any) -> None:
        """Record the client's address."""
        self.seen.put(("client", scope["client"][0]))
        await self.say_ok(send)

    async def read_later(self, receive: Any, send: Any) -> None:
        """Wait, then read."""
        await self.release.wait()
        await self.read(receive, send)

    async def read(self, receive: Any, send: Any) -> None:
        """Read the whole body, and answer; record how long it was, or that it ended before."""
        count = 0
        while (message := await receive())["type"] == "http.request":
            count += len(message["body"])
            if not message["more_body"]:
                self.seen.put(("body", count))
                await self.say_ok(send)
                return
        self.seen.put(("cut off",))
        await self.say_ok(send)  # as frameworks do: to nobody

    async def answer_then_read(self, receive: Any, send: Any) -> None:
        """Begin an answer, and read a body before its end."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        self.seen.put(("read until", message["type"]))
        await send({"type": "http.response.body", "body": b"ended"})

    async def echo(self, _scope: Scope, receive: Any, send: Any) -> None:
        """Say back what comes; record how it ended."""
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.seen.put(("disconnect", message["code"]))
                return
            if message.get("bytes") is not None:
                self.seen.put(("binary", len(message["bytes"])))
                await send({"type": "websocket.close", "code": 1003})
            else:
                await send({"type": "websocket.send", "text": message["text"]})

    async def refuse(self, _scope: Scope, _receive: Any, send: Any) -> None:
        """Close before accepting."""
        await send({"type": "websocket.close", "code": 4401})

    async def deny(self, _scope: Scope, _receive: Any, send: Any) -> None:
        """Answer the handshake by HTTP."""
        headers = [(b"retry-after", b"2"), (b"content-length", b"4")]
        await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b"late"})

    async def unwelcome(self, _scope: Scope, _receive: Any, send: Any) -> None:
        """Accept, then close."""
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4401})
        self.seen.put(("closed",))

    async def flood(self, _scope: Scope, _receive: Any, send: Any) -> None:
        """Send without end."""
        await send({"type": "websocket.accept"})
        self.seen.put(("accepted",))
        try:
            while True:
                await send({"type": "websocket.send", "text": "x" * 65536})
        except OSError as error:
            self.seen.put(("send failed", type(error).__name__))
            raise

    async def texts(self, scope: Scope, _receive: Any, send: Any) -> None:
        """Send `TEXTS` together and one by one, then close, and try once more."""
        await send({"type": "websocket.accept"})
        send_texts = scope["state"]["send_texts"]
        first, second, *rest = TEXTS
        await send_texts([first.encode()])
        await send({"type": "websocket.send", "text": second})
        await send_texts([text.encode() for text in rest])
        await send({"type": "websocket.close", "code": 4000})
        try:
            await send_texts([b"late"])
        except OSError as error:
            self.seen.put(("send failed", type(error).__name__))

    async def flood_now(self, scope: Scope, receive: Any, send: Any) -> None:
        """Send texts at once until that would have to wait, and try once more when the peer has gone."""
        await send({"type": "websocket.accept"})
        send_now = scope["state"]["send_texts_now"]
        count = 0
        while send_now([b"x" * 65536]):
            count += 1
        self.seen.put(("full", count))
        while (await receive())["type"] != "websocket.disconnect":
            pass
        self.seen.put(("gone", send_now([b"late"])))

    async def pieces(self, scope: Scope, send: Any) -> None:
        """An answer in pieces, each at once where that can be; what became of a piece before its head and after it."""
        send_now = scope["state"]["send_now"]
        early = send_now(b"early")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        at_once = []
        for body in (b"one", b"", b"x" * 70_000, b"two"):
            at_once.append(send_now(body))
            if not at_once[-1]:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"last"})
        self.seen.put(("pieces", early, at_once, send_now(b"late")))

    async def flood_pieces(self, scope: Scope, receive: Any, send: Any) -> None:
        """Send pieces at once until that would have to wait, and try once more when the peer has gone."""
        send_now = scope["state"]["send_now"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        count = 0
        while send_now(b"x" * 65536):
            count += 1
        self.seen.put(("full", count))
        while (await receive())["type"] != "http.disconnect":
            pass
        self.seen.put(("gone", send_now(b"late")))

    async def wait_gone(self, scope: Scope) -> None:
        """Wait for the peer to go, without a read; whoever asks later is told at once."""
        first, later, taken_back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        on_gone = scope["state"]["on_gone"]
        on_gone(taken_back.set)
        on_gone(first.set)
        self.seen.put("waits")
        await first.wait()
        on_gone(later.set)
        on_gone(None)
        self.seen.put(("gone", later.is_set(), taken_back.is_set()))

    async def flood_texts(self, scope: Scope, _receive: Any, send: Any) -> None:
        """Send texts without end."""
        await send({"type": "websocket.accept"})
        try:
            while True:
                await scope["state"]["send_texts"]([b"x" * 65536])
        except OSError as error:
            self.seen.put(("send failed", type(error).__name__))

    async def abort(self, scope: Scope, _receive: Any, send: Any) -> None:
        """Send until it blocks, then drop the connection."""
        await send({"type": "websocket.accept"})
        try:
            while True:
                async with asyncio.timeout(0.3):
                    await send({"type": "websocket.send", "text": "x" * 65536})
        except TimeoutError:
            scope["state"]["abort"]()
            scope["state"]["abort"]()
            self.seen.put(("aborted",))

    async def abort_http(self, scope: Scope, send: Any) -> None:
        """The same over plain HTTP."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                async with asyncio.timeout(0.3):
                    await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        except TimeoutError:
            scope["state"]["abort"]()
            scope["state"]["abort"]()
            self.seen.put(("aborted",))

    async def deaf(self, _scope: Scope, receive: Any, send: Any) -> None:
        """Be in a turn, not in receive."""
        await send({"type": "websocket.accept"})
        self.seen.put(("accepted",))
        try:
            await self.release.wait()
            self.seen.put(("receive", await receive()))
        finally:
            self.seen.put(("handler", "ended"))

    async def stubborn(self, _scope: Scope, _receive: Any, send: Any) -> None:
        """Take a while to end when cancelled."""
        await send({"type": "websocket.accept"})
        self.seen.put(("accepted",))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            self.seen.put(("handler", "ended"))

    def next(self) -> tuple[Any, ...]:
        """The next thing that happened."""
        return self.seen.get(timeout=PATIENCE_S)

    def let_go(self) -> None:
        """Set `release`, from any thread."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.release.set)


@dataclass
class Running:
    """A server and how to reach it."""

    server: uvicorn.Server
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        """The address of its sockets."""
        return f"ws://127.0.0.1:{self.port}"

    def on_loop(self, socket_app: SocketApp, question: Callable[[], Any]) -> Any:
        """The answer to a question about the server's own state, asked on its loop."""

        async def ask() -> Any:
            return question()

        assert socket_app.loop is not None
        return asyncio.run_coroutine_threadsafe(ask(), socket_app.loop).result(PATIENCE_S)

    def until(self, socket_app: SocketApp, question: Callable[[], bool]) -> None:
        """Return once the answer is yes."""

        async def ask() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not question():  # noqa: ASYNC110 - uvicorn's own state has no event
                    await asyncio.sleep(0.02)

        assert socket_app.loop is not None
        asyncio.run_coroutine_threadsafe(ask(), socket_app.loop).result(PATIENCE_S + 1)

    def join(self) -> None:
        """Wait for its end."""
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@contextmanager
def running(app: Any, settings: ServeSettings | None = None, drain: Any = no_drain) -> Iterator[Running]:
    """Our server around `app`."""
    with _run(build_server(app, drain, settings), listen("127.0.0.1", 0), force=False) as server:
        yield server


@contextmanager
def plain(app: Any, **config: Any) -> Iterator[Running]:
    """uvicorn as it is delivered, for what we rely on or work around."""
    options = {"ws": "websockets-sansio", "loop": "uvloop", "lifespan": "on", "log_config": None, **config}
    with _run(uvicorn.Server(uvicorn.Config(app, **options)), listen("127.0.0.1", 0), force=True) as server:
        yield server


@contextmanager
def _run(server: uvicorn.Server, sock: socket.socket, *, force: bool) -> Iterator[Running]:
    port = sock.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="server")
    thread.start()
    try:
        yield Running(server, port, thread)
    finally:
        # Ours looks once a second whether it should end, unless it is told.
        with suppress(RuntimeError):  # its loop has ended
            if isinstance(server, DrainServer):
                server.stop()
        server.should_exit = True
        # As delivered it waits for ever for some of the handlers below.
        server.force_exit = force
        thread.join(PATIENCE_S)
        logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)
        assert not thread.is_alive()


def connect(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    """A blocking TCP connection to a server of this machine."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", port))
    return sock


def handshake(sock: socket.socket, path: str, *headers: str) -> bytes:
    """Ask for an upgrade; the head of the answer."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {b64encode(bytes(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        chunk = sock.recv(1)
        if not chunk:
            break
        answer += chunk
    return answer


def frame(opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0, length: int | None = None) -> bytes:
    """A masked frame of a client. `length` announces another size than the payload has."""
    size = len(payload) if length is None else length
    head = bytes([(0x80 if fin else 0) | reserved | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", size)
    return head + bytes(4) + payload


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    """The next frame of the server: opcode and payload. Raises EOFError at the end of the stream."""
    first, second = _exactly(sock, 2)
    size = second & 0x7F
    if size == 126:
        size = struct.unpack("!H", _exactly(sock, 2))[0]
    elif size == 127:
        size = struct.unpack("!Q", _exactly(sock, 8))[0]
    return first & 0x0F, _exactly(sock, size)


def close_code(sock: socket.socket) -> int:
    """Read until the server's close frame; its code (1006: the stream ended without one)."""
    try:
        while True:
            opcode, payload = read_frame(sock)
            if opcode == 8:
                return int(struct.unpack("!H", payload[:2])[0]) if payload else 1005
    except EOFError:
        return 1006


def at_end(sock: socket.socket) -> bool:
    """Read to the end; whether the server ended the connection."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
