"""One reader of a turn for a door: what it is told, in which order, and what its leaving does."""

import asyncio
import math

import pytest

from agentic_backend.session.stream import Accepted, Ask, Failed, HumanAnswer, TextDelta, Turn, TurnEvent
from agentic_backend.surfaces.follow import Following
from backend_kit.wire import Code
from tests.agentic_backend.session.gated_turns import ticks
from tests.support.patience import PATIENCE_S


def turn_of(**more) -> Turn:
    return Turn(Ask("s1", "Georges", "Hello", "e1", "ann", 0.0, **more))


def delta(turn: Turn, text: str) -> None:
    turn.publish(TextDelta(1, "final", text))


def end(turn: Turn) -> None:
    turn.publish(Failed(Code.INTERNAL, refused=False))


async def taken(following: Following) -> TurnEvent:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(following)


async def test_it_is_told_each_event_as_it_comes_to_the_last():
    turn = turn_of()
    with Following(turn) as following:
        waits = asyncio.ensure_future(taken(following))
        await asyncio.sleep(0)
        turn.publish(Accepted())
        assert (await waits).seq == 1
        delta(turn, "a")
        assert (await taken(following)).payload.text == "a"
        # Whoever is behind gets what has piled up as one, with the number of the last.
        delta(turn, "b")
        delta(turn, "c")
        end(turn)
        joined = await taken(following)
        assert (joined.seq, joined.payload.text) == (4, "bc")
        assert [event.terminal async for event in following] == [True]
    assert not turn.followed


async def test_it_begins_behind_a_number():
    turn = turn_of()
    turn.publish(Accepted())
    for text in "abc":
        delta(turn, text)
    with Following(turn, after=3) as following:
        assert (await taken(following)).payload.text == "c"
    with Following(turn) as following:
        assert isinstance((await taken(following)).payload, Accepted)


async def test_an_answer_to_a_question_is_followed_from_where_the_run_goes_on():
    before = turn_of()
    before.publish(Accepted())
    end(before)
    turn = Turn(Ask("s1", "Georges", "", "e1", "ann", 0.0, human=HumanAnswer("yes")), before)
    turn.publish(Accepted())
    with Following(turn) as following:
        assert (await taken(following)).seq == 3


async def test_one_with_a_pace_is_woken_again_after_it():
    turn = turn_of()
    with Following(turn, pace_s=0.05) as following:
        for text in "abc":
            waits = asyncio.ensure_future(taken(following))
            await asyncio.sleep(0)
            delta(turn, text)
            assert (await waits).payload.text == text


@pytest.mark.parametrize(("pace_s", "at_once"), [(3600.0, 1), (math.inf, 0)])
async def test_what_comes_within_its_pace_waits_for_the_end(pace_s, at_once):
    turn = turn_of()
    with Following(turn, pace_s=pace_s) as following:
        waits = asyncio.ensure_future(taken(following))
        for text in "abc"[:at_once]:
            await asyncio.sleep(0)
            delta(turn, text)
            assert (await waits).payload.text == text
            waits = asyncio.ensure_future(taken(following))
        for text in "abc"[at_once:]:
            await ticks()
            delta(turn, text)
        await ticks()
        assert not waits.done()
        end(turn)
        assert (await waits).payload.text == "abc"[at_once:]
        assert [event.terminal async for event in following] == [True]


@pytest.mark.parametrize(("policy", "stopped"), [("cancel", True), ("continue", False)])
async def test_who_leaves_stops_a_turn_that_wants_it_if_nobody_else_follows(policy, stopped):
    turn = turn_of(on_disconnect=policy)
    with Following(turn):
        with Following(turn):
            pass
        assert not turn.cancel_requested
    assert turn.cancel_requested is stopped


async def test_who_leaves_after_the_end_stops_nothing():
    turn = turn_of(on_disconnect="cancel")
    with Following(turn) as following:
        end(turn)
        assert (await taken(following)).terminal
    assert not turn.cancel_requested
