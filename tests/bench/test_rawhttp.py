"""The benches' HTTP client has each answer whole, however it arrives, and says when a connection ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.bench.rawhttp import RawHttp, dial_http
from tests.bench.rawsocket import SocketFailed

SHORT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nX-Session: s1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\none\n\n\n\r\n12\r\na mark, 0\r\n\r\n, two\r\n0\r\n\r\n"
)
TEXT = b"one\n\n\na mark, 0\r\n\r\n, two"


@asynccontextmanager
async def answering(*answers: bytes, piece: int) -> AsyncIterator[RawHttp]:
    """A server that gives these answers, in pieces of so many bytes, and leaves."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(5)
            for at in range(0, len(answer), piece):
                writer.write(answer[at : at + piece])
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = await dial_http(server.sockets[0].getsockname()[1], b"mark")
        try:
            yield client
        finally:
            await client.close()


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
@pytest.mark.servers
async def test_answers_are_whole_in_whatever_pieces_they_arrive(piece: int) -> None:
    async with answering(CHUNKED, SHORT, CHUNKED, piece=piece) as client:
        for status, body in ((200, TEXT), (404, b"none"), (200, TEXT)):
            answer = await client.exchange("POST", "/", {"X": "y"}, b"hello")
            assert (answer.status, answer.body) == (status, body)
        assert answer.headers["x-session"] == "s1"
        assert client.chars > len(TEXT)
        assert client.ended_at > 0
        if piece == 1000:  # a mark is looked for in what comes at once
            assert client.first_at is not None


@pytest.mark.servers
async def test_a_server_that_leaves_fails_the_request_and_those_after_it() -> None:
    async with answering(CHUNKED[:-3], piece=1000) as client:
        for _ in range(2):
            with pytest.raises(SocketFailed, match="has ended"):
                await client.exchange("POST", "/", {}, b"hello")
