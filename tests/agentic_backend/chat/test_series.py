"""A stream of one turn behind the other, without a network: what it sends, when it waits, and how it ends."""

import asyncio
import json
import time

from starlette.requests import Request

from agentic_backend.chat.series import SeriesStream
from agentic_backend.chat.sse import NATIVE
from agentic_backend.errors import HistoryUnavailable
from agentic_backend.session.stream import Ask, Turn
from backend_kit.auth import Identity
from tests.agentic_backend.chat.test_sse import Reader
from tests.agentic_backend.chat.told_hub import RULES, accept, delta, finish, told_hub, until


class Turns:
    """The turns that a test puts in. Implements `Series`."""

    def __init__(self):
        self.due = []
        self.fails = False
        self.closed = 0
        self._notice = None

    def open(self, notice):
        self._notice = notice

    async def next(self):
        if self.fails:
            raise HistoryUnavailable
        return self.due.pop(0) if self.due else None

    def close(self):
        self.closed += 1

    def add(self, exchange_id, **more):
        turn = Turn(Ask("s", "Georges", "Hello", exchange_id, "ada", 1.0, **more))
        self.due.append(turn)
        self._notice()
        return turn


class SeriesReader(Reader):
    """Its client."""

    def __init__(self, it, turns, expires_at=None):
        self.turns = turns
        self.expires_at = expires_at
        super().__init__(it)

    def identity(self, user_id):
        return Identity(uid=user_id, username=user_id, expires_at=self.expires_at)

    async def _run(self, it, user_id):
        request = Request(self.scope, self._receive)
        said = it.hub.series_stream(
            request, self.identity(user_id), "s", self.turns, NATIVE, lambda error: error.code.value.encode()
        )
        assert isinstance(said, SeriesStream)
        await said(self.scope, self._receive, self._send)
        self.ended.set()

    @property
    def told(self):
        return [line[7:] for line in self.text.split("\n") if line.startswith("event: ")]


async def test_it_stays_open_for_the_turns_that_come():
    async with told_hub() as it:
        turns = Turns()
        reader = SeriesReader(it, turns)
        await until(lambda: reader.status == 200)  # at once: there is no turn that could be refused
        for number in range(2):
            turn = turns.add(f"e{number}")
            await until(lambda turn=turn: turn.followed)
            accept(turn)
            delta(turn, "a")
            finish(turn)
            await until(lambda number=number: reader.told.count("final") == number + 1)
            assert not turn.followed
        (stream,) = it.hub._streams
        assert stream.sessions == {"s"}
        assert len(it.delivered) == 2
        await it.hub.tick(stream.clock.last_sent + RULES.heartbeat_s)
        await until(lambda: ": heartbeat" in reader.text)
        reader.leave()
        await reader.ended.wait()
        assert (turns.closed, len(it.hub)) == (1, 0)


async def test_each_piece_of_a_text_is_an_event_of_its_own():
    async with told_hub() as it:
        turns = Turns()
        reader = SeriesReader(it, turns)
        await until(lambda: reader.status == 200)
        turn = Turn(Ask("s", "Georges", "Hello", "e1", "ada", 1.0))
        accept(turn)
        for text in "abc":
            delta(turn, text)
        finish(turn)
        turns.due.append(turn)
        turns._notice()
        await until(lambda: "final" in reader.told)
        assert reader.told.count("delta") == 3
        reader.leave()
        await reader.ended.wait()


async def test_who_may_come_no_more_hears_no_further_turn():
    async with told_hub() as it:
        turns = Turns()
        reader = SeriesReader(it, turns, expires_at=time.time() - 1)
        await until(lambda: reader.status == 200)
        turn = turns.add("e0")
        await until(lambda: turn.followed)
        accept(turn)
        await it.hub.tick(time.monotonic())
        finish(turn)
        await until(lambda: "final" in reader.told)  # the turn that it heard already is told to its end
        assert not reader.ended.is_set()
        await it.hub.tick(time.monotonic())
        await reader.ended.wait()
        assert len(it.hub) == 0


async def test_a_drain_ends_one_that_waits_and_lets_a_turn_end():
    async with told_hub() as it:
        waits, follows = Turns(), Turns()
        idle, busy = SeriesReader(it, waits), SeriesReader(it, follows)
        await until(lambda: idle.status == busy.status == 200)
        turn = follows.add("e1")
        await until(lambda: turn.followed)
        accept(turn)
        it.hub.begin_drain()
        await idle.ended.wait()
        assert not busy.ended.is_set()
        finish(turn)
        await busy.ended.wait()
        assert busy.told[-1] == "final"
        assert await it.hub.wait_empty(0) == 0


async def test_a_reader_that_takes_nothing_is_cut():
    async with told_hub() as it:
        turns = Turns()
        reader = SeriesReader(it, turns)
        await until(lambda: reader.status == 200)
        turn = turns.add("e1")
        await until(lambda: turn.followed)
        reader.takes.clear()
        accept(turn)
        await until(lambda: reader.sending == 1)
        (stream,) = it.hub._streams
        await it.hub.tick(stream.clock.since + RULES.send_s + 0.1)
        await reader.ended.wait()
        assert (reader.aborted, turn.followed, turns.closed) == (1, False, 1)


async def test_what_cannot_be_read_ends_it():
    async with told_hub() as it:
        turns = Turns()
        turns.fails = True
        reader = SeriesReader(it, turns)
        await reader.ended.wait()
        assert reader.text == "history_unavailable"


async def test_a_turn_that_nobody_else_follows_is_cancelled_by_its_policy():
    async with told_hub() as it:
        turns = Turns()
        reader = SeriesReader(it, turns)
        await until(lambda: reader.status == 200)
        turn = turns.add("e1", on_disconnect="cancel")
        await until(lambda: turn.followed)
        reader.leave()
        await reader.ended.wait()
        assert turn.cancel_requested


async def test_the_native_events_are_whole():
    async with told_hub() as it:
        turns = Turns()
        reader = SeriesReader(it, turns)
        await until(lambda: reader.status == 200)
        turn = turns.add("e1")
        accept(turn)
        await until(lambda: "accepted" in reader.told)
        (line,) = [line for line in reader.text.split("\n") if line.startswith("data: ")]
        assert json.loads(line[6:])["exchange_id"] == "e1"
        await asyncio.sleep(0)
        reader.leave()
        await reader.ended.wait()
