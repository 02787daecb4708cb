"""Texts of an answer wait for each other on a full loop, and only there."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest

from agentic_backend.llm import Endpoint, ModelPool
from agentic_backend.llm.chunks import Ending
from agentic_backend.llm.coalescing import Coalescer, interval_at, thread_busy_s
from agentic_backend.llm.prompt import Prompt
from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, Write, finish, scripted, token
from tests.support.clock import Clock

QUESTION = Prompt("Answer.", [], "What?")


class Loop:
    """A loop that is as busy as the test says, and its coalescer."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.busy_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.coalescer = Coalescer(busy_s=lambda: self.busy_s, clock=self.clock, later=self.later)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.clock.now + seconds, call))

    def fire(self) -> None:
        """Let the time of the only timer come."""
        ((self.clock.now, call),) = self.timers
        self.timers.clear()
        call()

    def run(self, seconds: float, share: float) -> list[float]:
        """What a stream waited that reads every 50 ms beside this load."""
        waited = []
        end = self.clock.now + seconds
        while self.clock.now < end:
            before = self.clock.now
            went_on: list[bool] = []
            if self.coalescer.hold(lambda: went_on.append(True)):  # noqa: B023 # called before the next
                self.fire()
                assert went_on
                waited.append(self.clock.now - before)
            self.clock.now += 0.05
            self.busy_s += share * (self.clock.now - before)
        return waited


@pytest.mark.parametrize(
    ("share", "interval_s"),
    [
        (0.0, 0.0),
        (0.5, 0.0),
        (0.65, 0.01),
        (0.8, 0.02),
        (0.875, 0.035),
        (0.95, 0.05),
        (0.97, 0.07),
        (1.0, 0.1),
        (1.3, 0.1),
    ],
)
def test_the_interval_rises_with_the_load(share: float, interval_s: float) -> None:
    assert interval_at(share) == pytest.approx(interval_s)


def test_a_loop_with_time_holds_back_nothing() -> None:
    assert Loop().run(3.0, 0.45) == []


def test_a_full_loop_is_followed_within_seconds() -> None:
    loop = Loop()
    waited = loop.run(3.0, 0.95)
    assert waited
    assert waited == sorted(waited)
    assert waited[-1] == pytest.approx(0.05, abs=0.001)


def test_the_first_read_after_a_rest_waits_for_nothing() -> None:
    loop = Loop()
    loop.run(3.0, 0.97)
    loop.clock.now += 2.0
    assert loop.run(0.04, 0.0) == []
    assert loop.run(3.0, 0.3) == []


def full_loop() -> Loop:
    loop = Loop()
    loop.coalescer.interval_s = 0.05
    return loop


def test_streams_whose_time_is_nearly_up_go_on_together_in_their_order() -> None:
    loop = full_loop()
    went_on: list[int] = []
    for number in range(8):
        loop.coalescer.hold(partial(went_on.append, number))
        loop.clock.now += 0.002
    loop.fire()
    assert went_on == [0, 1, 2]
    loop.fire()
    assert went_on == [0, 1, 2, 3, 4, 5]
    loop.fire()
    assert (went_on, loop.timers) == (list(range(8)), [])


def test_of_a_crowd_whose_time_is_up_only_some_go_on_before_the_loop_turns() -> None:
    loop = full_loop()
    went_on: list[int] = []
    for number in range(300):
        loop.coalescer.hold(partial(went_on.append, number))
    loop.fire()
    at_once = len(went_on)
    assert 16 <= at_once < 100
    while loop.timers:
        loop.fire()
    assert went_on == list(range(300))


def test_a_stream_that_is_held_again_at_once_waits_again() -> None:
    loop = full_loop()
    went_on: list[float] = []

    def again() -> None:
        went_on.append(loop.clock.now)
        if len(went_on) < 3:
            loop.coalescer.hold(again)

    loop.coalescer.hold(again)
    while loop.timers:
        loop.fire()
    assert went_on == pytest.approx([went_on[0] + 0.05 * turn for turn in range(3)])


def test_a_call_that_fails_keeps_no_other_from_going_on() -> None:
    loop = full_loop()
    went_on: list[bool] = []
    loop.coalescer.hold(deque[int]().pop)  # type: ignore[arg-type]
    loop.coalescer.hold(lambda: went_on.append(True))
    with pytest.raises(IndexError):
        loop.fire()
    loop.fire()
    assert went_on == [True]


async def test_the_pool_says_how_long_texts_gather_also_while_no_stream_asks() -> None:
    loop = Loop()
    pool = ModelPool(coalescer=loop.coalescer)
    assert pool.hold_s == 0.0
    waited = loop.run(3.0, 0.95)
    assert pool.hold_s == pytest.approx(waited[-1], abs=1e-3)
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
    """Holds streams until the test lets them go."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.opened = False
        self.clock = Clock()
        self.call: Callable[[], None] | None = None

    def later(self, _seconds: float, call: Callable[[], None]) -> None:
        self.call = call
        self.held.set()
        if self.opened:
            asyncio.get_running_loop().call_soon(self.open)

    def open(self) -> None:
        self.opened = True
        self.clock.now += 0.05
        call, self.call = self.call, None
        if call is not None:
            call()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def full(gate: Gate) -> Coalescer:
    """That of a full loop, whose time is the gate's."""
    full = Coalescer(clock=gate.clock, later=gate.later)
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
        await model.gone.wait()
        gate.open()
        await pool.aclose()
