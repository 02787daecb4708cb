import pytest

from agentic_backend.events import Delta, Sources, Step, text_part
from agentic_backend.session.exchange import Exchange, title_from
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Ask, Cited, Failed, TextDelta, Turn, Whole
from backend_kit.wire import Code, loads


def exchange(title="", next_rank=4):
    ask = Ask("s1", "Georges", "What is a turn?", "e1", "ann", received_at=0.0)
    return Exchange(Turn(ask), Session("s1", "ann", "Georges", title, "2026-01-01T00:00:00.000000Z", next_rank))


def test_ranks_go_on_from_the_session_and_have_no_gap():
    one = exchange()
    one.open()
    one.emit(Delta("A "))
    one.emit(Delta("turn."))
    answer = one.close("A turn.", [], {"model": "m"})
    assert [message.rank for message in one.messages] == [4, 5]
    assert answer.rank == 5
    assert one.next_session().next_rank == 6
    deltas = [event.payload for event in one.turn.events if isinstance(event.payload, TextDelta)]
    assert [delta.rank for delta in deltas] == [5, 5]
    assert one.deltas == 2
    assert [event.seq for event in one.turn.events] == [1, 2, 3]


def test_text_before_a_step_was_a_thought():
    one = exchange()
    one.open()
    one.emit(Delta("Let me look."))
    one.emit(Step("assistant", "tool_call", [{"type": "tool_call", "call_id": "c", "name": "n", "args": {}}]))
    one.emit(Delta("Found it."))
    one.close("Found it.", [], {})
    assert [(message.rank, message.channel) for message in one.messages] == [
        (4, "final"),
        (5, "thought"),
        (6, "tool_call"),
        (7, "final"),
    ]
    assert one.text == "Found it."


def test_deltas_count_through_the_steps_between_them():
    one = exchange()
    one.open()
    assert one.deltas == 0
    one.emit(Delta("Let me "))
    one.emit(Delta("look."))
    one.emit(Step("assistant", "tool_call", [{"type": "tool_call", "call_id": "c", "name": "n", "args": {}}]))
    one.emit(Delta("Found it."))
    one.turn.publish(Failed(Code.INTERNAL, refused=False))
    one.emit(Delta("nobody sees this"))
    assert one.deltas == 3 == sum(isinstance(event.payload, TextDelta) for event in one.turn.events)


def test_a_second_question_in_an_exchange_is_refused_and_leaves_no_gap():
    one = exchange()
    one.open()
    with pytest.raises(ValueError, match="one question"):
        one.emit(Step("user", "final", [text_part("And this?")]))
    assert one.close("A turn.", [], {}).rank == 5


def test_sources_are_published_once_they_come():
    one = exchange()
    one.emit(Sources([{"uid": "d"}]))
    assert isinstance(one.turn.events[0].payload, Cited)


def test_nul_in_model_text_is_replaced_the_same_in_stream_and_answer():
    one = exchange()
    one.emit(Delta("a\x00b"))
    answer = one.close("a\x00b", [], {})
    assert one.text == "a\ufffdb"
    assert loads(answer.json)["parts"] == [text_part("a\ufffdb")]


def test_what_postgres_refuses_is_replaced_wherever_a_tool_put_it():
    one = exchange()
    one.open()
    args = {"te\x00xt": ["a\x00b", {"deep": "\ud800"}], "number": 10**30, "literal": "\\u0000"}
    one.emit(Step("assistant", "tool_call", [{"type": "tool_call", "call_id": "c", "name": "n", "args": args}]))
    part = loads(one.messages[-1].json)["parts"][0]
    wanted = {"te\ufffdxt": ["a\ufffdb", {"deep": "\ufffd"}], "number": str(10**30), "literal": "\\u0000"}
    assert part["args"] == wanted


def test_what_comes_after_the_end_is_dropped():
    one = exchange()
    one.open()
    one.turn.publish(Failed(Code.INTERNAL, refused=False))
    one.emit(Delta("late"))
    assert len(one.turn.events) == 2
    with pytest.raises(RuntimeError, match="after the end"):
        one.turn.publish(Whole(one.messages[0]))


def test_a_titled_session_keeps_its_title():
    assert exchange(title="Mine").next_session().title == "Mine"
    assert exchange().next_session().title == "What is a turn?"


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("  Hello   there \nmore", "Hello there"),
        ("", ""),
        ("word " * 30, ("word " * 12).strip() + "…"),
        ("x" * 80, "x" * 60 + "…"),
    ],
)
def test_a_title_is_the_first_line_cut_at_a_word(message, title):
    assert title_from(message) == title


def test_each_follower_is_woken_and_a_refusal_has_no_number():
    turn = exchange().turn
    woken: list[str] = []
    turn.follow(lambda: woken.append("one"))
    turn.publish(Failed(Code.SESSION_BUSY, refused=True))
    assert turn.events[0].seq == 0
    assert woken == ["one"]
    assert turn.ended
