import logging

import pytest

from agentic_backend.agent import GraphInput
from agentic_backend.events import Custom, Delta, GraphOutput, Sources, Speaks, Step, TextEnds, Thought, text_part
from agentic_backend.session.exchange import Exchange, OutputBounds, title_from
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    Ask,
    Cited,
    CustomPart,
    Failed,
    GraphPart,
    HumanAnswer,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Turn,
    Whole,
)
from backend_kit.wire import Code, loads

CALL = Step("assistant", "tool_call", [{"type": "tool_call", "call_id": "c", "name": "n", "args": {}}])


def exchange(title="", next_rank=4, human=None, graph=None, **more):
    ask = Ask("s1", "Georges", "What is a turn?", "e1", "ann", received_at=0.0, human=human, graph=graph)
    session = Session("s1", "ann", "Georges", title, "2026-01-01T00:00:00.000000Z", next_rank)
    return Exchange(Turn(ask), session, **more)


def published(one, kind):
    return [event.payload for event in one.turn.events if isinstance(event.payload, kind)]


def thoughts(one):
    return [payload.text for payload in published(one, ThoughtDelta)]


def kept(one):
    """Rank, text and metadata of each message of reasoning."""
    return [
        (message.rank, message.text, message.metadata["extras"]["reasoning"])
        for message in one.messages
        if message.channel == "thought" and message.metadata
    ]


def test_ranks_go_on_from_the_session_and_have_no_gap():
    one = exchange()
    one.open(one.question())
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
    one.open(one.question())
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
    one.open(one.question())
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
    one.open(one.question())
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
    one.open(one.question())
    args = {"te\x00xt": ["a\x00b", {"deep": "\ud800"}], "number": 10**30, "literal": "\\u0000"}
    one.emit(Step("assistant", "tool_call", [{"type": "tool_call", "call_id": "c", "name": "n", "args": args}]))
    part = loads(one.messages[-1].json)["parts"][0]
    wanted = {"te\ufffdxt": ["a\ufffdb", {"deep": "\ufffd"}], "number": str(10**30), "literal": "\\u0000"}
    assert part["args"] == wanted


def test_what_comes_after_the_end_is_dropped():
    one = exchange()
    one.open(one.question())
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
        (
            "Hello. I wonder how long lentils boil. And what of the red ones, do they?",
            "Hello. I wonder how long lentils boil.",
        ),
        ("How long do lentils boil? " + "And why? " * 10, "How long do lentils boil?"),
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


def test_reasoning_is_streamed_and_leaves_nothing_but_its_time():
    one = exchange()
    one.open(one.question())
    one.emit(Thought("Hm"))
    one.emit(Thought(""))
    one.emit(Thought("m."))
    assert one.first_token_at is None
    one.emit(Delta("A turn."))
    assert one.first_token_at is not None
    one.end_thinking()
    one.close("A turn.", [], {})
    assert thoughts(one) == ["Hm", "m."]
    assert [(message.rank, message.channel) for message in one.messages] == [(4, "final"), (5, "final")]
    assert b"Hm" not in b"".join(message.json for message in one.messages)
    assert one.stream_metadata["thinking_ms"] > 0
    assert set(one.stream_metadata) == {"deltas", "thinking_ms"}


def test_without_reasoning_there_is_no_time_of_it():
    one = exchange()
    one.emit(Delta("A turn."))
    one.end_thinking()
    assert one.stream_metadata == {"deltas": 1}


def test_the_time_of_reasoning_is_the_sum_of_its_stretches():
    one = exchange()
    one.emit(Thought("a"))
    one.emit(CALL)
    first = one.stream_metadata["thinking_ms"]
    one.emit(CALL)
    assert one.stream_metadata["thinking_ms"] == first
    one.emit(Thought("b"))
    one.emit(Delta("c"))
    assert one.stream_metadata["thinking_ms"] > first
    # What nothing follows ends with the run.
    alone = exchange()
    alone.emit(Thought("a"))
    assert alone.stream_metadata == {}
    alone.end_thinking()
    assert set(alone.stream_metadata) == {"thinking_ms"}


