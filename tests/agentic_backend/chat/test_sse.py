"""Event streams without a network: what a reader that is slow, leaves, or comes too late makes of one."""

import asyncio
import json
from dataclasses import replace

import pytest
from starlette.requests import Request

from agentic_backend.chat import frames, sse
from agentic_backend.chat.dialects import begin_turn
from agentic_backend.errors import BadRequest, MessageTooLong, UnknownType
from agentic_backend.session.stream import RUN_SEQS, Failed, Restarted
from backend_kit.auth import Identity
from backend_kit.wire import Code
from tests.agentic_backend.chat.told_hub import RULES, accept, delta, finish, told_hub, until
from tests.support.patience import PATIENCE_S

ASK = {"type": "ask", "session_id": "s", "agent_id": "Georges", "message": "Hello", "client_exchange_id": "e1"}


class Reader:
    """The client of one stream. It takes what is sent unless told not to, and can leave at any moment."""

    def __init__(self, it, body=ASK, user_id="admin", **headers):
        self.takes = asyncio.Event()
        self.takes.set()
        self.status = None
        self.text = ""
        self.aborted = 0
        self.sending = 0
        self.at_once = 0
        self.ended = asyncio.Event()
        self._left = asyncio.Event()
        self._when_gone = None
        self._body = json.dumps(body).encode()
        self._given = False
        self.scope = {
            "type": "http",
            "method": "POST",
            "headers": [(b"host", b"127.0.0.1"), *((name.encode(), value.encode()) for name, value in headers.items())],
            "query_string": b"",
            "client": ("127.0.0.1", 1),
            "state": {"abort": self.abort, "on_gone": self.on_gone, "request_id": "r1", "credentials": None},
        }
        self.task = it._group.create_task(self._run(it, user_id))

    async def _run(self, it, user_id):
        request = Request(self.scope, self._receive)
        response = await it.hub.stream(request, Identity(uid=user_id, username=user_id), it.turns)
        await response(self.scope, self._receive, self._send)
        self.ended.set()

    def send_now(self, body):
        """What our server gives: it takes a piece at once, unless its client is behind."""
        if not self.takes.is_set():
            return False
        self.at_once += 1
        self.text += body.decode()
        return True

    def on_gone(self, callback):
        self._when_gone = callback
        if callback is not None and self._left.is_set():
            callback()

    def leave(self):
        self._left.set()
        self.takes.set()
        if self._when_gone is not None:
            self._when_gone()

    def abort(self):
        self.aborted += 1
        self.leave()

    @property
    def events(self):
        return [block.partition("\n")[0] for block in self.text.split("\n\n") if block]

    async def _receive(self):
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sending += 1
        await self.takes.wait()
        self.sending -= 1
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.text += message.get("body", b"").decode()


async def test_a_reader_that_takes_nothing_is_cut_at_the_send_deadline_and_its_turn_goes_on():
    async with told_hub() as it:
        reader = Reader(it)
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        reader.takes.clear()
        delta(turn, "é" * 30_000)
        await until(lambda: reader.sending == 1)
        (stream,) = it.hub._streams
        assert 60_000 < stream.outbox_bytes < 60_500  # in hand
        delta(turn, "x" * 7000)
        assert 67_000 < stream.outbox_bytes < 68_000
        await it.hub.tick(stream.clock.since + RULES.send_s - 0.1)
        assert reader.aborted == 0
        await it.hub.tick(stream.clock.since + RULES.send_s + 0.1)
        assert reader.aborted == 1
        await reader.ended.wait()
        assert len(it.hub) == 0
        assert not turn.cancel_requested
        assert not turn.followed
        finish(turn)
        assert it.delivered == []


@pytest.mark.parametrize("policy", ["continue", "cancel"])
async def test_a_reader_that_leaves_before_the_first_event_is_followed_by_its_policy(policy):
    async with told_hub() as it:
        reader = Reader(it, ASK | {"on_disconnect": policy})
        turn = await it.turns.asked("e1")
        await until(lambda: turn.followed)
        reader.leave()
        await reader.ended.wait()
        assert turn.cancel_requested is (policy == "cancel")
        assert reader.status is None


