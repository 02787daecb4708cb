"""What a mark on a question makes of a session: which messages are live, and by what the others are superseded."""

import pytest

from agentic_backend.events import ChatMessage
from agentic_backend.session.branches import (
    Branching,
    Fork,
    Standing,
    forks_in,
    line_forks,
    line_of,
    marked,
    standing_of,
    superseded_by,
)
from agentic_backend.session.models import Session
from backend_kit.wire import dumps, loads
from tests.agentic_backend.records import turn

EMPTY = Session("s1", "ada", "georges", "", "")


def conversation(*after_ranks: int | None) -> list[ChatMessage]:
    """An exchange of two messages for each, x0, x1 and so on."""
    session, messages = EMPTY, []
    for number, after_rank in enumerate(after_ranks):
        record = turn(session, f"x{number}", after_rank=after_rank)
        session = record.session
        messages += record.messages
    return messages


def ranks(messages: list[ChatMessage]) -> list[int]:
    return [message.rank for message in messages]


@pytest.mark.parametrize(
    ("after_ranks", "live"),
    [
        ([None, None], [0, 1, 2, 3]),
        ([None, 1], [0, 1, 2, 3]),
        ([None, None, 1], [0, 1, 4, 5]),
        ([None, None, 1, None], [0, 1, 4, 5, 6, 7]),
        ([None, None, -1], [4, 5]),
        ([None, None, 1, 1], [0, 1, 6, 7]),
        ([None, None, 1, None, 5], [0, 1, 4, 5, 8, 9]),
        ([None, None, 1, None, 1], [0, 1, 8, 9]),
        ([None, None, None, 3, 1], [0, 1, 8, 9]),
        ([-1, -1], [2, 3]),
        # Behind what was superseded: that line is live again.
        ([None, None, 1, 3], [0, 1, 2, 3, 6, 7]),
        ([None, None, 1, 3, None], [0, 1, 2, 3, 6, 7, 8, 9]),
        ([None, None, 1, 3, 5], [0, 1, 4, 5, 8, 9]),
        ([None, -1, 1, 3], [2, 3, 6, 7]),
    ],
)
def test_the_live_line_is_what_no_later_exchange_has_superseded(after_ranks, live):
    assert ranks(line_of(conversation(*after_ranks))) == live


def test_the_line_that_ends_at_a_message_is_what_was_live_when_it_was_the_newest():
    messages = conversation(None, None, 1, None, -1)
    assert ranks(line_of(messages, 3)) == [0, 1, 2, 3]
    assert ranks(line_of(messages, 4)) == [0, 1, 4]
    assert ranks(line_of(messages, 7)) == [0, 1, 4, 5, 6, 7]
    assert ranks(line_of(messages, 9)) == [8, 9]
    assert line_of(messages, -1) == []


def test_what_is_superseded_names_what_stands_in_its_place_now():
    forks = forks_in(conversation(None, None, 1, None, -1))
    assert forks == [Fork(4, 1, "x2"), Fork(8, -1, "x4")]
    by = [superseded_by(line_forks(forks), rank) for rank in range(10)]
    assert by == [*["x4"] * 8, None, None]
    assert line_forks(forks, 7) == [forks[0]]
    by = [superseded_by(line_forks(forks[::-1], 7), rank) for rank in range(8)]
    assert by == [None, None, "x2", "x2", None, None, None, None]
    again = forks_in(conversation(None, None, 1, 3))
    by = [superseded_by(line_forks(again), rank) for rank in range(8)]
    assert by == [None, None, None, None, "x3", "x3", None, None]


def test_how_a_message_stands():
    messages = conversation(None, None, 1)
    assert standing_of(messages, 1) == Standing(live=True, ends=True)
    assert standing_of(messages, 0) == Standing(live=True, ends=False)
    assert standing_of(messages, 3) == Standing(live=False, ends=True)
    assert standing_of(messages, 5) == Standing(live=True, ends=True)
    assert standing_of(messages, 6) is None
    assert standing_of([], 0) is None


@pytest.mark.parametrize("extras", [{"after_rank": "1"}, {"after_rank": None}, {}, None, [], "after_rank"])
def test_what_is_no_mark_of_ours_supersedes_nothing(extras):
    plain = turn(turn(EMPTY, "x0").session, "x1").messages[0]
    body = loads(plain.json)
    body["metadata"] = {"extras": extras}
    odd = ChatMessage.build(**body)
    assert Branching.of(odd) == Branching()
    assert forks_in([odd]) == []


def test_an_answer_supersedes_nothing_whatever_it_says():
    question, answer = turn(turn(EMPTY, "x0").session, "x1", after_rank=-1).messages
    body = loads(answer.json) | {"metadata": loads(question.json)["metadata"]}
    assert forks_in([ChatMessage.build(**body)]) == []


def test_a_superseded_message_says_so_beside_what_it_said():
    (question, _) = turn(EMPTY, "x0", after_rank=-1).messages
    assert marked(question.json, None) is question.json
    assert loads(marked(question.json, "x9"))["metadata"] == {"extras": {"after_rank": -1, "superseded_by": "x9"}}
    odd = loads(question.json) | {"metadata": {"extras": None, "model": "mock"}}
    assert loads(marked(dumps(odd), "x9"))["metadata"] == {"extras": {"superseded_by": "x9"}, "model": "mock"}
