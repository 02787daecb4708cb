"""The benches' WebSocket client reads frames however they arrive, obeys pings, and says how a connection ended."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.bench.rawsocket import FrameReader, RawSocket, SocketFailed, dial
from tests.support.raw import PING, TEXT, frame

END = '{"type":"final"}'
MARK = '{"type":"delta"'
DELTA = '{"type":"delta","text":"a"}'


def of_server(opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0) -> bytes:
    return frame(opcode, payload, fin=fin, reserved=reserved, mask=None)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100, 200_000])
def test_frames_are_the_same_in_whatever_pieces_they_arrive(piece: int) -> None:
    wanted = [(TEXT, b""), (TEXT, b"x" * 125), (PING, b"now"), (TEXT, b"y" * 126), (TEXT, b"z" * 65_536)]
    stream = b"".join(of_server(opcode, payload) for opcode, payload in wanted)
    reader = FrameReader()
    found = [one for at in range(0, len(stream), piece) for one in reader.feed(stream[at : at + piece])]
    assert found == wanted


def test_compressed_messages_share_their_window() -> None:
    squeeze = zlib.compressobj(wbits=-15)
    reader = FrameReader()
    for text in (b"one message and another", b"another message and one"):
        squeezed = squeeze.compress(text) + squeeze.flush(zlib.Z_SYNC_FLUSH)
        assert reader.feed(of_server(TEXT, squeezed[:-4], reserved=0x40)) == [(TEXT, text)]


@pytest.mark.parametrize("sent", [frame(TEXT, b"masked"), of_server(TEXT, b"a part", fin=False)])
def test_what_no_server_sends_is_refused(sent: bytes) -> None:
    with pytest.raises(SocketFailed, match=r"masked|several"):
        FrameReader().feed(sent)


@asynccontextmanager
async def opened(handler: Callable[[ServerConnection], Awaitable[None]], **given: bool) -> AsyncIterator[RawSocket]:
    async with serve(handler, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        socket = await dial(port, "/", ends=(END[:15],), mark=MARK, **given)
        try:
            yield socket
        finally:
            await socket.close()


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.servers
async def test_an_exchange_is_what_comes_up_to_its_end(deflate: bool) -> None:
    async def answer(socket: ServerConnection) -> None:
        async for asked in socket:
            for text in (json.dumps({"type": "accepted", "asked": asked}), DELTA, DELTA, END):
                await socket.send(text)

    async with opened(answer, deflate=deflate) as socket:
        for asked in ("one", "two"):
            heard = await socket.exchange(asked)
            assert json.loads(heard[0])["asked"] == asked
            assert heard[1:] == [DELTA, DELTA, END]
            assert socket.chars == sum(map(len, heard))
            assert socket.first_at is not None
            assert socket.first_at <= socket.ended_at


@pytest.mark.servers
async def test_a_ping_is_answered_in_the_middle_of_an_exchange() -> None:
    async def answer(socket: ServerConnection) -> None:
        async for _ in socket:
            await (await socket.ping())
            await socket.send(END)

    async with opened(answer) as socket:
        assert await socket.exchange("hello") == [END]
        assert socket.first_at is None


@pytest.mark.servers
async def test_a_server_that_leaves_fails_the_exchange_and_those_after_it() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(1001, "going away")

    async with opened(leave) as socket:
        for _ in range(2):
            with pytest.raises(SocketFailed, match="going away"):
                await socket.exchange("hello")


@pytest.mark.servers
async def test_a_refused_handshake_says_how_it_was_refused() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SocketFailed, match="403 Forbidden"):
            await dial(port, "/", ends=(END,), mark=MARK)
