"""What of a RunAgentInput counts, and how a fault in it is named."""

import json

import pytest

from agentic_backend.errors import BadRequest, MessageTooLong
from agentic_backend.surfaces.agui.people import interrupts
from agentic_backend.surfaces.agui.reading import read_input
from tests.agentic_backend.surfaces.agui.turns import QUESTION

USER = {"id": "u", "role": "user", "content": "Hello"}


def read(*messages, most=1000, **more):
    body = {"threadId": "t", "runId": "r1", "messages": list(messages) or [USER], **more}
    return read_input(json.dumps(body).encode(), most)


def fault(**changes):
    with pytest.raises((BadRequest, MessageTooLong)) as refusal:
        read_input(json.dumps({"threadId": "t", "runId": "r1", "messages": [USER], **changes}).encode(), 1000)
    return refusal.value.field


def calls(*ids):
    return [{"id": one, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}} for one in ids]


def told(run):
    return [(item.role, item.text, [call.id for call in item.calls], item.call_id) for item in run.given]


def test_the_least_of_it_is_enough():
    run = read()
    assert (run.thread_id, run.run_id, run.question, run.given, run.tools) == ("t", "r1", "Hello", (), ())
    assert (run.if_busy, run.on_disconnect, run.answer, run.snapshot) == ("replace", "continue", None, None)
    nothing = dict.fromkeys(["tools", "context", "forwardedProps", "resume", "parentRunId", "state"])
    assert read(**nothing) == run


def test_the_messages_before_the_question_are_the_history():
    run = read(
        {"id": "s", "role": "system", "content": "Be brief."},
        {"id": "d", "role": "developer", "content": "Be kind."},
        {
            "id": "1",
            "role": "user",
            "content": [{"type": "text", "text": "A"}, {"type": "image"}, {"type": "text", "text": "B"}],
        },
        {"id": "2", "role": "reasoning", "content": "Hm."},
        {"id": "3", "role": "assistant", "content": "I look.", "toolCalls": calls("c1", "c2", "lost")},
        {"id": "4", "role": "tool", "content": [{"type": "text", "text": "5"}], "toolCallId": "c1"},
        {"id": "5", "role": "tool", "content": "", "error": "broken", "toolCallId": "c2"},
        {"id": "6", "role": "tool", "content": "of nothing", "toolCallId": "c9"},
        {"id": "7", "role": "activity", "content": {"a": 1}},
        {"id": "8", "role": "assistant", "toolCalls": calls("lost too")},
        {"id": "9", "role": "assistant", "content": "Done."},
        USER,
        context=[{"description": "Place", "value": "Oslo"}, {"description": "", "value": "Night"}],
    )
    assert run.question == "Hello"
    assert told(run) == [
        ("system", "Place: Oslo\nNight", [], ""),
        ("system", "Be brief.", [], ""),
        ("system", "Be kind.", [], ""),
        ("user", "A\nB", [], ""),
        ("assistant", "I look.", ["c1", "c2"], ""),
        ("tool", "5", [], "c1"),
        ("tool", "broken", [], "c2"),
        ("assistant", "Done.", [], ""),
    ]
    assert run.taken == {"c1", "c2", "lost", "lost too"}


def test_results_at_the_end_are_what_the_agent_goes_on_from():
    made = {"id": "1", "role": "assistant", "toolCalls": calls("c1")}
    run = read(
        USER,
        made,
        {"id": "2", "role": "tool", "content": "5", "toolCallId": "c1"},
        {"id": "3", "role": "activity", "content": {}},
    )
    assert run.question == ""
    assert [item.role for item in run.given] == ["user", "assistant", "tool"]


def test_tools_have_the_shape_of_functions():
    run = read(
        tools=[
            {"name": "city"},
            {"name": "at", "description": "Where", "parameters": {"type": "object"}, "metadata": {}},
        ]
    )
    assert run.tools == (
        {"name": "city", "description": "", "parameters": {"type": "object", "properties": {}}},
        {"name": "at", "description": "Where", "parameters": {"type": "object"}},
    )


def test_options_come_under_our_own_name():
    ours = {
        "runtime_context": {"language": "fr", "model": "m", "theirs": 1},
        "if_busy": "queue",
        "on_disconnect": "cancel",
    }
    run = read(forwardedProps={"turnwise": ours, "runtime_context": 7})
    assert (run.if_busy, run.on_disconnect, run.context.language, run.context.model) == ("queue", "cancel", "fr", "m")
    for theirs in (None, 1, "x", [], {"a": 1}):
        assert read(forwardedProps=theirs) == read()


