"""A turn that another instance follows, over real sockets: the same events there, and an end however it is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI

from agentic_backend.chat import relay as frames
from agentic_backend.chat.sse import NATIVE
from agentic_backend.events import ChatMessage, text_part
from agentic_backend.peers.events import encode_ask, encode_events
from agentic_backend.peers.mirror import PeerLost, Peers, TurnNotThere, lines_of, mirror
from agentic_backend.peers.relay import LINE_BYTES, PATH, TurnRelay, relay_routes
from agentic_backend.rest.compression import Compression
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    Accepted,
    Ask,
    Awaiting,
    Cancelled,
    Cited,
    CustomPart,
    Failed,
    Final,
    GraphPart,
    HumanAnswer,
    Payload,
    SessionChanged,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Turn,
    TurnEvent,
    Whole,
)
from backend_kit.http import listen
from backend_kit.wire import Code
from tests.agentic_backend.records import until
from tests.chaos.proxy import FaultProxy
from tests.support.patience import PATIENCE_S
from tests.support.silent_server import served

pytestmark = pytest.mark.servers

BASE = "/agentic/v1"
TOKEN = "the token of this instance"
ODD = "e+1 ?&=%/é\u2028#"
"""An id that an address can only carry escaped."""
SESSION = Session("s", "ann", "Georges", "A title", "2026-01-01T00:00:00.000000Z", 2, {"a": 1})


def message(rank: int, text: str) -> ChatMessage:
    return ChatMessage.build(
        session_id="s", exchange_id=ODD, rank=rank, role="assistant", channel="final", parts=[text_part(text)]
    )


FINAL = Final((message(0, "Hello"), message(1, "é\n" * 3)), SESSION, b'[{"name":"llm","ms":1.50}]', 0.1, "db", ("w",))
ASKED = Awaiting({"question": "May I?"}, (message(0, "Hello"),), SESSION, {"tokens": 3})
SAID: tuple[Payload, ...] = (
    Accepted(1),
    Accepted(),
    Whole(message(0, "Hello")),
    ThoughtDelta("Hm"),
    ThoughtDelta("…"),
    TextDelta(1, "thought", "Let me see"),
    CustomPart(b'{"a": 1.0}'),
    GraphPart("values", ("team:1", "one:2"), b'{"messages": []}'),
    SpokenBy(1, "lc_run--1", "think", -1, ()),
    Cited([{"uid": "u", "score": 0.5}]),
    *(TextDelta(1, "final", text) for text in ("é", "\n", "", "x" * 9)),
    SessionChanged(SESSION),
)


def make_turn(**more: Any) -> Turn:
    return Turn(Ask("s", "Georges", "Hello", ODD, "ann", 0.0, request_id="r", **more))


def said(turn: Turn, *payloads: Payload) -> Turn:
    for payload in payloads:
        turn.publish(payload)
    return turn


def rendered(turn: Turn) -> list[Any]:
    """What each kind of client sees of the whole turn."""
    return [
        (event.seq, frames.native(turn, event), NATIVE.write(turn, event), frames.compatible(turn, event))
        for event in turn.events
    ]


@dataclass
class Holder:
    """An instance with some turns, and another that follows them."""

    url: str
    relay: TurnRelay
    peers: Peers
    turns: dict[tuple[str, str], Turn] = field(default_factory=dict)

    def holds(self, turn: Turn) -> Turn:
        self.turns[turn.ask.exchange_id, turn.ask.user_id] = turn
        return turn

    def follow(self, after: int = 0, **changed: Any) -> Any:
        asked = {"user_id": "ann", "session_id": "s", "exchange_id": ODD, "after": after, "token": TOKEN}
        return self.peers.follow(self.url, **(asked | changed))

    async def events(self, after: int = 0, **changed: Any) -> list[TurnEvent]:
        """All events to the end."""
        async with asyncio.timeout(PATIENCE_S):
            return [event async for batch in self.follow(after, **changed) for event in batch]

    async def mirrored(self, turn: Turn, after: int = 0) -> Turn:
        async with asyncio.timeout(PATIENCE_S):
            await mirror(turn, self.follow(after))
        return turn


@asynccontextmanager
async def holder(**bounds: float) -> AsyncIterator[Holder]:
    app = FastAPI(openapi_url=None)
    relay = TurnRelay(TOKEN, lambda exchange_id, user_id: held.turns.get((exchange_id, user_id)), **bounds)
    app.router.routes += relay_routes(relay, BASE)
    app.add_middleware(Compression, mode="auto")

    sock = listen("127.0.0.1", 0)
    peers = Peers(BASE, heartbeat_s=PATIENCE_S, connect_s=PATIENCE_S)
    held = Holder(f"http://127.0.0.1:{sock.getsockname()[1]}/", relay, peers)
    async with served(app, sock):
        try:
            yield held
        finally:
            await peers.aclose()


@asynccontextmanager
async def odd_peer(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of a server that answers as the test says, and then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


STATUS = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD = STATUS + chunk(encode_ask(Ask("s", "Georges", "Hello", "e", "ann", 0.0)) + b"\n")
FIRST = chunk(encode_events([TurnEvent(1, Accepted())]) + b"\n")


async def test_cut_at_every_event_the_mirror_is_the_turn_byte_for_byte() -> None:
    async with holder() as held:
        turn = held.holds(said(make_turn(), *SAID, FINAL))
        wanted = rendered(turn)
        for cut in range(len(turn.events) + 1):
            copy = make_turn()
            async with aclosing(held.follow()) as batches:
                async for batch in batches:
                    for event in batch[:cut]:
                        copy.take(event)
                    break  # one line has them all
            assert len(copy.events) == cut
            await held.mirrored(copy, after=cut)
            assert rendered(copy) == wanted
            assert copy.ended
            assert copy.bytes_held == turn.bytes_held
        await until(lambda: not held.relay.following)


async def test_what_is_said_comes_at_once_and_one_by_one() -> None:
    async with holder() as held, asyncio.TaskGroup() as group:
        turn, copy = held.holds(make_turn()), make_turn()
        group.create_task(held.mirrored(copy))
        for payload in SAID:
            turn.publish(payload)
            await until(lambda: len(copy.events) == len(turn.events))
        assert turn.followed
        assert held.relay.following == 1
        turn.publish(FINAL)
        await until(lambda: copy.ended)
        assert rendered(copy) == rendered(turn)


async def test_each_that_follows_gets_all_and_a_late_one_what_it_lacks() -> None:
    async with holder() as held, asyncio.TaskGroup() as group:
        turn = held.holds(said(make_turn(), *SAID[:4]))
        copies = [make_turn() for _ in range(3)]
        for copy in copies:
            group.create_task(held.mirrored(copy))
        await until(lambda: held.relay.following == 3)
        said(turn, *SAID[4:])
        late = make_turn()
        for event in list(turn.events)[:6]:
            late.take(event)
        group.create_task(held.mirrored(late, after=6))
        await until(lambda: held.relay.following == 4)
        turn.publish(FINAL)
        await until(lambda: all(copy.ended for copy in (*copies, late)))
        assert all(rendered(copy) == rendered(turn) for copy in (*copies, late))


@pytest.mark.parametrize(
    "end",
    [FINAL, ASKED, Cancelled((message(0, "Hello"),), SESSION), Failed(Code.LLM_TIMEOUT, refused=False, language="fr")],
)
async def test_every_end_ends_the_mirror(end: Payload) -> None:
    async with holder() as held:
        turn = held.holds(said(make_turn(), Accepted(), end))
        copy = await held.mirrored(make_turn())
        assert copy.ended
        assert copy.earlier == 0
        assert rendered(copy) == rendered(turn)


async def test_a_refusal_has_no_number_and_comes_all_the_same() -> None:
    async with holder() as held:
        held.holds(said(make_turn(), Failed(Code.OVERLOADED, refused=True, retry_after_ms=5)))
        copy = await held.mirrored(make_turn())
        assert [event.seq for event in copy.events] == [0]
        assert copy.ended


async def test_a_run_that_a_person_let_continue_is_mirrored_with_what_was_before() -> None:
    async with holder() as held:
        before = said(make_turn(), Accepted(), TextDelta(1, "final", "a"), SessionChanged(SESSION), ASKED)
        turn = held.holds(Turn(make_turn(human=HumanAnswer("yes")).ask, before))
        said(turn, Accepted(), TextDelta(2, "final", "b"), FINAL)
        copy = await held.mirrored(make_turn())
        assert (copy.earlier, copy.ended) == (4, True)
        assert rendered(copy) == rendered(turn)
        for cut in range(len(turn.events) + 1):
            late = make_turn()
            assert await held.events(cut) == list(turn.events)[cut:]
            for event in list(turn.events)[:cut]:
                late.take(event, goes_on=event.payload == ASKED)
            await held.mirrored(late, cut)
            assert rendered(late) == rendered(turn)


async def test_what_was_asked_goes_along_as_far_as_clients_see_it() -> None:
    async with holder() as held:
        turn = held.holds(
            make_turn(language="fr", note={"a": [1.0]}, on_disconnect="cancel", human=HumanAnswer({"x": 1}))
        )
        said(turn, Failed(Code.LLM_TIMEOUT, refused=False, language="fr"))
        copy = Turn(Ask("s", "", "", ODD, "ann", 0.0, request_id="of another request"))
        async with asyncio.timeout(PATIENCE_S):
            await mirror(copy, held.follow(on_ask=lambda ask: setattr(copy, "ask", ask)))
        assert copy.ask == replace(turn.ask, received_at=copy.ask.received_at)
        assert copy.ask.note == turn.ask.note
        assert rendered(copy) == rendered(turn)


async def test_numbers_that_jump_stay_as_they_are() -> None:
    async with holder() as held:
        turn = make_turn()
        turn.continue_after(10**12)
        said(held.holds(turn), *SAID, FINAL)
        copy = await held.mirrored(make_turn())
        assert [event.seq for event in copy.events] == list(range(10**12 + 1, 10**12 + len(SAID) + 2))
        assert rendered(copy) == rendered(turn)
        assert len(await held.events(10**12 + 3)) == len(SAID) + 1 - 3


async def test_a_connection_that_became_half_open_is_not_used_for_another_turn() -> None:
    async with holder() as held:
        turn = held.holds(said(make_turn(), *SAID, FINAL))
        proxy = FaultProxy(int(held.url.rstrip("/").rpartition(":")[2]))
        await proxy.accept()
        url, peers = f"http://127.0.0.1:{proxy.port}", Peers(BASE, heartbeat_s=1.0)
        asked = {"user_id": "ann", "session_id": "s", "exchange_id": ODD, "after": 0}
        for _ in range(2):
            copy = make_turn()
            await mirror(copy, peers.follow(url, TOKEN, **asked))  # type: ignore[arg-type] # as `Holder.follow`
            assert rendered(copy) == rendered(turn)
            await proxy.command("strand")
        await peers.aclose()
        proxy.close()


async def test_whoever_follows_a_silent_turn_is_woken_by_its_heartbeats() -> None:
    """They may have nobody left who follows it there: its instance is to hear of that before its next word."""
    async with holder(heartbeat_s=0.02) as held, asyncio.timeout(PATIENCE_S):
        held.holds(said(make_turn(), Accepted()))
        batches = held.follow()
        assert [event.seq for event in await anext(batches)] == [1]
        assert await anext(batches) == []
        await batches.aclose()
        await until(lambda: held.relay.following == 0)


async def test_much_text_comes_in_lines_of_bounded_length() -> None:
    async with holder() as held:
        texts = [TextDelta(1, "final", f"{number:01000}") for number in range(1000)]
        turn = held.holds(said(make_turn(), *texts, FINAL))
        async with held.peers._session.get(
            held.url.rstrip("/") + BASE + PATH,
            params={"user": "ann", "session": "s", "exchange": ODD, "after": "0"},
            headers={"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "gzip"},
        ) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            lines = (await response.read()).split(b"\n")
        assert max(map(len, lines)) < LINE_BYTES + 3000
        assert len(lines) < 25
        assert rendered(await held.mirrored(make_turn())) == rendered(turn)


@pytest.mark.parametrize(
    "changed",
    [
        {"token": "another"},
        {"token": ""},
        {"token": f"{TOKEN}x"},
        {"token": "é"},
        {"user_id": "bob"},
        {"user_id": ""},
        {"session_id": "another"},
        {"session_id": ""},
        {"exchange_id": "another"},
        {"after": -1},
        {"after": "x"},
        {"after": ""},
        {"after": "1" * 30},
    ],
)
async def test_who_may_not_know_is_told_that_there_is_nothing(changed: dict[str, Any]) -> None:
    async with holder() as held:
        held.holds(said(make_turn(), *SAID, FINAL))
        with pytest.raises(TurnNotThere):
            await held.events(**changed)
        assert held.relay.following == 0


async def test_what_is_not_there_and_who_may_not_ask_get_the_same_answer() -> None:
    async with holder() as held, aiohttp.ClientSession() as http:
        held.holds(said(make_turn(), FINAL))
        answers = set()
        for query, authorization in (
            (f"?user=ann&session=s&exchange={'x'}&after=0", f"Bearer {TOKEN}"),
            (f"?user=ann&session=s&exchange={'x'}&after=0", "Bearer another"),
            ("?user=ann&session=s", "Basic x"),
            ("", ""),
        ):
            headers = {"Authorization": authorization} if authorization else {}
            async with http.get(held.url.rstrip("/") + BASE + PATH + query, headers=headers) as response:
                named = {name: value for name, value in response.headers.items() if name != "date"}
                answers.add((response.status, await response.read(), str(named)))
        assert [(status, body) for status, body, _ in answers] == [(404, b"")]


def test_an_instance_without_a_token_has_no_relay() -> None:
    with pytest.raises(ValueError, match="token"):
        TurnRelay("", lambda _exchange, _user: None)


@pytest.mark.parametrize("on_disconnect", ["continue", "cancel"])
async def test_one_that_leaves_is_a_client_that_leaves(on_disconnect: Any) -> None:
    async with holder() as held:
        turn = held.holds(make_turn(on_disconnect=on_disconnect))
        async with aclosing(held.follow()) as batches, asyncio.TaskGroup() as group:
            task = group.create_task(anext(batches))
            await until(lambda: turn.followed)
            turn.publish(Accepted())
            assert await task == list(turn.events)
            assert not turn.cancel_requested
        await until(lambda: not turn.followed)
        assert turn.cancel_requested == (on_disconnect == "cancel")
        assert held.relay.following == 0


async def test_another_client_of_a_turn_keeps_it_running() -> None:
    async with holder() as held:
        turn = held.holds(said(make_turn(on_disconnect="cancel"), Accepted()))
        turn.follow(lambda: None)
        async with aclosing(held.follow()) as batches:
            await anext(batches)
        await until(lambda: not held.relay.following)
        assert not turn.cancel_requested


async def test_silence_is_filled_with_empty_lines() -> None:
    async with holder(heartbeat_s=0.01) as held:
        turn = held.holds(make_turn())
        async with held.peers._session.get(
            held.url.rstrip("/") + BASE + PATH,
            params={"user": "ann", "session": "s", "exchange": ODD, "after": "0"},
            headers={"Authorization": f"Bearer {TOKEN}"},
        ) as response:
            assert await response.content.readline() == encode_ask(turn.ask) + b"\n"
            for _ in range(5):
                assert await response.content.readline() == b"\n"
            said(turn, Accepted(), FINAL)
            lines = (await response.read()).split(b"\n")
            assert [line for line in lines if line] == [encode_events(turn.events)]


async def test_a_peer_that_does_not_read_is_cut_off() -> None:
    async with holder(heartbeat_s=0.02, send_s=0.05) as held:
        turn = held.holds(make_turn(on_disconnect="cancel"))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(held.url.rstrip("/").rpartition(":")[2]))
        writer.transport.pause_reading()
        query = "user=ann&session=s&after=0&exchange=" + "".join(f"%{byte:02x}" for byte in ODD.encode())
        writer.write(f"GET {BASE}{PATH}?{query} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode())
        await until(lambda: held.relay.following == 1)
        while held.relay.following:
            turn.publish(TextDelta(1, "final", "x" * 100_000))
            await asyncio.sleep(0)
        assert turn.cancel_requested
        writer.transport.abort()
        del reader


async def test_an_event_that_cannot_be_encoded_ends_the_stream_and_not_the_turn() -> None:
    async with holder() as held, asyncio.TaskGroup() as group:
        turn = held.holds(said(make_turn(), Accepted()))
        follows = group.create_task(lost(held.follow()))
        await until(lambda: held.relay.following == 1)
        turn.publish(Unknown())  # type: ignore[arg-type]
        await follows
        turn.publish(FINAL)
        assert turn.ended


class Unknown:
    """No payload of a turn."""


async def lost(events: Any) -> PeerLost:
    """The end of events that have no good one."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerLost) as failure:
            async for _ in events:
                pass
    return failure.value


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 500 Sorry\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        STATUS,
        STATUS + chunk(b"") + b"\r\n",
        STATUS + FIRST + chunk(b"") + b"\r\n",
        STATUS + chunk(b"{}\n") + chunk(b"") + b"\r\n",
        HEAD,
        HEAD + FIRST,
        HEAD + FIRST[:-7],
        HEAD + FIRST + chunk(b"") + b"\r\n",
        HEAD + chunk(b"[") + chunk(b""),
        HEAD + chunk(b"{}\n") + chunk(b""),
        HEAD + FIRST + chunk(b'[[2,"what"]]\n') + chunk(b""),
        HEAD + chunk(encode_events([TurnEvent(1, FINAL)])) + chunk(b""),
    ],
)
async def test_a_peer_that_breaks_off_or_says_nonsense_is_lost(answer: bytes) -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with odd_peer(say) as url, peers() as following:
        await lost(following.follow(url, TOKEN, user_id="ann", session_id="s", exchange_id="e", after=0))


