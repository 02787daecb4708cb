"""HTTP/1.1 in raw bytes: keep-alive, pipelining, chunked bodies, limits, slow readers."""

import asyncio
import json

import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_bench.fakes.conftest import Model, StartModel
from ws_bench.fakes.http import MAX_BODY

pytestmark = pytest.mark.servers

ASK = b'{"model":"mock;tokens=2","stream":true,"messages":[{"role":"user","content":"x"}]}'


class Raw:
    """A connection in raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def response(self) -> tuple[int, bytes]:
        """The next response: status and de-chunked body."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            status = int(head.split()[1])
            if "transfer-encoding: chunked" not in head:
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                return status, await self.reader.readexactly(length)
            body = bytearray()
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
            return status, bytes(body)


async def connect(model: Model) -> Raw:
    return Raw(*await asyncio.open_connection("127.0.0.1", model.server.port))


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/chat/completions", version: bytes = b"1.1") -> bytes:
    lines = [b"POST %b HTTP/%b" % (path, version), b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


GET = b"GET /healthz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_connection_serves_one_request_after_the_other(model: Model) -> None:
    raw = await connect(model)
    for _ in range(3):
        raw.writer.write(GET)
        assert await raw.response() == (200, b'{"status":"ok"}')
        raw.writer.write(post(ASK))
        status, body = await raw.response()
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    raw.writer.close()


async def test_pipelined_requests_are_answered_in_order(model: Model) -> None:
    raw = await connect(model)
    raw.writer.write((post(ASK) + GET) * 200)
    for _ in range(200):
        assert (await raw.response())[1].endswith(b"data: [DONE]\n\n")
        assert (await raw.response())[1] == b'{"status":"ok"}'
    raw.writer.close()


async def test_a_request_may_come_byte_by_byte(model: Model) -> None:
    raw = await connect(model)
    for byte in post(ASK):
        raw.writer.write(bytes([byte]))
        await raw.writer.drain()
        await asyncio.sleep(0)
    assert (await raw.response())[0] == 200
    raw.writer.close()


async def test_a_request_body_may_be_chunked(model: Model) -> None:
    raw = await connect(model)
    raw.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for part in (ASK[:10], ASK[10:]):
        raw.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
    raw.writer.write(b"0\r\n\r\n")
    assert (await raw.response())[0] == 200
    raw.writer.close()


async def test_a_client_that_asks_to_close_is_closed(model: Model) -> None:
    raw = await connect(model)
    raw.writer.write(post(ASK, b"Connection: close"))
    assert (await raw.response())[0] == 200
    assert await raw.reader.read() == b""
    raw.writer.close()


async def test_http_1_0_gets_whole_answers_and_no_streams(model: Model) -> None:
    for body, expected in ((ASK, 505), (ASK.replace(b"true", b"false"), 200)):
        raw = await connect(model)
        raw.writer.write(post(body, version=b"1.0"))
        assert (await raw.response())[0] == expected
        assert await raw.reader.read() == b""
        raw.writer.close()


async def test_a_client_that_expects_100_continue_gets_it(model: Model) -> None:
    raw = await connect(model)
    head, _, body = post(ASK, b"Expect: 100-continue").partition(b"\r\n\r\n")
    raw.writer.write(head + b"\r\n\r\n")
    assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    raw.writer.write(body)
    assert (await raw.response())[0] == 200
    raw.writer.close()


async def test_a_body_of_ten_megabytes_is_taken_and_a_larger_one_refused(model: Model) -> None:
    frame = json.dumps({"model": "mock;tokens=1", "messages": [{"role": "user", "content": ""}]}).encode()
    largest = frame.replace(b'""', b'"' + b"x" * (MAX_BODY - len(frame)) + b'"')
    assert len(largest) == MAX_BODY
    raw = await connect(model)
    raw.writer.write(post(largest))
    assert (await raw.response())[0] == 200
    raw.writer.write(post(largest + b" "))
    assert (await raw.response())[0] == 413
    raw.writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 66_000,
    ],
)
async def test_what_is_no_http_is_refused_and_closed(model: Model, data: bytes) -> None:
    raw = await connect(model)
    raw.writer.write(data)
    assert 400 <= (await raw.response())[0] < 500
    assert await raw.reader.read() == b""
    raw.writer.close()


async def test_what_a_client_sends_during_its_answer_is_bounded(model: Model) -> None:
    raw = await connect(model)
    raw.writer.write(post(ASK.replace(b"tokens=2", b"ttft=600000")))

    async def flood() -> None:
        for _ in range(400):
            raw.writer.write(b"x" * 100_000)
            await raw.writer.drain()

    with pytest.raises(ConnectionError):
        await flood()
    raw.writer.close()


async def test_a_slow_reader_gets_everything_and_the_server_waits_for_it(start_model: StartModel) -> None:
    model = await start_model()
    raw = await connect(model)
    try:
        raw.writer.write(post(ASK.replace(b"tokens=2", b"tokens=100000;gap=0.06")))
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        # Nothing is read until the server has had to stop: the rest of its text is not in the kernel's buffers. The
        # text takes 6 s: of a late loop that found all of it due at once it would be a single write.
        stalled = await _settled(model)
        assert 0 < stalled < 100_000
        raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
        status, body = await raw.response()
        assert (status, body.count(b'"delta":{"content":')) == (200, 100_000)
    finally:
        # Not close: the loop would wait for ever for a connection of which neither side reads.
        raw.writer.transport.abort()


async def _settled(model: Model) -> int:
    """The number of sent tokens once it no longer grows."""
    before, now = -1, 0
    async with asyncio.timeout(PATIENCE_S):
        while before != now or now == 0:
            before = now
            await asyncio.sleep(0.2)
            now = int((await model.stats())["tokens"])
    return now