async def test_pieces_are_said_at_once_and_in_their_order_to_a_reader_that_falls_behind_too():
    async with told_hub() as it:
        reader = Reader(it)
        reader.scope["state"]["send_now"] = reader.send_now
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        delta(turn, "one")
        await until(lambda: len(reader.events) == 2)
        reader.takes.clear()
        delta(turn, "two")
        await until(lambda: reader.sending == 1)
        delta(turn, "three")
        delta(turn, "four")
        await asyncio.sleep(0)
        reader.takes.set()
        await until(lambda: "four" in reader.text)
        said_at_once = reader.at_once
        delta(turn, "five")
        await until(lambda: reader.at_once > said_at_once)
        finish(turn)
        async with asyncio.timeout(PATIENCE_S):
            await reader.ended.wait()
        said = [json.loads(line[6:]) for line in reader.text.split("\n") if line.startswith("data: ")]
        assert "".join(event["text"] for event in said if event["type"] == "delta") == "onetwothreefourfive"
        assert reader.events[-1] == "id: 7"


class Failing(sse.NativeWriter):
    """A writer that has a fault."""

    def write(self, turn, event):
        if event.seq > 1:
            raise LookupError("canary")
        return super().write(turn, event)


class Quiet(sse.NativeWriter):
    """A writer that says one event alone, as those of other protocols leave out what these have no word for."""

    def write(self, turn, event):
        return super().write(turn, event) if event.seq == 1 else b""


class WrittenReader(Reader):
    """The client of a stream that another writer writes."""

    def __init__(self, it, writer):
        self._writer = writer
        super().__init__(it)
        self.scope["state"]["send_now"] = self.send_now

    async def _run(self, it, user_id):
        asker = frames.Asker(user_id, None, None)

        def begin():
            return begin_turn(it.turns, sse.read_body(self._body, 1000), asker, "r1")

        response = it.hub.event_stream(Request(self.scope, self._receive), user_id, begin, self._writer)
        await response(self.scope, self._receive, self._send)
        self.ended.set()


async def test_a_writer_that_fails_ends_its_stream_and_is_logged():
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    async with told_hub() as it:
        reader = WrittenReader(it, Failing())
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        delta(turn, "one")
        async with asyncio.timeout(PATIENCE_S):
            await reader.ended.wait()
        assert reader.events == ["id: 1"]
        assert not turn.followed
        finish(turn)
    assert [type(failure) for failure in failures] == [LookupError]


class Brief(sse.NativeWriter):
    """A writer that ends its stream before the turn."""

    def __init__(self):
        self.over = False

    def write(self, turn, event):
        self.over = isinstance(event.payload, Restarted)
        return super().write(turn, event)


@pytest.mark.parametrize("takes", [True, False])
async def test_a_writer_may_end_its_stream_while_the_turn_goes_on(takes):
    async with told_hub() as it:
        reader = WrittenReader(it, Brief())
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        if not takes:
            reader.takes.clear()
        delta(turn, "one")
        turn.begin_again(1)
        accept(turn)
        reader.takes.set()
        async with asyncio.timeout(PATIENCE_S):
            await reader.ended.wait()
        assert reader.events == ["id: 1", "id: 2", f"id: {RUN_SEQS + 1}"]
        assert not turn.followed
        assert not turn.ended
        finish(turn)


async def test_a_stream_whose_writer_has_ended_it_is_behind_by_no_more_than_it_has_in_hand():
    async with told_hub() as it:
        reader = WrittenReader(it, Brief())
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        reader.takes.clear()
        turn.begin_again(1)
        await until(lambda: reader.sending == 1)
        (stream,) = it.hub._streams
        delta(turn, "x" * 60_000)
        assert 50 < stream.outbox_bytes < 200
        reader.takes.set()
        await reader.ended.wait()
        assert stream.outbox_bytes == 0
        finish(turn)


async def test_what_could_not_be_sent_at_once_is_counted_until_it_is():
    async with told_hub() as it:
        reader = Reader(it)
        reader.scope["state"]["send_now"] = reader.send_now
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        (stream,) = it.hub._streams
        reader.takes.clear()
        delta(turn, "é" * 30_000)
        counted = []
        await until(lambda: counted.append(stream.outbox_bytes) or reader.sending == 1)
        assert 60_000 < min(counted) <= max(counted) < 60_500
        finish(turn)
        reader.takes.set()
        await reader.ended.wait()
        assert stream.outbox_bytes == 0


