"""What the events of a turn are in AG-UI: each type of them, in an order that the official client takes."""

import json
import random

import pytest

from agentic_backend.errors import Conflict
from agentic_backend.session.stream import (
    Accepted,
    Cited,
    CustomPart,
    Failed,
    Restarted,
    SessionChanged,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.surfaces.agui.places import Position, Start
from agentic_backend.surfaces.agui.writing import RunNames, is_own
from backend_kit.wire import Code
from tests.agentic_backend.surfaces.agui.turns import (
    SESSION,
    answer,
    called,
    came,
    cancelled,
    final,
    message,
    plain_run,
    question,
    short,
    some_run,
    streamed,
    turn_of,
    written,
)
from tests.support.agui import Order, joined

BEGUN = [("RUN_STARTED",), ("STEP_STARTED", "Georges")]
ENDED = [("CUSTOM", "turnwise.ledger"), ("STEP_FINISHED", "Georges"), ("RUN_FINISHED",)]
SAID = [
    ("TEXT_MESSAGE_START", "e1.9"),
    ("TEXT_MESSAGE_CONTENT", "e1.9", "Hi"),
    ("TEXT_MESSAGE_END", "e1.9"),
]
TEXT = ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END")
THOUGHT = (
    "REASONING_START",
    "REASONING_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT",
    "REASONING_MESSAGE_END",
    "REASONING_END",
)


def thought(name, text):
    return [(kind, name, text) if kind.endswith("CONTENT") else (kind, name) for kind in THOUGHT]


def text(name, words):
    return [(kind, name, words) if kind.endswith("CONTENT") else (kind, name) for kind in TEXT]


def call(name, parent, tool="add"):
    return [
        ("TOOL_CALL_START", name, tool, parent),
        ("TOOL_CALL_ARGS", name, '{"a":1}'),
        ("TOOL_CALL_END", name),
    ]


def test_a_run_begins_says_its_text_and_ends():
    events = written(*plain_run())
    assert short(events) == [*BEGUN, *SAID, *ENDED]
    about = {"session_id": "s", "exchange_id": "e1"}
    assert events[0] == {
        "type": "RUN_STARTED",
        "threadId": "t",
        "runId": "e1",
        "protocolVersion": "1.0",
        "metadata": {"turnwise": about},
    }
    assert events[2]["role"] == "assistant"
    assert events[-3]["value"] == {"ledger": [], "unattributed_ms": 0.5, "durable": "spool", "warnings": []}
    assert events[-1] == {"type": "RUN_FINISHED", "threadId": "t", "runId": "e1", "outcome": {"type": "success"}}


def test_the_parent_of_a_run_is_said_again():
    names = RunNames("t", "r2", "r1", "Georges", "s", "e1")
    assert written(Accepted(), names=names)[0]["parentRunId"] == "r1"


def test_while_it_waits_for_its_place_it_is_in_a_step_of_that():
    events = written(Accepted(3), question(), *plain_run()[2:])
    assert short(events)[:4] == [
        ("RUN_STARTED",),
        ("STEP_STARTED", "queued"),
        ("STEP_FINISHED", "queued"),
        ("STEP_STARTED", "Georges"),
    ]


def test_text_before_a_tool_is_a_message_with_the_calls():
    events = written(
        *(Accepted(), question()),
        *(TextDelta(1, "final", "Let "), TextDelta(1, "final", "me.")),
        Whole(message(1, "assistant", "thought", "Let me.")),
        *(called(2, ("c1", "add")), called(3, ("c2", "sub"))),
        *(came(4, ("c1", "5")), came(5, ("c2", "no"), ok=False)),
        TextDelta(6, "final", "Five."),
        final(question().message, answer(6, "Five.")),
    )
    assert short(joined(events)) == [
        *BEGUN,
        *text("e1.1", "Let me."),
        *call("c1", "e1.1"),
        *call("c2", "e1.1", "sub"),
        ("TOOL_CALL_RESULT", "e1.4", "c1", "5"),
        ("TOOL_CALL_RESULT", "e1.5", "c2", "no"),
        *text("e1.6", "Five."),
        *ENDED,
    ]
    assert [event.get("metadata") for event in events if event["type"] == "TOOL_CALL_RESULT"] == [
        None,
        {"turnwise": {"ok": False}},
    ]


def test_history_tells_a_text_before_a_tool_as_it_was_streamed():
    told = written(
        *(Accepted(), question(), Whole(message(1, "assistant", "thought", "Let me.")), called(2, ("c1", "add"))),
        came(3, ("c1", "5")),
        *(TextDelta(4, "final", "Five."), final(question().message, answer(4, "Five."))),
    )
    assert short(told)[2:8] == [*text("e1.1", "Let me."), *call("c1", "e1.1")]


def test_calls_without_an_id_or_with_that_of_another_one_get_their_own():
    names = RunNames("t", "e1", None, "Georges", "s", "e1", calls={"c1": "c1"}, taken=frozenset({"c1"}))
    events = written(
        *(Accepted(), question(), called(1, ("", "add"), ("", "sub"), ("c1", "mul"))),
        came(2, ("", "1"), ("", "2"), ("c1", "3")),
        *(called(3, ("c1", "add")), came(4, ("c1", "4"))),
        names=names,
    )
    made = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"]
    assert made == ["~1", "~1001", "c1~1", "c1~3"]
    results = [(event["toolCallId"], event["content"]) for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert results == [("~1", "1"), ("~1001", "2"), ("c1~1", "3"), ("c1~3", "4")]
    ids = [event["messageId"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert ids == ["e1.2", "e1.2-1", "e1.2-2", "e1.4"]


def test_the_result_of_a_call_of_the_run_before_names_that_call():
    names = RunNames("t", "r2", None, "Georges", "s", "e1", 3, {"c1": "c1~7"}, frozenset({"c1~7"}))
    (result,) = [event for event in written(came(4, ("c1", "5")), names=names) if event["type"] == "TOOL_CALL_RESULT"]
    assert result["toolCallId"] == "c1~7"


def test_reasoning_is_told_once_whether_or_not_it_is_kept():
    kept = Whole(message(1, "assistant", "thought", "I see.", {"extras": {"reasoning": True, "thinking_ms": 1}}))
    live = written(Accepted(), question(), ThoughtDelta("I "), ThoughtDelta("see."), kept, *plain_run()[2:])
    assert short(joined(live))[2:-6] == thought("e1.0t1", "I see.")
    stored = written(Accepted(), question(), kept, *plain_run()[2:])
    assert short(stored)[2:-6] == thought("e1.1", "I see.")
    second = written(question(), ThoughtDelta("I see."), kept, called(2, ("c1", "add")), ThoughtDelta("Then."), kept)
    assert [event[1] for event in short(second) if event[0] == "REASONING_START"] == ["e1.0t1", "e1.0t2"]


def test_reasoning_in_the_middle_of_a_text_does_not_end_the_text():
    events = written(
        *(Accepted(), question(), TextDelta(1, "final", "A "), ThoughtDelta("Hm."), TextDelta(1, "final", "turn")),
        *(ThoughtDelta("So."), final(question().message, answer(1, "A turn"))),
    )
    assert "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT") == "A turn"
    assert [event[1] for event in short(events) if event[0] == "TEXT_MESSAGE_START"] == ["e1.1", "e1.1"]


def test_an_answer_that_was_not_streamed_is_told_at_the_end():
    events = written(Accepted(), question(), final(question().message, answer(1, "All at once")))
    assert short(events) == [*BEGUN, *text("e1.1", "All at once"), *ENDED]


def test_what_an_answer_has_beside_its_text():
    cited = {"type": "link", "href": "/documents/d1", "title": "A", "kind": "citation", "source_id": "1"}
    other = {"type": "link", "href": "https://x", "title": "B", "kind": "other", "source_id": None}
    code = {"type": "code", "language": "py", "code": "1"}
    usage = {
        "steps": [
            {"step": "a", "model": "m", "input_tokens": 5, "output_tokens": 1, "cached_tokens": 2},
            {"step": "b", "model": "m", "input_tokens": 7, "output_tokens": 2, "reasoning_tokens": 1},
            {"step": "c", "model": "n", "input_tokens": 1, "output_tokens": 1},
        ]
    }
    told = answer(1, "Hi [1]", cited, other, code, extras={"usage": usage})
    events = written(Accepted(), Cited([{"uid": "d1"}]), TextDelta(1, "final", "Hi [1]"), final(told))
    custom = {event["name"]: event["value"] for event in events if event["type"] == "CUSTOM"}
    assert custom["turnwise.sources"] == [{"uid": "d1"}]
    assert custom["turnwise.citations"] == [cited]
    assert custom["turnwise.parts"] == [other, code]
    assert events[-1]["usage"] == [
        {
            "model": "m",
            "inputTokens": 12,
            "outputTokens": 3,
            "cachedInputTokens": 2,
            "reasoningTokens": 1,
            "totalTokens": 15,
        },
        {"model": "n", "inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    ]


def test_calls_that_the_client_is_to_make_are_pending():
    call_part = {"type": "tool_call", "call_id": "c1", "name": "city", "args": {"unreadable": '{"a":'}}
    told = answer(1, "Let me look.", call_part)
    events = written(Accepted(), TextDelta(1, "final", "Let me look."), final(told))
    assert ("TOOL_CALL_START", "c1", "city", "e1.1") in short(events)
    assert ("TOOL_CALL_ARGS", "c1", '{"a":') in short(events)
    assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}


def test_custom_events_and_the_title():
    events = written(Accepted(), CustomPart(b'{"a":[null]}'), CustomPart(b"null"), SessionChanged(SESSION))
    assert [(event["name"], event["value"]) for event in events[2:]] == [
        ("turnwise.custom", {"a": [None]}),
        ("turnwise.custom", None),
        ("turnwise.session", SESSION.wire()),
    ]


def test_what_an_agent_notes_is_reasoning():
    note = Whole(message(1, "system", "system_note", "Looked."))
    assert short(written(Accepted(), note))[2:] == thought("e1.1", "Looked.")


def test_a_stop_ends_what_is_open():
    events = written(Accepted(), question(), ThoughtDelta("Hm"), cancelled())
    assert short(events) == [*BEGUN, *thought("e1.0t1", "Hm"), ("STEP_FINISHED", "Georges"), ("RUN_FINISHED",)]
    assert events[-1]["outcome"] == {"type": "cancelled"}
    assert short(written(cancelled())) == [*BEGUN, ("STEP_FINISHED", "Georges"), ("RUN_FINISHED",)]


def test_a_failure_is_an_error_wherever_it_comes():
    failed = Failed(Code.RATE_LIMITED, refused=True, language="fr", retry_after_ms=1500, field="x")
    (event,) = written(failed)
    assert event == {
        "type": "RUN_ERROR",
        "message": "Trop de requêtes. Ralentissez.",
        "code": "rate_limited",
        "metadata": {"turnwise": {"retryable": True, "request_id": "q1", "retry_after_ms": 1500, "field": "x"}},
    }
    assert short(written(*plain_run()[:3], Failed(Code.INTERNAL, refused=False)))[-1] == ("RUN_ERROR",)


def test_a_client_that_has_a_part_of_the_run_is_told_what_it_had_before():
    kept = [{"id": "u", "role": "user", "content": "Hello"}]
    names = RunNames("t", "e1", None, "Georges", "s", "e1", snapshot=kept)
    events = written(*plain_run(), names=names)
    assert events[1] == {"type": "MESSAGES_SNAPSHOT", "messages": kept}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("e1.3", True),
        ("e1.2", False),
        ("e1.3-1", True),
        ("e1.3t12", True),
        ("e1.0t1", False),
        ("e1.", False),
        ("e1.3t", False),
        ("e1.3.4", False),
        ("e1.-3", False),
        ("e1.³", False),
        ("e2.3", False),
        ("e1", False),
        ("", False),
    ],
)
def test_which_messages_are_of_a_run(name, own):
    assert is_own(name, "e1", 3) is own


def test_text_is_json_whatever_it_holds():
    said = 'a"b\\\n\n data: \u2028 é 😀'
    (event,) = [event for event in written(*plain_run(text=said)) if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert event["delta"] == said
    whole = streamed(turn_of(*plain_run(text=said)))
    assert [one for _, one in whole] == written(*plain_run(text=said))


@pytest.mark.parametrize("seed", range(40))
def test_any_run_has_an_order_that_clients_take_and_can_be_cut_at_every_event(seed):
    rng = random.Random(seed)  # noqa: S311 - a test's choice
    payloads = some_run(rng)
    turn = turn_of(*payloads)
    whole = streamed(turn)
    order = Order()
    for _, event in whole:
        order.see(event)
    assert order.ended
    assert joined(event for _, event in streamed(turn, sizes=10_000)) == joined(event for _, event in whole)
    for sizes in (1, 3, 10_000):
        sent = streamed(turn, sizes=sizes)
        assert len({position for position, _ in sent}) == len(sent)
        for number, (position, _) in enumerate(sent):
            rest = streamed(turn, Position.read(position), sizes=rng.choice([1, 2, 10_000]))
            told = [event for _, event in [*sent[: number + 1], *rest]]
            assert json.dumps(joined(told)) == json.dumps(joined(event for _, event in whole)), position


def test_a_run_again_takes_back_what_was_told_in_the_middle_of_it():
    asked = {"id": "u1", "role": "user", "content": "Hello"}
    names = RunNames("t", "e1", None, "Georges", "s", "e1", messages_before=lambda: [dict(asked)])
    half = [
        Accepted(),
        question(),
        ThoughtDelta("Hm."),
        called(1, ("c", "add")),
        came(2, ("c", "3")),
        TextDelta(9, "final", "Half of"),
    ]
    whole = [ThoughtDelta("Aha."), called(1, ("c", "add")), came(2, ("c", "4"))]
    events = written(*half, Restarted(1), *plain_run(*whole), names=names)
    order = Order()
    for event in events:
        order.see(event)
    assert order.ended
    at = [event["type"] for event in events].index("MESSAGES_SNAPSHOT")
    # A client keeps reasoning that a snapshot leaves out.
    assert events[at]["messages"] == [asked, {"id": "e1.0t1", "role": "reasoning", "content": ""}]
    assert short(events[:at])[-2:] == [("TEXT_MESSAGE_END", "e1.9"), ("STEP_FINISHED", "Georges")]
    # What follows is what a client hears that comes now, without the beginning of the run.
    assert events[at + 1 :] == written(*plain_run(*whole), names=names)[1:]


def test_a_run_again_before_the_run_has_begun_is_the_run():
    assert written(Restarted(1), *plain_run()) == written(*plain_run())


def test_a_run_again_in_the_queue_waits_there_no_longer():
    events = short(written(Accepted(1), Restarted(1), *plain_run()))
    assert events[:5] == [
        ("RUN_STARTED",),
        ("STEP_STARTED", "queued"),
        ("STEP_FINISHED", "queued"),
        ("MESSAGES_SNAPSHOT",),
        ("STEP_STARTED", "Georges"),
    ]


def test_a_run_again_after_a_persons_answer_tells_nothing_of_what_stands_before_it():
    names = RunNames("t", "r2", None, "Georges", "s", "e1", rank=2)
    earlier = message(1, "assistant", "thought", "So")
    before = [Accepted(), TextDelta(9, "final", "Ha")]
    events = written(*before, Restarted(1), Accepted(), question(), Whole(earlier), *plain_run()[2:], names=names)
    at = [event["type"] for event in events].index("MESSAGES_SNAPSHOT")
    assert events[at + 1 :] == written(*plain_run(), names=names)[1:]


def test_a_position_in_what_was_replaced_is_refused_and_one_behind_it_goes_on():
    turn = turn_of(*plain_run()[:2], TextDelta(9, "final", "Half of"))
    (*_, (half, _)) = streamed(turn)
    turn.begin_again(1)
    for payload in plain_run():
        turn.publish(payload)
    start = Start(turn, turn.shown_from)
    with pytest.raises(Conflict):
        streamed(turn, Position.read(half), start)
    whole = streamed(turn, start=start)
    assert short(event for _, event in whole) == [*BEGUN, *SAID, *ENDED]
    for number, (position, _) in enumerate(whole[:-1], 1):
        assert streamed(turn, Position.read(position), start) == whole[number:]