async def test_a_stream_that_ends_before_its_turn_has_lost_its_peer() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + FIRST + b"0\r\n\r\n")

    async with odd_peer(say) as url, peers() as following:
        asked = following.follow(url, TOKEN, user_id="ann", session_id="s", exchange_id="e", after=0)
        assert "no end" in str(await lost(asked))


async def test_what_came_before_a_peer_was_lost_is_kept() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + FIRST)

    async with odd_peer(say) as url, peers() as following:
        copy = make_turn()
        with pytest.raises(PeerLost):
            await mirror(copy, following.follow(url, TOKEN, user_id="a", session_id="s", exchange_id="e", after=0))
        assert list(copy.events) == [TurnEvent(1, Accepted())]
        assert not copy.ended


async def test_who_has_the_end_has_lost_nothing_with_the_peer() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + FIRST + chunk(encode_events([TurnEvent(2, FINAL)]) + b"\n"))

    async with odd_peer(say) as url, peers() as following:
        copy = make_turn()
        await mirror(copy, following.follow(url, TOKEN, user_id="a", session_id="s", exchange_id="e", after=0))
        assert copy.ended


@pytest.mark.parametrize("begun", [b"", STATUS, HEAD, HEAD + FIRST])
async def test_a_peer_that_falls_silent_is_lost(begun: bytes) -> None:
    over = asyncio.Event()

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(begun)
        await over.wait()

    async with odd_peer(say) as url, peers(heartbeat_s=0.02) as following:
        await lost(following.follow(url, TOKEN, user_id="ann", session_id="s", exchange_id="e", after=0))
        over.set()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[", "nonsense", ""])
async def test_an_address_where_nobody_is_is_a_lost_peer(url: str) -> None:
    async with peers() as following:
        failure = await lost(following.follow(url, TOKEN, user_id="ann", session_id="s", exchange_id="e", after=0))
        assert TOKEN not in str(failure)


@asynccontextmanager
async def peers(heartbeat_s: float = PATIENCE_S) -> AsyncIterator[Peers]:
    following = Peers(BASE, heartbeat_s=heartbeat_s)
    try:
        yield following
    finally:
        await following.aclose()


async def test_lines_are_found_however_they_come() -> None:
    text = b"\n\nab\n\nc\nd\n"

    async def parts(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    for size in range(1, len(text) + 1):
        assert [line async for line in lines_of(parts(size))] == [b"", b"", b"ab", b"", b"c", b"d"]


def test_what_is_taken_twice_or_after_the_end_is_there_once() -> None:
    turn = said(make_turn(), *SAID, FINAL)
    copy = make_turn()
    woken: list[int] = []
    copy.follow(lambda: woken.append(len(copy.events)))
    for event in turn.events:
        copy.take(event)
        copy.take(event)
        copy.take(TurnEvent(1, Accepted()))
    copy.take(TurnEvent(99, Accepted()))
    copy.take(TurnEvent(0, Failed(Code.INTERNAL, refused=True)))
    assert rendered(copy) == rendered(turn)
    assert woken == list(range(1, len(turn.events) + 1))
    assert copy.next_seq == turn.next_seq