def test_kept_reasoning_becomes_a_message_when_its_stretch_ends():
    one = exchange(keep_thoughts=True)
    one.open(one.question())
    one.emit(Thought("Look "))
    one.emit(Thought("it up."))
    one.emit(CALL)
    one.emit(Thought("Found."))
    one.emit(Delta("A "))
    one.emit(Delta("turn."))
    one.end_thinking()
    one.close("A turn.", [], {})
    assert kept(one) == [(5, "Look it up.", True), (7, "Found.", True)]
    assert [message.rank for message in one.messages] == [4, 5, 6, 7, 8]
    assert one.messages[1].metadata["extras"]["thinking_ms"] >= 0
    kinds = [type(event.payload).__name__ for event in one.turn.events]
    assert (
        kinds
        == ["Whole", "ThoughtDelta", "ThoughtDelta", "Whole", "Whole", "ThoughtDelta", "Whole"] + ["TextDelta"] * 2
    )


def test_kept_reasoning_that_nothing_follows_comes_before_the_answer():
    one = exchange(keep_thoughts=True)
    one.open(one.question())
    one.emit(Thought("Hm."))
    one.end_thinking()
    assert one.close("Sorry.", [], {}).rank == 6
    assert kept(one) == [(5, "Hm.", True)]


def test_kept_reasoning_beside_text_follows_it_where_a_step_comes_and_else_stays_with_the_answer():
    one = exchange(keep_thoughts=True)
    one.open(one.question())
    one.emit(Delta("Let me look."))
    one.emit(Thought("Where?"))
    one.emit(Delta(".."))
    one.emit(CALL)
    assert [(message.rank, message.text) for message in one.messages[1:]] == [
        (5, "Let me look..."),
        (6, "Where?"),
        (7, ""),
    ]
    one.emit(Delta("A"))
    one.emit(Thought("or"))
    one.emit(Delta(" turn."))
    one.emit(Thought("so"))
    one.end_thinking()
    assert one.stream_metadata["late_thoughts"] == "or\nso"
    assert one.close("A turn.", [], {}).rank == 8 == one.messages[-1].rank


def test_a_pause_publishes_the_text_and_then_the_reasoning_beside_it():
    one = exchange(keep_thoughts=True)
    one.open(one.question())
    one.emit(Delta("May I?"))
    one.emit(Thought("Ask."))
    one.end_thinking()
    before = len(one.turn.events)
    told = one.published_by_pause
    one.pause({})
    assert len(one.turn.events) - before == told == 2
    assert [(message.rank, message.text) for message in one.messages[1:]] == [(5, "May I?"), (6, "Ask."), (7, "")]


def test_what_postgres_refuses_is_replaced_in_reasoning():
    one = exchange(keep_thoughts=True)
    one.emit(Thought("a\x00b\ud800"))
    one.emit(Delta("c"))
    assert thoughts(one)[0].startswith("a\ufffdb")
    assert kept(one) == [(4, "a\ufffdb\ufffd", True)]


@pytest.mark.parametrize("keep", [False, True])
def test_reasoning_above_its_bound_is_dropped(keep):
    one = exchange(keep_thoughts=keep, bounds=OutputBounds(thought_chars=5))
    for text in ("abc", "defg", "hij", "k"):
        one.emit(Thought(text))
    one.emit(Delta("A turn."))
    one.emit(Thought("more"))
    one.end_thinking()
    assert thoughts(one) == ["abc", "de\n[The rest is left out.]"]
    assert kept(one) == ([(4, "abcde\n[The rest is left out.]", True)] if keep else [])
    assert one.stream_metadata["thinking_ms"] > 0


def test_the_longest_gap_counts_reasoning_as_a_sign_of_life():
    one = exchange()
    assert one.longest_gap_s == 0.0
    one.emit(Thought("a"))
    one.emit(Thought("b"))
    before_text = one.longest_gap_s
    assert before_text > 0.0
    one.emit(Delta("c"))
    assert one.longest_gap_s >= before_text
    assert one.deltas == 1


def test_a_custom_event_is_sent_as_it_is_and_kept_nowhere():
    one = exchange()
    one.open(one.question())
    for data in ({"step": 1, "of": [None, True, 1.5]}, "text", None):
        one.emit(Custom(data))
    assert [loads(said.json) for said in published(one, CustomPart)] == [
        {"step": 1, "of": [None, True, 1.5]},
        "text",
        None,
    ]
    assert len(one.messages) == 1


