"""The server of `tests.bench.compression`: answers of a given size, compressed as the product does, and requests that
are decoded as it would. `python -m tests.bench.compressing --port N`."""

import argparse
import asyncio
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import uvloop
import zstandard

from agentic_backend.rest.compression import COMPRESSORS, Compression, Encoding
from backend_kit.http import build_server
from backend_kit.http.server import listen
from backend_kit.wire import dumps

ROOT: Final = Path(__file__).parents[2]
_TEXT_CHARS: Final = 1200
_JSON: Final = [(b"content-type", b"application/json")]


@lru_cache(maxsize=32)
def body_of(size: int) -> bytes:
    """JSON of `size` bytes, at least a hundred or so, as a search answers it: hits with passages of the documentation,
    each of them once."""
    prose = _prose()
    hits: list[dict[str, Any]] = []
    left = size
    while left > 0 or not hits:
        place = len(hits) * _TEXT_CHARS
        hit = {
            "chunk_uid": f"{(place + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}",
            "document_name": f"operations-{len(hits)}.md",
            "score": round(1 / (len(hits) + 1.37), 6),
            "text": "",
        }
        hits.append(hit)
        room = size - len(dumps({"hits": hits}))
        # The last one takes what would be too little for another.
        hit["text"] = prose[place : place + (room if room < 2 * _TEXT_CHARS else _TEXT_CHARS)] if room > 0 else ""
        left = size - len(dumps({"hits": hits}))
    return dumps({"hits": hits})


@lru_cache(maxsize=1)
def _prose() -> str:
    """The documentation as ASCII that JSON does not escape, so that a character is a byte."""
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    return " ".join(text.encode("ascii", "ignore").decode().translate({34: "'", 92: "/"}).split())


def encoded(body: bytes, encoding: str) -> bytes:
    """As the product encodes a body whose size it knows; `none` leaves it."""
    kinds: dict[str, Encoding] = {"gzip": "gzip", "zstd": "zstd"}
    if encoding not in kinds:
        return body
    compressor = COMPRESSORS[kinds[encoding]](len(body))
    return compressor.compress(body) + compressor.flush()


def decoded(body: bytes, encoding: str) -> bytes:
    """What was encoded."""
    if encoding == "gzip":
        return zlib.decompress(body, wbits=zlib.MAX_WBITS | 16)
    return zstandard.ZstdDecompressor().decompressobj().decompress(body) if encoding == "zstd" else body


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Reads and decodes the request, and answers with `bytes` bytes."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    encoding = dict(scope["headers"]).get(b"content-encoding", b"none").decode()
    decoded(b"".join(pieces), encoding)
    (size,) = parse_qs(scope["query_string"].decode()).get("bytes", ["64"])
    await send({"type": "http.response.start", "status": 200, "headers": list(_JSON)})
    await send({"type": "http.response.body", "body": body_of(int(size))})


async def _nothing() -> None:
    """Nothing to drain."""


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    server = build_server(Compression(_app, "auto"), _nothing)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(sockets=[listen("127.0.0.1", port)]))


if __name__ == "__main__":
    main()
