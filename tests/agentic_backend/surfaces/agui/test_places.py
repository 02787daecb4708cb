"""Where a run is in the events of its exchange, and where a client was cut."""

import pytest

from agentic_backend.errors import BadRequest, Conflict
from agentic_backend.session.stream import Accepted, TextDelta
from agentic_backend.surfaces.agui.places import Position, Start, expect_turn, name_of, only_run, start_of_answer
from tests.agentic_backend.surfaces.agui.turns import (
    answer,
    awaiting,
    cut_metadata,
    decided,
    final,
    plain_run,
    question,
    short,
    streamed,
    turn_of,
)

YES = {"choice_id": "allow", "checkpoint_id": "k:1"}
NO = {"choice_id": "deny", "checkpoint_id": "k:1"}


def asking():
    return turn_of(Accepted(), question(), awaiting())


def went_on(said=YES, *, before=None, received_at=2.0):
    payloads = [Accepted(), decided(said), TextDelta(3, "final", "Done"), final(answer(3, "Done"))]
    return turn_of(*payloads, human=said, before=before or asking(), received_at=received_at)


def test_a_position_is_read_as_it_was_written():
    for position in (Position("0a1b", 0), Position("0a1b", 7), Position("0a1b", 7, 3)):
        assert Position.read(str(position)) == position
    assert Position.read(None) is Position.read("") is None
    for text in ("7", "-", "a-", "a-x", "a-1.", "a-1.x", "a-1.2.3", "a-¹", "a-" + "1" * 99, "a--1"):
        with pytest.raises(BadRequest) as refusal:
            Position.read(text)
        assert refusal.value.field == "Last-Event-ID"


def test_a_position_is_of_one_turn():
    turn, other = asking(), turn_of(Accepted(), received_at=2.0)
    expect_turn(Position(name_of(turn), 1), turn)
    with pytest.raises(Conflict):
        expect_turn(Position(name_of(turn), 1), other)


def test_the_run_behind_an_answer_is_found_while_its_exchange_is_kept():
    turn = went_on()
    start = start_of_answer(turn, YES)
    assert start is not None
    assert short(one for _, one in streamed(turn, start=start))[2:5] == [
        ("TEXT_MESSAGE_START", "e1.3"),
        ("TEXT_MESSAGE_CONTENT", "e1.3", "Done"),
        ("TEXT_MESSAGE_END", "e1.3"),
    ]
    assert start_of_answer(turn, NO) is None
    assert start_of_answer(turn, {**YES, "checkpoint_id": "k:2"}) is None
    assert start_of_answer(asking(), YES) is None


def test_a_run_that_has_said_nothing_yet_is_found_by_its_answer():
    before = asking()
    turn = turn_of(human=YES, before=before)
    assert start_of_answer(turn, YES) == Start(turn, 3)
    alone = turn_of(human=YES)
    assert start_of_answer(alone, YES) == Start(alone, 0)


def test_history_tells_it_behind_the_answer_and_a_long_answer_is_known_by_its_beginning():
    for kept in (decided(YES), decided(cut_metadata(YES), cut=True)):
        told = turn_of(Accepted(), question(), kept, TextDelta(3, "final", "Done"), final(answer(3, "Done")))
        start = start_of_answer(told, YES)
        assert start == Start(told, 0, YES)
        assert "TEXT_MESSAGE_START" in [one[0] for one in short(event for _, event in streamed(told, start=start))]
    assert start_of_answer(turn_of(Accepted(), question(), decided(NO)), YES) is None


def test_a_run_that_goes_on_after_a_restart_begins_behind_what_it_had():
    turn = turn_of(Accepted(), question(), decided(YES), TextDelta(3, "final", "Done"), human=YES)
    turn.cut = object()  # a record that the reader does not look at
    start = start_of_answer(turn, YES)
    assert start == Start(turn, 0, YES)


def test_a_run_whose_exchange_went_on_ends_where_it_ended():
    turn = went_on()
    first = only_run(Start(turn, 0))
    assert first.turn.ended
    assert list(first.turn.events) == [turn.events[at] for at in range(3)]
    assert name_of(first.turn) == name_of(turn)
    events = [one for _, one in streamed(first.turn, start=first)]
    assert events[-1]["outcome"]["type"] == "interrupt"
    last = Start(turn, 3)
    assert only_run(last) == last
    middle = went_on({**YES, "checkpoint_id": "k:2"}, before=turn_of(*_asks_again(), human=YES, before=asking()))
    second = only_run(Start(middle, 3))
    assert [event.seq for event in second.turn.events] == [4, 5, 6]
    assert second.turn.ended


def _asks_again():
    return [Accepted(), decided(YES), awaiting({"question": "And?", "checkpoint_id": "k:2"}, rank=3)]


def test_a_run_that_is_not_over_is_followed_as_it_is():
    turn = turn_of(*plain_run()[:3])
    assert only_run(Start(turn, 0)) == Start(turn, 0)


def test_a_turn_that_runs_again_is_looked_for_from_there_and_keeps_its_numbers():
    turn = turn_of(Accepted(), decided(YES), TextDelta(3, "final", "Half of"), human=YES, before=asking())
    turn.begin_again(1)
    for payload in (
        Accepted(),
        question(),
        decided(YES),
        awaiting({"question": "And?", "checkpoint_id": "k:2"}, rank=3),
    ):
        turn.publish(payload)
    start = start_of_answer(turn, YES)
    assert start == Start(turn, turn.shown_from)
    on = turn_of(Accepted(), human={**YES, "checkpoint_id": "k:2"}, before=turn)
    start = start_of_answer(on, YES)
    assert start == Start(on, on.shown_from, YES)
    alone = only_run(start).turn
    assert [event.seq for event in alone.events] == [turn.events[at].seq for at in range(turn.shown_from, 11)]
