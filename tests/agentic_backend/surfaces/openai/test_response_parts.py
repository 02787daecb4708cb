"""Where a response is in its turn: as it runs, once its exchange has gone on, run again, and as history tells it."""

from uuid import UUID

import pytest

from agentic_backend.events import ChatMessage, text_part
from agentic_backend.session.past_exchanges import AWAITING, StoredExchange
from agentic_backend.session.stream import (
    Accepted,
    Ask,
    Awaiting,
    Cancelled,
    Final,
    HumanAnswer,
    TextDelta,
    Turn,
    Whole,
)
from agentic_backend.surfaces.openai.errors import CannotNow
from agentic_backend.surfaces.openai.response_events import OF_A_RERUN
from agentic_backend.surfaces.openai.response_object import Requested, ResponseId
from agentic_backend.surfaces.openai.response_parts import part_of
from tests.agentic_backend.surfaces.openai.test_chat import PAGE, SESSION

SESSION_ID, EXCHANGE_ID = str(UUID(int=1)), str(UUID(int=2))
FIRST, SECOND, THIRD = (ResponseId(SESSION_ID, EXCHANGE_ID, rank) for rank in (None, 2, 4))
ASKS = {"question": "Publish?", "checkpoint_id": "k"}


def message(rank, role, channel, text, **metadata):
    return ChatMessage.build(
        session_id=SESSION_ID,
        exchange_id=EXCHANGE_ID,
        rank=rank,
        role=role,
        channel=channel,
        parts=[text_part(text)],
        metadata=metadata,
    )


def noted(model, **more):
    return {"extras": {"note": Requested(model, 5, **more).note()}}


QUESTION = message(0, "user", "final", "Write", **noted("first"))
THOUGHT = message(1, "assistant", "thought", "So.")
DECIDED = message(2, "user", "observation", "Yes", **noted("second", answers="Publish?"))
AGAIN = message(3, "assistant", "thought", "Hm.")
DECIDED_AGAIN = message(4, "user", "observation", "No")


def answer(rank, **extras):
    return message(rank, "assistant", "final", "Done.", agent_id="Rico", extras=extras)


def turn_of(*payloads, human=None, before=None, restarted=False):
    given = None if human is None else HumanAnswer(human)
    ask = Ask(SESSION_ID, "Rico", "Write", EXCHANGE_ID, "ann", 0.0, human=given, note=noted("asked")["extras"]["note"])
    turn = Turn(ask, before)
    turn.restarted = restarted
    for payload in payloads:
        turn.publish(payload)
    return turn


def first_turn():
    return turn_of(Accepted(), Whole(QUESTION), Whole(THOUGHT), Awaiting(ASKS, (QUESTION, THOUGHT), SESSION))


def final(*messages):
    return Final(messages, SESSION, b"[]", 0.0, "db")


def ended(rank=3, **extras):
    return TextDelta(rank, "final", "Done."), final(answer(rank, **extras))


def texts(part):
    return [
        "".join(content["text"] for content in item.get("content", ()))
        for item in part.as_it_is(PAGE)["output"]
        if item["type"] == "message"
    ]


def told(*messages):
    turn = Turn(Ask(SESSION_ID, "Rico", "Write", EXCHANGE_ID, "ann", 0.0))
    StoredExchange(messages).publish(turn, SESSION)
    return turn


def test_a_response_of_a_turn_that_begins_is_queued_then_runs_then_is_whole():
    turn = turn_of()
    part = part_of(turn, FIRST)
    assert (part.requested.model, part.as_it_is(PAGE)["status"]) == ("asked", "queued")
    turn.publish(Accepted(3))
    assert part.as_it_is(PAGE)["status"] == "queued"
    turn.publish(Accepted())
    assert part.as_it_is(PAGE)["status"] == "in_progress"
    turn.publish(Whole(QUESTION))
    assert part_of(turn, FIRST).requested.model == "first"
    for payload in ended(1):
        turn.publish(payload)
    assert (part.as_it_is(PAGE)["status"], texts(part), part.first) == ("completed", ["Done."], 0)
    assert part_of(turn, SECOND) is None


@pytest.mark.parametrize("remembered", [True, False])
def test_each_answer_of_a_person_begins_a_response(remembered):
    before = first_turn()
    turn = turn_of(Accepted(), human={"text": "Yes"}, before=before if remembered else None)
    coming = part_of(turn, SECOND)
    assert (coming.requested.model, coming.as_it_is(PAGE)["status"]) == ("asked", "in_progress")
    for payload in (Whole(DECIDED), *ended()):
        turn.publish(payload)
    second = part_of(turn, SECOND)
    assert (second.requested.model, texts(second), texts(coming), second.first) == ("second", ["Done."], ["Done."], 0)
    first = part_of(turn, FIRST)
    if remembered:
        assert (texts(first), first.first, first.turn.ended) == (["So.", "Publish?"], 0, True)
    else:
        assert first is None
    assert part_of(turn, THIRD) is None


