"""The events of a turn that runs again: their numbers, and from which on they are shown to whom."""

import asyncio

import pytest

from agentic_backend.session.past_exchanges import StoredExchange
from agentic_backend.session.stream import (
    RUN_SEQS,
    Accepted,
    Ask,
    Awaiting,
    Cancelled,
    Failed,
    HumanAnswer,
    Restarted,
    TextDelta,
    Turn,
    Whole,
)
from agentic_backend.testing import USER
from backend_kit.wire import Code
from tests.agentic_backend.session.echo_process import SESSION
from tests.agentic_backend.session.test_restarts import question_of

ASK = Ask(SESSION.id, "Echo", "hello", "e1", USER, 0.0)


def said(turn, *texts):
    turn.publish(Accepted())
    for text in texts:
        turn.publish(TextDelta(1, "final", text))


def told(turn, place=None):
    """What a follower from this place on gets: numbers, and texts or kinds."""
    events = [turn.events[at] for at in range(turn.shown_from if place is None else place, len(turn.events))]
    return [(event.seq, getattr(event.payload, "text", type(event.payload).__name__)) for event in events]


AGAIN = [(RUN_SEQS + 1, "Restarted"), (RUN_SEQS + 2, "Accepted"), (RUN_SEQS + 3, "uno")]


def begun_again():
    """A turn that had said something in this process before it began again."""
    turn = Turn(ASK)
    said(turn, "one ", "two ")
    turn.begin_again(1)
    said(turn, "uno")
    return turn


def test_followers_hear_all_of_it_and_newcomers_the_last_run():
    turn = begun_again()
    assert told(turn, 0) == [(1, "Accepted"), (2, "one "), (3, "two "), *AGAIN]
    assert told(turn) == told(turn, turn.after(0)) == AGAIN
    assert turn.earlier == turn.shown_from == 3
    assert turn.restarted
    assert turn.runs_before == 1


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 999, RUN_SEQS, RUN_SEQS + 4, 7 * RUN_SEQS])
def test_who_has_events_of_another_run_gets_the_last_one_whole(seq):
    turn = begun_again()
    assert told(turn, turn.after(seq)) == AGAIN


@pytest.mark.parametrize("have", [1, 2, 3])
def test_who_has_events_of_the_last_run_gets_what_follows(have):
    turn = begun_again()
    assert told(turn, turn.after(RUN_SEQS + have)) == AGAIN[have:]


@pytest.mark.parametrize("seq", [0, 1, 7, RUN_SEQS])
def test_in_a_process_that_knows_nothing_of_the_run_before_it_is_the_same(seq):
    turn = Turn(ASK)
    turn.begin_again(1)
    said(turn, "uno")
    assert told(turn, turn.after(seq)) == AGAIN
    assert told(turn, turn.after(RUN_SEQS + 2)) == AGAIN[2:]


def test_before_it_begins_its_followers_have_what_there_was():
    turn = Turn(ASK)
    said(turn, "one ", "two ")
    assert (turn.after(2), turn.after(3)) == (2, 3)
    assert not turn.restarted


def test_each_run_is_numbered_above_all_before_it():
    turn = begun_again()
    turn.begin_again(2)
    said(turn, "eins")
    assert [seq for seq, _ in told(turn)] == [2 * RUN_SEQS + 1, 2 * RUN_SEQS + 2, 2 * RUN_SEQS + 3]
    assert turn.after(RUN_SEQS + 2) == turn.shown_from
    assert turn.runs_before == 2


def test_an_exchange_that_goes_on_after_a_person_was_asked_goes_on_with_its_numbers():
    first = begun_again()
    first.publish(Awaiting({"question": "Sure?"}, (), SESSION))
    waited = first.next_seq - 1
    on = Turn(ASK.__class__(SESSION.id, "Echo", "", "e1", USER, 0.0, human=HumanAnswer("yes")), first)
    said(on, "on")
    assert told(on) == [*AGAIN, (waited, "Awaiting"), (waited + 1, "Accepted"), (waited + 2, "on")]
    # Its run breaks off, here or with its process: which one begins again makes no difference to the numbers.
    on.begin_again(1)
    elsewhere = Turn(on.ask)
    elsewhere.continue_after(waited)
    elsewhere.begin_again(1)
    for turn in (on, elsewhere):
        said(turn, "on again")
        assert told(turn) == [
            (2 * RUN_SEQS + 1, "Restarted"),
            (2 * RUN_SEQS + 2, "Accepted"),
            (2 * RUN_SEQS + 3, "on again"),
        ]
        assert turn.after(waited + 2) == turn.after(waited) == turn.shown_from


def test_what_is_told_from_history_replaces_what_a_run_had_published():
    turn = Turn(ASK)
    said(turn, "half of")
    message = question_of("hello")
    StoredExchange((message,)).publish(turn, SESSION)
    assert told(turn, 2) == [(3, "Restarted"), (4, "Accepted"), (5, "Whole"), (6, "Cancelled")]
    assert told(turn) == told(turn, 2)
    assert (turn.after(2), turn.after(4)) == (2, 4)


def test_what_is_told_from_history_alone_is_numbered_from_1():
    turn = Turn(ASK)
    StoredExchange((question_of("hello"),)).publish(turn, SESSION)
    assert told(turn) == [(1, "Accepted"), (2, "Whole"), (3, "Cancelled")]
    assert [turn.after(seq) for seq in (0, 2, RUN_SEQS + 2)] == [0, 0, 0]


def test_a_refusal_after_a_run_broke_off_has_a_number():
    turn = begun_again()
    turn.begin_again(2)
    turn.publish(Failed(Code.DRAINING, refused=True))
    assert turn.events[-1].seq == 2 * RUN_SEQS + 2


async def test_followers_are_woken_by_it():
    turn = Turn(ASK)
    said(turn, "one")
    news = asyncio.Event()
    turn.follow(news.set)
    turn.begin_again(1)
    assert news.is_set()
    assert isinstance(turn.events[-1].payload, Restarted)


def test_fragments_of_two_runs_are_never_joined():
    turn = Turn(ASK)
    turn.publish(TextDelta(1, "final", "one"))
    turn.begin_again(1)
    turn.publish(TextDelta(1, "final", "uno"))
    assert [(turn.events.joined(place, 99)[0].seq) for place in (0, 1, 2)] == [1, RUN_SEQS + 1, RUN_SEQS + 2]
    turn.publish(Cancelled((), SESSION))
    assert told(turn, 0)[0] == (1, "one")
    assert turn.events.joined(2, 99) == (turn.events[2], 1)


def test_a_whole_message_stands_behind_it():
    turn = begun_again()
    turn.publish(Whole(question_of("hello")))
    assert turn.after(RUN_SEQS + 3) == len(turn.events) - 1
