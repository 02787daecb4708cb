"""Event streams as sockets: what comes in pieces, after the end, too much, or not at all."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ws_bench.errors import TurnBroken
from ws_bench.load.client import ClientSocket
from ws_bench.load.streams import RunConnector, StreamConnector
from ws_bench.record.chat_stream import ChatTurn
from ws_bench.record.dialects import parse_event

pytestmark = pytest.mark.servers


@asynccontextmanager
async def stream(
    *parts: bytes,
    status: int = 200,
    kind: str = "text/event-stream",
    connector: type[StreamConnector] = StreamConnector,
    heard: list[tuple[str, bytes]] | None = None,
) -> AsyncIterator[ClientSocket]:
    """A socket whose asks are all answered by these parts, each a write of its own. `heard` gets path and body of
    each. A part that is empty breaks the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if heard is not None:
            heard.append((request.path, body))
        response = web.StreamResponse(status=status, headers={"Content-Type": kind, "X-Turnwise-Session-Id": "kept"})
        await response.prepare(request)
        for part in parts:
            if not part and request.transport is not None:
                request.transport.close()
            await response.write(part)
        return response

    app = web.Application()
    app.add_routes([web.post("/{path:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    socket = await connector(f"http://127.0.0.1:{runner.addresses[0][1]}/", {}, max_size=1000).connect()
    try:
        yield socket
    finally:
        await socket.close()
        await runner.cleanup()


async def test_events_are_put_together_from_whatever_comes() -> None:
    async with stream(b": hi\n\nid: 1\nevent: a\nda", b"ta: {}\r", b"\n\r\ndata: 1\ndata:2\n", b"\n") as socket:
        for _ in range(2):
            await socket.send("{}")
            assert [await socket.recv(), await socket.recv()] == [b"{}", b"1\n2"]
        assert socket.kept_session == "kept"
        with pytest.raises(TurnBroken, match="stream_cut"):
            await socket.recv()


async def test_what_comes_after_the_end_is_no_part_of_the_next_answer() -> None:
    async with stream(b"data: 1\n\n", b"data: 2\n\n") as socket:
        await socket.send("{}")
        assert await socket.recv() == b"1"
        await socket.send("{}")
        assert await socket.recv() == b"1"
        await socket.close()
        assert [await socket.recv(), await socket.recv()] == [b"2", b"2"]
        with pytest.raises(TurnBroken, match="stream_closed"):
            await socket.recv()


async def test_too_much_at_once_is_refused() -> None:
    async with stream(b"data: " + b"x" * 2000) as socket:
        await socket.send("{}")
        with pytest.raises(TurnBroken, match="event_too_large"):
            await socket.recv()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, {"detail": {"code": "rate_limited"}}, "http_429: rate_limited"),
        (404, {"error": {"code": "model_not_found", "message": "no such"}}, "http_404: model_not_found, no such"),
        (401, {"detail": "who?"}, "auth_401: who?"),
    ],
)
async def test_a_refusal_leaves_the_client_usable(status: int, body: object, kind: str) -> None:
    async with stream(json.dumps(body).encode(), status=status, kind="application/json") as socket:
        with pytest.raises(TurnBroken) as refused:
            await socket.send("{}")
    assert str(refused.value) == kind
    assert refused.value.usable


async def test_an_answer_in_one_piece_is_no_stream() -> None:
    async with stream(b"{}", kind="application/json") as socket:
        with pytest.raises(TurnBroken, match="protocol_no_stream"):
            await socket.send("{}")


async def test_events_of_a_run_come_with_their_names_and_an_end() -> None:
    parts = (b"event: metadata\ndata: {}\nid: 1\n\n: hi\n\nevent: mess", b"ages\ndata: [1,\ndata: 2]\n\n")
    heard: list[tuple[str, bytes]] = []
    async with stream(*parts, connector=RunConnector, heard=heard) as socket:
        for _ in range(2):
            await socket.send("/threads/t/runs/stream\n{}")
            events = [json.loads(await socket.recv()) for _ in range(3)]
            assert [(event["event"], event["data"]) for event in events] == [
                ("metadata", {}), ("messages", [1, 2]), ("end", None),
            ]  # fmt: skip
    assert heard == [("/threads/t/runs/stream", b"{}")] * 2


async def test_a_run_that_says_its_end_has_one() -> None:
    async with stream(b"event: end\ndata: null\n\n", connector=RunConnector) as socket:
        await socket.send("/runs/stream\n{}")
        assert json.loads(await socket.recv()) == {"event": "end", "data": None}
        with pytest.raises(TurnBroken, match="stream_cut"):
            await socket.recv()


async def test_a_run_that_is_cut_has_no_end() -> None:
    async with stream(b"event: metadata\ndata: {}\n\n", b"", connector=RunConnector) as socket:
        await socket.send("/runs/stream\n{}")
        assert json.loads(await socket.recv())["event"] == "metadata"
        with pytest.raises(TurnBroken, match="stream_cut"):
            await socket.recv()


def read(*events: object) -> ChatTurn:
    """A completion of these chunks and [DONE]."""
    turn = ChatTurn()
    for number, event in enumerate(events):
        assert not turn.feed(parse_event(json.dumps(event).encode()), float(number))
    assert turn.feed(parse_event(b"[DONE]"), float(len(events)))
    return turn


def chunk(finish: str | None = None, **delta: str) -> object:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_a_token_is_content_alone() -> None:
    turn = read(chunk(role="assistant"), chunk(reasoning_content="hm"), chunk(content="Hel"), chunk(content="lo"),
                chunk("stop"), {"choices": [], "usage": {}})  # fmt: skip
    assert turn.answer == "Hello"
    assert (turn.first_event_at, turn.first_token_at, turn.last_token_at) == (0.0, 2.0, 3.0)
    assert list(turn.gaps_ms) == [1000.0]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ((chunk(content="Hel"), {"error": {"code": "draining", "message": "later"}}), "server_error_event(draining)"),
        ((chunk(content="Hel"),), "protocol_order"),
        ((chunk("stop"),), "protocol_empty_final"),
        (({"object": "list"},), "protocol_unknown_event"),
        (({"choices": [1]},), "protocol_unknown_event"),
    ],
)
def test_a_completion_that_is_none_has_its_class(events: tuple[object, ...], kind: str) -> None:
    with pytest.raises(TurnBroken) as broken:
        read(*events)
    assert broken.value.kind == kind
