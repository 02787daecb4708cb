"""Answers in parts: how many are in memory, and who is cut off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.errors import HistoryUnavailable, Overloaded
from agentic_backend.rest.answers import UNREAD, AnswerPart, Answers, PagedAnswer
from backend_kit.aio import FairGate, GateRules
from backend_kit.kpi import Kpi
from tests.support.patience import PATIENCE_S

Send = Callable[[Any], Awaitable[None]]


class Wire:
    """What a client gets, and whether its connection was dropped. `on_gone` is called back by the test."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.aborted = False
        self.gone: Callable[[], None] | None = None

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def state(self) -> dict[str, Any]:
        def abort() -> None:
            self.aborted = True

        def on_gone(callback: Callable[[], None] | None) -> None:
            self.gone = callback

        return {"abort": abort, "on_gone": on_gone}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def limits() -> list[str]:
    return []


def answers(limits: list[str], *, send_s: float = PATIENCE_S, **rules: int) -> Answers:
    kpi = Kpi(CollectorRegistry(), service="agentic")
    return Answers(kpi, send_s, limits.append, FairGate(GateRules(**{"places": 4, **rules})))


async def several(*bodies: bytes, failure: Exception | None = None) -> AsyncIterator[AnswerPart]:
    for body in bodies:
        yield AnswerPart(body)
    if failure is not None:
        raise failure


async def answer(wire: Wire, shared: Answers, parts: AsyncIterator[AnswerPart], send: Send | None = None) -> None:
    made = PagedAnswer(shared, "ada", parts, media_type="application/json", headers={"X-More": "1"})
    await made({"type": "http", "state": wire.state()}, _nothing, send or wire.send)


async def _nothing() -> Any:
    raise AssertionError("nothing is read")


async def test_one_part_is_an_ordinary_answer_with_its_length(wire: Wire, limits: list[str]) -> None:
    async def one() -> AsyncIterator[AnswerPart]:
        yield AnswerPart(b"[]", last=True)

    await answer(wire, answers(limits), one())
    head, body = wire.sent
    assert (b"content-length", b"2") in head["headers"]
    assert (b"x-more", b"1") in head["headers"]
    assert body == {"type": "http.response.body", "body": b"[]", "more_body": False}


async def test_several_parts_are_a_stream_in_small_pieces(wire: Wire, limits: list[str]) -> None:
    bodies = [b"a" * 200_000, b"b" * 10, b"c" * 65_536]
    await answer(wire, answers(limits), several(*bodies))
    assert not [name for name, _ in wire.sent[0]["headers"] if name == b"content-length"]
    assert wire.body == b"".join(bodies)
    assert max(len(message["body"]) for message in wire.sent[1:]) <= 64 * 1024
    assert [message["more_body"] for message in wire.sent[1:]].count(False) == 1
    assert not wire.sent[-1]["more_body"]


async def test_an_answer_of_several_parts_is_timed_once(wire: Wire, limits: list[str]) -> None:
    shared = answers(limits)
    await answer(wire, shared, several(b"a", b"b", b"c"))
    with pytest.raises(HistoryUnavailable):
        await answer(Wire(), shared, several(failure=HistoryUnavailable("gone")))
    await answer(Wire(), shared, several(b"a", failure=HistoryUnavailable("gone")))
    key = "app.phase_latency_ms|phase=history_get"
    counts = {name: stats.count for name, timer in shared.kpi.timers.items() if (stats := timer.rollup.take())}
    assert counts == {key: 1, f"{key}|status=error": 2}


async def test_parts_in_memory_are_bounded_however_many_ask_and_however_slowly_they_read(limits: list[str]) -> None:
    shared = answers(limits, places=8, per_user=3)
    go_on = asyncio.Event()
    made = taken = most = 0

    async def counted() -> AsyncIterator[AnswerPart]:
        nonlocal made, most
        for _ in range(4):
            made += 1
            most = max(most, made - taken)
            yield AnswerPart(b"x")

    async def slow(message: Any) -> None:
        nonlocal taken
        await go_on.wait()
        await asyncio.sleep(0)
        taken += message["type"] == "http.response.body"

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(answer(Wire(), shared, counted(), slow))
        while made < 3:  # noqa: ASYNC110 - some turns of the loop
            await asyncio.sleep(0)
        go_on.set()
    assert (made, most) == (80, 3)
    assert shared.gate.running == 0


async def test_a_client_that_does_not_read_is_cut_off_and_counted(wire: Wire, limits: list[str]) -> None:
    shared = answers(limits, send_s=0.01)

    async def blocked(message: Any) -> None:
        await wire.send(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await answer(wire, shared, several(b"a", b"b"), blocked)
    assert (wire.aborted, limits, len(wire.sent)) == (True, [UNREAD], 2)
    assert shared.gate.running == 0


async def test_nothing_more_is_read_for_a_client_that_has_gone(wire: Wire, limits: list[str]) -> None:
    made = 0

    async def endless() -> AsyncIterator[AnswerPart]:
        nonlocal made
        while True:
            made += 1
            if made == 3:
                assert wire.gone is not None
                wire.gone()
            yield AnswerPart(b"a")

    await answer(wire, answers(limits), endless())
    assert (made, wire.body, wire.gone) == (3, b"aa", None)


async def test_what_fails_before_the_first_part_is_an_error_and_later_a_dropped_connection(
    wire: Wire, limits: list[str]
) -> None:
    shared = answers(limits)
    with pytest.raises(HistoryUnavailable):
        await answer(wire, shared, several(failure=HistoryUnavailable("away")))
    assert (wire.sent, wire.aborted) == ([], False)
    await answer(wire, shared, several(b"[", failure=HistoryUnavailable("away")))
    assert (wire.body, wire.aborted, limits) == (b"[", True, [])


async def test_too_many_that_wait_are_overloaded(wire: Wire, limits: list[str]) -> None:
    shared = answers(limits, places=1, waiting_per_user=0)
    async with shared.gate.place("bob"):
        with pytest.raises(Overloaded):
            await answer(wire, shared, several(b"a"))
    assert wire.sent == []
    assert shared.kpi.timers == {}, "what was never begun took no time"
