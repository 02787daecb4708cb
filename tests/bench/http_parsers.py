"""What reading HTTP/1.1 costs by h11 and by httptools, and what each takes that RFC 9112 has a server refuse.

Hypothesis: httptools saves less than a tenth of the CPU of the cheapest request of either service, so that the choice
is one of safety (decision 74).
Control: the same requests to the same application by uvicorn's other protocol, in turn; `ours` is the one that serves.
Command: `PYTHONPATH=DIR python -m tests.bench.http_parsers`, after `uv pip install --target DIR httptools==0.9.0`: the
project does not depend on it.

A connection has a transport of memory, so that neither sockets nor clients are in the figures: CPU of the thread a
request, the median of rounds.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from backend_kit.http import build_server
from tests.agentic_backend.rest.test_scopes import made
from tests.contracts.test_h11 import LENIENT

_ROUNDS = 7
_REQUESTS = 1000
_HEADERS = (
    "Host: chat.example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n"
    "Accept: application/json\r\nAccept-Language: en-GB,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
    "Referer: https://chat.example.com/\r\nOrigin: https://chat.example.com\r\nConnection: keep-alive\r\n"
    "Sec-Fetch-Dest: empty\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Site: same-origin\r\nPriority: u=4\r\n"
)


class _Transport(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 50_000), "sockname": ("192.0.2.2", 8000)})
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def _nothing() -> None:
    pass


async def _reads(scope: Any, receive: Any, send: Any) -> None:
    """The least application: reads the whole body."""
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def _get(path: str) -> list[bytes]:
    return [f"GET {path} HTTP/1.1\r\n{_HEADERS}\r\n".encode()]


def _post(path: str, size: int) -> list[bytes]:
    head = (
        f"POST {path} HTTP/1.1\r\n{_HEADERS}Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode()
    )
    return [head, *(bytes(min(65_536, size - start)) for start in range(0, size, 65_536))]


class _Reader:
    """A connection of one protocol to one application, again and again."""

    def __init__(self, http: type[Any], app: Any) -> None:
        config = build_server(app, _nothing).config
        config.load()
        self._made: Callable[[], Any] = lambda: http(config, ServerState(), {}, asyncio.get_running_loop())
        self.connect()

    def connect(self) -> None:
        """Open another connection."""
        self.protocol = self._made()
        self.transport = _Transport()
        self.protocol.connection_made(self.transport)

    async def ask(self, pieces: list[bytes]) -> bytes:
        """A request; the whole of its answer."""
        self.transport.written.clear()
        for piece in pieces:
            self.protocol.data_received(piece)
            await asyncio.sleep(0)
        for task in list(self.protocol.tasks):
            await task
        return bytes(self.transport.written)


def _protocols() -> dict[str, Any]:
    """By name, what makes the protocol of an application."""
    found: dict[str, Any] = {"h11": lambda _app: H11Protocol}
    if find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        found["httptools"] = lambda _app: HttpToolsProtocol
    found["ours"] = lambda app: build_server(app, _nothing).config.http
    return found


async def _cost_us(reader: _Reader, pieces: list[bytes], status: bytes) -> float:
    """CPU of a request, in microseconds."""
    reader.connect()  # the last one was idle for too long
    begun = time.thread_time()
    for _ in range(_REQUESTS):
        answer = await reader.ask(pieces)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
    return (time.thread_time() - begun) / _REQUESTS * 1e6


async def _costs() -> None:
    agentic, _, agentic_base = made("agentic")
    knowledge, _, knowledge_base = made("knowledge_flow")
    rows = {
        "the parser alone: GET": (_reads, _get("/"), b"200"),
        "the parser alone: POST of 2 KB": (_reads, _post("/", 2000), b"200"),
        "the parser alone: POST of 1 MB": (_reads, _post("/", 1_000_000), b"200"),
        "agentic: GET /healthz": (agentic, _get(f"{agentic_base}/healthz"), b"200"),
        "knowledge flow: GET /healthz": (knowledge, _get(f"{knowledge_base}/healthz"), b"200"),
    }
    protocols = _protocols()
    print("| request, µs of CPU |", " | ".join(protocols), "|")
    print("|---|" + "---|" * len(protocols))
    for name, (app, pieces, status) in rows.items():
        readers = {protocol: _Reader(of(app), app) for protocol, of in protocols.items()}
        seen: dict[str, list[float]] = {protocol: [] for protocol in protocols}
        for _ in range(_ROUNDS):
            for protocol, reader in readers.items():
                seen[protocol].append(await _cost_us(reader, pieces, status))
        print(f"| {name} |", " | ".join(f"{median(figures):.0f}" for figures in seen.values()), "|")


async def _leniency() -> None:
    """The status of each head that should be refused."""
    protocols = _protocols()
    print("\n| head |", " | ".join(protocols), "|")
    print("|---|" + "---|" * len(protocols))
    for name, head in LENIENT.items():
        said = []
        for of in protocols.values():
            reader = _Reader(of(_reads), _reads)
            answer = await reader.ask([head + (b"0\r\n\r\n" if b"chunked" in head else b"")])
            said.append(answer[9:12].decode() or "no answer")
        print(f"| {name} |", " | ".join(said), "|")


def main() -> int:
    """Print both tables."""
    logging.disable(logging.WARNING)
    if find_spec("httptools") is None:
        print("httptools is not installed: see the first lines of tests/bench/http_parsers.py")
    uvloop.run(_costs())
    uvloop.run(_leniency())
    return 0


if __name__ == "__main__":
    sys.exit(main())