def test_what_a_client_has_of_the_run_is_taken_out():
    own = [
        {"id": "r1.1", "role": "reasoning", "content": "Hm", "encryptedValue": "x"},
        {"id": "r1.2", "role": "assistant", "content": "Hel", "toolCalls": calls("c1")},
        {"id": "r1.3", "role": "tool", "content": "5", "toolCallId": "c1"},
    ]
    run = read(USER, *own)
    assert (run.question, run.given, run.taken) == ("Hello", (), frozenset())
    assert run.snapshot == [USER, {"id": "r1.1", "role": "reasoning", "content": ""}]
    assert run.messages_before() == run.snapshot
    assert read(USER).messages_before() == [USER]
    assert read(USER, {"id": "r2.1", "role": "assistant", "content": "x"}, {**USER, "id": "v"}).snapshot is None


def test_an_answer_is_read_with_what_the_client_has_of_the_run_behind_it():
    (interrupt,) = interrupts(QUESTION, "e1", "Hello", 4, {})
    entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
    before = {"id": "e1.1", "role": "assistant", "content": "So", "toolCalls": calls("c1~2")}
    behind = {"id": "e1.4", "role": "tool", "content": "5", "toolCallId": "c1~2"}
    run = read(USER, before, behind, resume=[entry])
    assert run.answer is not None
    assert (run.answer.exchange, run.question, run.given) == ("e1", "", ())
    assert run.snapshot == run.messages_before() == [USER, before]
    assert run.calls == {"c1": "c1~2"}


def test_a_question_that_was_abandoned_for_a_new_message_is_not_answered():
    (interrupt,) = interrupts(QUESTION, "e1", "Hello", 4, {})
    cancelled = {"interruptId": interrupt["id"], "status": "cancelled"}
    assert read(USER, resume=[cancelled]).answer is not None
    anew = read(USER, {**USER, "id": "v", "content": "Never mind"}, resume=[cancelled])
    assert (anew.answer, anew.question) == (None, "Never mind")
    resolved = {**cancelled, "status": "resolved", "payload": True}
    assert read(USER, {**USER, "content": "Never mind"}, resume=[resolved]).answer is not None


FAULTS = {
    "context": {"context": [{"value": "x"}] * 1001},
    "threadId": {"threadId": 5},
    "runId": {"runId": "\x00"},
    "messages": {"messages": {}},
    "messages[0]": {"messages": ["Hello"]},
    "messages[0].role": {"messages": [{"id": "a"}]},
    "messages[1].toolCalls[0].function.name": {
        "messages": [USER, {"role": "assistant", "toolCalls": [{"id": "c", "function": {}}]}]
    },
    "messages[0].toolCalls": {"messages": [{"role": "assistant", "toolCalls": 1}]},
    "messages[0].content[1].text": {
        "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": 1}]}]
    },
    "messages[0].content": {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    "messages[1].content": {"messages": [USER, {"role": "user", "content": "x" * 1001}]},
    "tools[1].name": {"tools": [{"name": "a"}, {"description": "b"}]},
    "tools[0].parameters": {"tools": [{"name": "a", "parameters": {"a\x00": 1}}]},
    "tools": {"tools": [{"name": "a"}] * 129},
    "context[0]": {"context": [1]},
    "resume[0].payload": {"resume": [{"interruptId": "x", "status": "resolved", "payload": "x" * 1001}]},
    "resume[1].interruptId": {"resume": [{"interruptId": "x", "status": "resolved"}, {"status": "resolved"}]},
    "forwardedProps.turnwise.runtime_context.search_policy": {
        "forwardedProps": {"turnwise": {"runtime_context": {"search_policy": "all"}}}
    },
}


@pytest.mark.parametrize(("field", "changes"), FAULTS.items(), ids=FAULTS.keys())
def test_a_fault_names_its_field(field, changes):
    assert fault(**changes) == field


def test_an_input_has_so_many_messages():
    assert fault(messages=[USER] * 4001) == "messages"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"threadId": "\\ud800"}', b"[" * 100_000]
)
def test_what_is_no_object_is_refused(body):
    with pytest.raises(BadRequest):
        read_input(body, 1000)