def test_a_custom_event_that_cannot_be_sent_is_dropped_with_one_line_a_turn(caplog):
    one = exchange()
    loop = []
    loop.append(loop)
    with caplog.at_level(logging.WARNING):
        for data in ({"secret": object()}, loop, {"secret": "x" * 70_000}):
            one.emit(Custom(data))
    assert published(one, CustomPart) == []
    (line,) = caplog.messages
    assert line == "custom event dropped exchange_id=e1: it is no JSON"
    one.emit(Custom("still"))
    assert [said.json for said in published(one, CustomPart)] == [b'"still"']


@pytest.mark.parametrize("bounds", [OutputBounds(custom_events=2), OutputBounds(custom_bytes=7)])
def test_custom_events_above_their_bounds_are_dropped(bounds):
    one = exchange(bounds=bounds)
    for data in ("a", "b", "c"):
        one.emit(Custom(data))
    assert [said.json for said in published(one, CustomPart)] == [b'"a"', b'"b"']


@pytest.mark.parametrize(
    "bounds", [OutputBounds(graph_events=2), OutputBounds(graph_bytes=7), OutputBounds(graph_event_bytes=3)]
)
def test_what_is_told_of_a_graph_has_bounds_of_its_own(bounds, caplog):
    one = exchange(bounds=bounds)
    for said in (b'"a"', b'"b"', b'"secret"', b'"d"')[: 4 if bounds.graph_event_bytes > 3 else 3]:
        one.emit(GraphOutput("values", ("team:1",), said))
    one.emit(Custom("still"))
    assert published(one, GraphPart) == [GraphPart("values", ("team:1",), said) for said in (b'"a"', b'"b"')]
    assert len(published(one, CustomPart)) == 1
    (line,) = caplog.messages
    assert "secret" not in line


@pytest.mark.parametrize("graph", [None, GraphInput()])
def test_whose_text_it_is_stands_in_what_is_stored_and_is_said_where_that_is_wanted(graph):
    one = exchange(graph=graph)
    one.open(one.question())
    one.emit(Speaks("run-1", "think", 2, ("team:1",)))
    one.emit(Delta("Let me see."))
    one.emit(Speaks("msg-1", "think", 2, ("team:1",)))  # as its model names it at its end
    one.emit(CALL)
    one.emit(Delta("A node's own."))
    one.emit(TextEnds())
    one.emit(Speaks("msg-2", "write"))
    one.emit(Delta("It"))
    one.emit(Delta(" is."))
    told = one.stream_metadata
    one.close(one.text, [], {"extras": told})
    named = [(message.text, message.metadata.get("extras", {}).get("message_id")) for message in one.messages]
    assert named[1:] == [("Let me see.", "msg-1"), ("", None), ("A node's own.", None), ("It is.", "msg-2")]
    assert told["node"] == "write"
    expected = [SpokenBy(5, "run-1", "think", 2, ("team:1",)), SpokenBy(8, "msg-2", "write", 0, ())]
    assert published(one, SpokenBy) == ([] if graph is None else expected)
    # Without a text nobody has said anything.
    assert "message_id" not in exchange().stream_metadata


ASKED = {"question": "Publish?", "choices": [{"id": "y", "label": "Yes"}], "checkpoint_id": "run"}


def test_what_a_person_decided_is_a_message_that_says_who_and_when():
    one = exchange(human=HumanAnswer({"choice_id": "y", "checkpoint_id": "run"}))
    decided = one.decision(ASKED)
    one.decide(decided)
    assert (decided.rank, decided.role, decided.channel, decided.text) == (4, "user", "observation", "Yes")
    decision = decided.metadata["extras"]["decision"]
    assert decision == {
        "by": "ann",
        "at": decision["at"],
        "answer": {"choice_id": "y", "checkpoint_id": "run"},
    }
    assert published(one, Whole) == [Whole(decided)]
    assert one.close("Published.", [], {}).rank == 5


def test_a_long_answer_of_a_person_is_cut_in_the_record_of_it():
    one = exchange(human=HumanAnswer({"text": "é" * 20_000}))
    decision = one.decision(ASKED).metadata["extras"]["decision"]
    assert decision["cut"] is True
    assert decision["answer"] == '{"text":"' + "é" * ((16 * 1024 - 9) // 2)
