"""Compression of REST answers: what is chosen, what is left alone, and that the bytes mean the same."""

import gzip
import threading

import httpx
import pytest
import zstandard
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentic_backend.rest.compression import COMPRESSORS, MIN_BYTES, OFF_LOOP_BYTES, Compression, chosen

BOTH = ("zstd", "gzip")
DECODE = {"gzip": gzip.decompress, "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body)}
STREAM = {"gzip": gzip.decompress, "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body)}
TEXT = "médian " * 500


async def text(request):
    size = int(request.query_params.get("size", len(TEXT)))
    return Response("x" * size, media_type="application/json", headers={"ETag": '"a"', "Accept-Ranges": "bytes"})


async def failure(request):
    return JSONResponse({"detail": TEXT}, status_code=422)


async def image(request):
    return Response(b"x" * 5000, media_type="image/png")


async def encoded(request):
    return Response(b"x" * 5000, media_type="text/plain", headers={"Content-Encoding": "br"})


async def events(request):
    async def pieces():
        yield b"data: 1\n\n" * 500
        yield b"data: 2\n\n"

    kind = request.query_params.get("type", "text/event-stream")
    return StreamingResponse(pieces(), media_type=kind)


async def event(request):
    return Response(b"data: 1\n\n" * 500, media_type="text/event-stream")


ROUTES = [
    Route("/text", text),
    Route("/failure", failure),
    Route("/image", image),
    Route("/encoded", encoded),
    Route("/events", events),
    Route("/event", event),
]


async def get(path, accepted="gzip, zstd", mode="auto", method="GET", compressors=None):
    """The answer with its body as it is on the wire."""
    app = Starlette(routes=ROUTES)
    transport = httpx.ASGITransport(Compression(app, mode, compressors=compressors))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        request = client.build_request(method, path, headers={"Accept-Encoding": accepted})
        response = await client.send(request, stream=True)
        body = b"".join([piece async for piece in response.aiter_raw()])
        return response, body


@pytest.mark.parametrize(
    ("accepted", "offered", "encoding"),
    [
        ("gzip, deflate, br, zstd", BOTH, "zstd"),
        ("gzip, deflate", BOTH, "gzip"),
        ("GZIP", BOTH, "gzip"),
        ("gzip;q=1.0, zstd;q=0.5", BOTH, "gzip"),
        ("gzip ; q=0.5 , zstd; q=0.5", BOTH, "zstd"),
        ("*", BOTH, "zstd"),
        ("*;q=0.1, zstd;q=0", BOTH, "gzip"),
        ("zstd", ("gzip",), None),
        ("gzip;q=0", BOTH, None),
        ("gzip;q=high", BOTH, None),
        ("identity", BOTH, None),
        ("", BOTH, None),
        ("gzip, zstd", (), None),
    ],
)
def test_the_client_chooses_among_what_is_offered(accepted, offered, encoding):
    assert chosen(accepted, offered) == encoding


@pytest.mark.parametrize(
    ("mode", "encoding"), [("auto", "zstd"), ("gzip", "gzip"), ("zstd", "zstd"), ("none", None)], ids=str
)
async def test_an_answer_is_compressed_as_configured_and_means_the_same(mode, encoding):
    response, body = await get("/text?size=5000", mode=mode)
    assert response.headers.get("content-encoding") == encoding
    assert int(response.headers["content-length"]) == len(body)
    assert response.headers.get("vary") == (None if mode == "none" else "Accept-Encoding")
    assert (DECODE[encoding](body) if encoding else body) == b"x" * 5000
    if encoding:
        assert len(body) < 200
        assert response.headers["etag"] == 'W/"a"'
        assert "accept-ranges" not in response.headers


@pytest.mark.parametrize(("size", "compressed"), [(MIN_BYTES - 1, False), (MIN_BYTES, True)])
async def test_a_small_answer_stays_as_it_is(size, compressed):
    response, body = await get(f"/text?size={size}")
    assert ("content-encoding" in response.headers) == compressed
    assert (len(body) < size) == compressed
    assert response.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/failure", "/image", "/events", "/event", "/encoded"])
async def test_events_failures_and_what_is_no_text_stay_as_they_are(path):
    response, body = await get(path)
    plain, same = await get(path, mode="none")
    assert response.headers.get("content-encoding") == plain.headers.get("content-encoding")
    assert body == same
    assert len(body) > MIN_BYTES


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_what_comes_in_pieces_is_compressed_as_it_comes(encoding):
    response, body = await get("/events?type=application/json", accepted=encoding)
    assert response.headers["content-encoding"] == encoding
    assert "content-length" not in response.headers
    assert STREAM[encoding](body) == b"data: 1\n\n" * 500 + b"data: 2\n\n"
    assert len(body) < 200


async def test_events_are_sent_as_they_come():
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"data\n\n" * 500, "more_body": number < 2})
            assert len(sent) == number + 2

    async def send(message):
        sent.append(message["type"])

    async def receive():
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "headers": [(b"accept-encoding", b"gzip")]}
    await Compression(app, "auto")(scope, receive, send)
    assert sent == ["http.response.start"] + ["http.response.body"] * 3


async def test_the_head_alone_is_not_described_as_compressed():
    response, body = await get("/text?size=5000", method="HEAD")
    assert body == b""
    assert "content-encoding" not in response.headers
    assert response.headers["content-length"] == "5000"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [OFF_LOOP_BYTES, OFF_LOOP_BYTES + 1])
async def test_a_large_answer_is_compressed_beside_the_loop(encoding, size):
    threads = []

    class Seen:
        def __init__(self, length):
            self.compressor = COMPRESSORS[encoding](length)
            self.flush = self.compressor.flush

        def compress(self, body):
            threads.append(threading.current_thread())
            return self.compressor.compress(body)

    _, body = await get(f"/text?size={size}", accepted=encoding, compressors={encoding: Seen})
    assert len(DECODE[encoding](body)) == size
    assert (threads == [threading.main_thread()]) == (size == OFF_LOOP_BYTES)
    assert len(threads) == 1


async def test_other_connections_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    await Compression(app, "auto")({"type": "websocket"}, None, None)
    assert seen == ["websocket"]