async def test_what_is_left_out_breaks_no_silence():
    async with told_hub() as it:
        reader = WrittenReader(it, Quiet())
        turn = await it.turns.asked("e1")
        accept(turn)
        await until(lambda: reader.events == ["id: 1"])
        (stream,) = it.hub._streams
        last_sent = stream.clock.last_sent
        delta(turn, "nothing that is told")
        await until(lambda: stream.outbox_bytes == 0)
        assert stream.clock.last_sent == last_sent
        await it.hub.tick(last_sent + RULES.heartbeat_s)
        await until(lambda: sse.HEARTBEAT.decode() in reader.text)
        finish(turn)
        await reader.ended.wait()


async def test_one_of_two_readers_that_leaves_cancels_nothing():
    async with told_hub() as it:
        one = Reader(it, ASK | {"on_disconnect": "cancel"})
        turn = await it.turns.asked("e1")
        it.turns.same = turn
        other = Reader(it, ASK | {"on_disconnect": "cancel"})
        await until(lambda: len(turn._followers) == 2)
        one.leave()
        await one.ended.wait()
        assert not turn.cancel_requested
        accept(turn)
        finish(turn)
        await other.ended.wait()
        assert other.events == ["id: 1", "id: 2"]
        assert len(it.delivered) == 1


async def test_a_refusal_after_a_long_silence_is_an_event_without_a_number():
    async with told_hub() as it:
        reader = Reader(it)
        turn = await it.turns.asked("e1")
        await until(lambda: turn.followed)
        (stream,) = it.hub._streams
        await it.hub.tick(stream.clock.last_sent + RULES.heartbeat_s)
        await until(lambda: reader.text == ": heartbeat\n\n")
        assert reader.status == 200
        turn.publish(Failed(Code.OVERLOADED, refused=True))
        await reader.ended.wait()
        assert reader.events[1] == "event: error"
        assert "id:" not in reader.text


async def test_a_refusal_is_an_answer_in_the_language_of_the_request():
    async with told_hub() as it:
        it.turns.refusal = Code.SESSION_BUSY
        reader = Reader(it, **{"accept-language": "fr"})
        await reader.ended.wait()
        assert reader.status == 409
        assert json.loads(reader.text)["detail"]["code"] == "session_busy"


async def test_streams_count_where_sockets_do():
    async with told_hub(replace(RULES, sockets_per_user=2, sockets_per_address=3, max_sockets=4)) as it:
        peer = await it.opened()
        reader = Reader(it)
        await it.turns.asked("e1")
        await until(lambda: len(it.hub) == 2)
        late = Reader(it, ASK | {"client_exchange_id": "e2"})
        await late.ended.wait()
        assert late.status == 429
        newer = await it.opened()  # of the same user: the oldest socket makes room, the stream stays
        assert await peer.close_code() == 4409
        assert reader.status is None
        await it.hub.tick(0.0)
        assert it.registry.get_sample_value("app_sse_streams") == 1
        it.hub.begin_drain()
        refused = Reader(it, ASK | {"client_exchange_id": "e3"}, user_id="bob")
        await refused.ended.wait()
        assert refused.status == 503
        assert await newer.close_code() == 1012
        await until(lambda: len(it.hub) == 1)  # its task is gone too
        assert await it.hub.wait_empty(0.01) == 1
        await reader.ended.wait()
        assert reader.aborted == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"\xff", BadRequest), (b"{}", BadRequest), (b'{"type":"ping"}', UnknownType), (b'{"type":"x"}', UnknownType)],
)
def test_a_body_is_an_ask_or_a_resume(body, error):
    with pytest.raises(error):
        sse.read_body(body, 10)


def test_a_body_is_held_to_the_length_of_a_message():
    with pytest.raises(MessageTooLong):
        sse.read_body(json.dumps(ASK).encode(), 4)
    assert sse.read_body(json.dumps(ASK).encode(), 5).message == "Hello"


def test_the_number_of_the_last_event():
    assert [sse.read_last_event_id(value) for value in (None, "", "0", "17")] == [None, None, 0, 17]
    for value in ("x", "-1", "1.0", "²", "1" * 11):
        with pytest.raises(BadRequest):
            sse.read_last_event_id(value)
