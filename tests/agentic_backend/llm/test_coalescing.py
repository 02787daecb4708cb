"""Texts of an answer wait for each other on a full loop, and only there."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentic_backend.llm import Endpoint, ModelPool
from agentic_backend.llm.chunks import Ending
from agentic_backend.llm.coalescing import Coalescer, interval_at, thread_busy_s
from agentic_backend.llm.prompt import Prompt
from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, Write, finish, scripted, token
from tests.support.clock import Clock

QUESTION = Prompt("Answer.", [], "What?")


class Call:
    """One to come."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop that is as busy as the test says, and its coalescer."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.busy_s = 0.0
        self.held: list[float] = []
        self.coalescer = Coalescer(busy_s=lambda: self.busy_s, clock=self.clock, later=self.later)

    def later(self, seconds: float, _call: Callable[[], Any]) -> Call:
        self.held.append(seconds)
        self.clock.now += seconds
        return Call()

    def run(self, seconds: float, share: float) -> list[float]:
        """What a stream waited that reads every 50 ms beside this load."""
        self.held.clear()
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.coalescer.hold(lambda: None)
            self.clock.now += 0.05
            self.busy_s += share * (0.05 + (self.held[-1] if self.held else 0.0))
        return self.held.copy()


@pytest.mark.parametrize(
    ("share", "interval_s"),
    [(0.0, 0.0), (0.5, 0.0), (0.65, 0.01), (0.8, 0.02), (0.875, 0.035), (0.95, 0.05), (1.0, 0.05), (1.3, 0.05)],
)
def test_the_interval_rises_with_the_load(share: float, interval_s: float) -> None:
    assert interval_at(share) == pytest.approx(interval_s)


def test_a_loop_with_time_holds_back_nothing() -> None:
    assert Loop().run(3.0, 0.45) == []


def test_a_full_loop_is_followed_within_seconds() -> None:
    loop = Loop()
    waited = loop.run(3.0, 0.97)
    assert waited
    assert waited == sorted(waited)
    assert waited[-1] == pytest.approx(0.05, abs=0.001)


def test_the_first_read_after_a_rest_waits_for_nothing() -> None:
    loop = Loop()
    loop.run(3.0, 0.97)
    loop.clock.now += 2.0
    assert loop.run(0.04, 0.0) == []
    assert loop.run(3.0, 0.3) == []


async def test_the_pool_says_how_long_texts_gather_also_while_no_stream_asks() -> None:
    loop = Loop()
    pool = ModelPool(coalescer=loop.coalescer)
    assert pool.hold_s == 0.0
    waited = loop.run(3.0, 0.97)
    assert pool.hold_s == waited[-1]
    loop.clock.now += 1.0
    assert pool.hold_s == 0.0
    loop.clock.now += 1.0
    loop.busy_s += 0.95
    assert pool.hold_s == pytest.approx(0.025)
    await pool.aclose()


def test_a_thread_that_computes_is_busy() -> None:
    before = thread_busy_s()
    while thread_busy_s() <= before:
        sum(range(10_000))


class Gate:
    """Holds each stream until the test lets it go."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.opened = False
        self.calls: list[tuple[Callable[[], Any], Call]] = []

    def later(self, _seconds: float, call: Callable[[], Any]) -> Call:
        handle = Call()
        self.calls.append((call, handle))
        self.held.set()
        if self.opened:
            asyncio.get_running_loop().call_soon(self.open)
        return handle

    def open(self) -> None:
        self.opened = True
        calls, self.calls = self.calls, []
        for call, handle in calls:
            if not handle.cancelled:
                call()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def full(gate: Gate) -> Coalescer:
    """That of a full loop, whose time is the gate's."""
    full = Coalescer(clock=Clock(), later=gate.later)
    full.interval_s = 0.05
    return full


@pytest.mark.servers
async def test_texts_that_come_meanwhile_are_one_and_the_first_does_not_wait(gate: Gate, full: Coalescer) -> None:
    async def answer(write: Write) -> None:
        await write(SSE_HEAD + token("One"))
        await gate.held.wait()
        for text in (" two", " three", " four"):
            await write(token(text))
            await asyncio.sleep(0)
        await write(finish() + DONE)
        gate.open()

    texts: list[str] = []
    async with scripted(answer) as model:
        pool = ModelPool(coalescer=full)
        chat = pool.chat_model(Endpoint(model.base_url, "m"))
        ends = [piece async for piece in chat.astream_text(QUESTION, texts.append)]
        await pool.aclose()
    assert texts[0] == "One"
    assert "".join(texts) == "One two three four"
    assert len(texts) < 4
    assert [type(end) for end in ends] == [Ending]


@pytest.mark.servers
async def test_a_stream_that_is_held_can_be_cancelled(gate: Gate, full: Coalescer) -> None:
    async def answer(write: Write) -> None:
        await write(SSE_HEAD + token("One"))
        await asyncio.Event().wait()

    async with scripted(answer) as model:
        pool = ModelPool(coalescer=full)

        async def read() -> None:
            async for _ in pool.chat_model(Endpoint(model.base_url, "m")).astream_text(QUESTION, lambda _text: None):
                pass

        reading = asyncio.ensure_future(read())
        await gate.held.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [handle.cancelled for _, handle in gate.calls] == [True]
        await model.gone.wait()
        await pool.aclose()
