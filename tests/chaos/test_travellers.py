"""What a client of a fleet finds odd in what it hears of an exchange, and what it does not."""

import asyncio
import random
from typing import Any

import pytest

from tests.chaos.ledger import Asked, Ledger
from tests.chaos.load import Address
from tests.chaos.travellers import Journey, Travellers


def event(seq: int, kind: str, text: str = "") -> dict[str, Any]:
    if kind == "final":
        return {"type": kind, "seq": seq, "messages": [{"parts": [{"type": "text", "text": text}]}]}
    return {"type": kind, "seq": seq, **({"text": text} if text else {})}


def taken(*connections: list[dict[str, Any]]) -> Journey:
    """An ask whose client has heard these events, over so many connections; the time is the event's number."""
    journey = Journey(Asked("e1", "s", "Question?"), place=0)
    for events in connections:
        journey.connected = False
        for one in events:
            journey.take(one, float(one["seq"]))
    return journey


ACCEPTED = event(1, "accepted")
HALF = [ACCEPTED, event(2, "delta", "On"), event(3, "delta", "e")]
WHOLE = [*HALF, event(4, "final", "One")]


@pytest.mark.parametrize(
    "journey",
    [
        taken(WHOLE),
        taken(HALF, [event(4, "delta", "."), event(5, "final", "One.")]),
        taken(HALF, WHOLE),  # told again, from history say
        taken(
            HALF, [event(8, "restarted"), event(9, "accepted"), event(10, "delta", "Two"), event(11, "final", "Two")]
        ),
        taken([*HALF, event(8, "restarted"), event(9, "delta", "Two"), event(10, "final", "Two")]),
    ],
    ids=["whole", "resumed", "told again", "run again", "run again before the client's eyes"],
)
def test_what_an_orderly_service_says_is_not_odd(journey: Journey) -> None:
    assert (journey.end, journey.ends, journey.disorder, journey.differs) == ("final", 1, 0, False)


def test_a_silence_lasts_from_one_event_to_the_next_whatever_the_client_did_meanwhile() -> None:
    travellers = Travellers([Address(1)], Ledger(), random.Random(1), pause_s=0.0)  # noqa: S311 - no secret
    journey = taken(HALF, [event(9, "delta", "."), event(29, "final", "One.")])
    travellers.journeys.append(journey)
    assert journey.silences == [(9.0, 6.0), (29.0, 20.0)]
    assert travellers.longest_silence_s(0.0, 28.0) == 6.0
    assert travellers.longest_silence_s(9.0, 29.0) == 20.0
    assert travellers.longest_silence_s(29.0, 99.0) == 0.0


@pytest.mark.parametrize(
    ("journey", "ends", "disorder", "differs"),
    [
        (taken([*WHOLE, event(5, "final", "One")]), 2, 0, False),
        (taken(HALF), 0, 0, False),
        (taken([*HALF, *WHOLE]), 1, 1, False),  # in the middle of a connection
        (taken([*HALF, event(4, "final", "Two")]), 1, 0, True),
        (taken(HALF, [event(9, "delta", "Two"), event(10, "final", "Two")]), 1, 0, True),  # it did not say `restarted`
    ],
    ids=["two ends", "no end", "numbers fall back", "another answer", "silently run again"],
)
def test_what_is_odd_is_found(journey: Journey, ends: int, disorder: int, differs: bool) -> None:
    assert (journey.ends, journey.disorder, journey.differs) == (ends, disorder, differs)


async def test_a_question_is_waited_for_that_an_instance_accepts_from_now_on() -> None:
    travellers = Travellers([Address(1), Address(2)], Ledger(), random.Random(1), pause_s=0.0)  # noqa: S311 - no secret
    asked = [
        Journey(Asked(f"e{number}", "s", "Question?"), place=place) for number, place in enumerate((1, None, None))
    ]
    travellers.journeys += asked
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(travellers.asked_at(1))
        for journey, place in ((asked[1], 0), (asked[2], 1)):
            await asyncio.sleep(0.1)
            assert not waiting.done()
            journey.place = place


def test_a_takeover_lasts_from_the_kill_to_the_first_word_of_the_new_run() -> None:
    again = [event(30, "restarted"), event(31, "delta", "x"), event(40, "restarted"), event(41, "final", "")]
    journey, unharmed = taken(HALF, again), taken(HALF, again)
    journey.struck_at = 20.0
    assert journey.takeover_s == 10.0
    assert unharmed.takeover_s is None  # nobody killed its instance
    assert Journey(journey.asked, struck_at=20.0).takeover_s is None


async def test_the_findings_count_accepted_asks_by_their_end() -> None:
    crowd = Travellers([Address(1), Address(2)], Ledger(), random.Random(0), pause_s=0.0)  # noqa: S311 - names
    refused = Journey(Asked("e2", "s", "Question?"), end="session_busy")
    cancelled = taken([*HALF, event(4, "cancelled")])
    crowd.journeys += [taken(WHOLE), taken(HALF), cancelled, refused]
    found = crowd.findings()
    assert (found.asks, found.accepted, found.finals, found.one_end, found.odd) == (4, 3, 1, 2, 0)
    assert found.ends == {"no end": 1, "cancelled": 1}