def test_of_a_response_that_comes_only_its_own_answer_is_waited_for():
    turn = turn_of(Accepted(), Whole(DECIDED), human={"text": "Yes"})
    assert part_of(turn, THIRD) is None
    assert part_of(turn, SECOND).place == 1


def test_history_tells_each_response_alone():
    turn = told(QUESTION, THOUGHT, DECIDED, AGAIN, DECIDED_AGAIN, answer(5))
    first, second, third = (part_of(turn, name, told=True) for name in (FIRST, SECOND, THIRD))
    assert [texts(part) for part in (first, second, third)] == [["So.", "Publish?"], ["Hm."], ["Done."]]
    assert [part.first for part in (first, second, third)] == [None, None, 0]
    assert [part.requested.model for part in (first, second, third)] == ["first", "second", "Rico"]
    assert all(part.as_it_is(PAGE)["status"] == "completed" for part in (first, second, third))


def numbers(*messages):
    return part_of(told(*messages), FIRST, told=True).first


def test_history_has_the_numbers_where_it_has_all_that_was_told():
    kept = message(1, "assistant", "thought", "I look.", extras={"reasoning": True})
    assert numbers(QUESTION, answer(1)) == 0
    assert numbers(QUESTION, answer(1, thinking_ms=3.0)) is None
    assert numbers(QUESTION, kept, answer(2, thinking_ms=3.0)) == 0
    assert numbers(QUESTION, answer(1, thinking_ms=3.0, late_thoughts="Is it?")) == 0
    assert numbers(QUESTION, answer(1, restarted=True)) == OF_A_RERUN
    assert numbers(QUESTION, answer(1, status="interrupted", interrupted_by="restart")) is None
    assert numbers(QUESTION, answer(1, status="interrupted")) == 0
    assert numbers(QUESTION, answer(1, status=AWAITING, awaiting={"payload": ASKS, "seq": 3})) is None


def test_a_turn_that_runs_again_has_numbers_of_its_own():
    turn = turn_of(Accepted(), Whole(QUESTION), restarted=True)
    assert part_of(turn, FIRST).first == OF_A_RERUN
    for payload in ended(1, restarted=True):
        turn.publish(payload)
    assert part_of(turn, FIRST).first == OF_A_RERUN
    left = turn_of(Accepted(), Whole(QUESTION), restarted=True)
    interrupted = answer(1, status="interrupted", interrupted_by="restart")
    left.publish(Cancelled((QUESTION, interrupted), SESSION))
    assert part_of(left, FIRST).first is None


def test_numbers_that_are_not_there_are_refused():
    turn = turn_of(Accepted(), Whole(QUESTION), TextDelta(1, "final", "Do"))
    part = part_of(turn, FIRST)
    place, events = part.behind(5, PAGE)
    assert (place, events.last) == (2, 1)
    for after, of in ((6, part), (0, part_of(turn_of(Accepted(), restarted=True), FIRST))):
        with pytest.raises(CannotNow) as refused:
            of.behind(after, PAGE)
        assert (refused.value.field, refused.value.their_code) == ("starting_after", "events_renumbered")


def test_of_a_turn_that_runs_again_the_last_run_counts():
    turn = turn_of(Accepted(), Whole(QUESTION), TextDelta(1, "final", "Half of"))
    part = part_of(turn, FIRST)
    assert part.behind(2, PAGE)[0] == 2
    for runs in (1, 2):
        turn.begin_again(runs)
        turn.publish(Accepted())
        turn.publish(Whole(QUESTION))
        part = part_of(turn, FIRST)
        assert (part.requested.model, part.place) == ("first", turn.shown_from)
        assert (part.first, texts(part)) == (runs * OF_A_RERUN, [])
        with pytest.raises(CannotNow):
            part.behind(2, PAGE)
        turn.publish(TextDelta(1, "final", "Do"))
        place, events = part.behind(part.first + 5, PAGE)
        assert (turn.events[place].payload, events.last) == (TextDelta(1, "final", "Do"), part.first + 1)
    for payload in ended(1, restarted=True, restarts=2):
        turn.publish(payload)
    part = part_of(turn, FIRST)
    assert (texts(part), part.first) == (["Done."], 2 * OF_A_RERUN)
    assert numbers(QUESTION, answer(1, restarted=True, restarts=2)) == 2 * OF_A_RERUN


def test_a_run_again_after_a_persons_answer_tells_both_responses_anew():
    turn = turn_of(Accepted(), Whole(DECIDED), human={"text": "Yes"}, before=first_turn())
    turn.begin_again(1)
    for payload in (Accepted(), Whole(QUESTION), Whole(THOUGHT), Whole(DECIDED), *ended(restarted=True)):
        turn.publish(payload)
    first, second = part_of(turn, FIRST), part_of(turn, SECOND)
    assert (texts(first), first.first) == (["So.", "Publish?"], None)
    assert (texts(second), second.first) == (["Done."], OF_A_RERUN)
