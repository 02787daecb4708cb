import json

import pytest

from agentic_backend.events import ChatMessage, call_part, text_part
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    Accepted,
    Awaiting,
    Cancelled,
    Cited,
    CustomPart,
    Failed,
    Final,
    GraphPart,
    Restarted,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.surfaces.openai.answer_reader import AnswerReader, read_whole_answer
from agentic_backend.surfaces.openai.chat import DONE, Chunks, Completion
from backend_kit.wire import Code

PAGE = "https://chat.example.org"
SPENT = {"input_tokens": 7, "output_tokens": 3, "cost": 0.0, "cached_tokens": 2, "steps": []}
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
SESSION = Session("s", "ann", "Rico", "", "2026-01-01T00:00:00.000000Z")
ASKED = {
    "title": "Publish?",
    "question": "A draft.",
    "choices": [{"id": "publish", "label": "Publish"}, {"id": "drop", "label": "Drop", "description": "for good"}],
}
LINK = {"type": "link", "kind": "citation", "href": "/documents/d1#chunk=c1", "title": "Handbook", "source_id": "1"}
TOLD_QUESTION = "Publish?\n\nA draft.\n\n1. Publish\n2. Drop: for good"


def message(rank, role, channel, *parts, **metadata):
    return ChatMessage.build(
        session_id="s", exchange_id="e", rank=rank, role=role, channel=channel, parts=list(parts), metadata=metadata
    )


def step(rank, role, channel, *parts, **metadata):
    return Whole(message(rank, role, channel, *parts, **metadata))


def final(text, *parts, rank=1, reason="stop", spent=SPENT):
    extras = {} if spent is None else {"usage": spent}
    answer = message(rank, "assistant", "final", text_part(text), *parts, finish_reason=reason, extras=extras)
    return Final((answer,), SESSION, b"[]", 0.0, "none")


def said(*texts, rank=1):
    return [TextDelta(rank, "final", text) for text in texts]


def frames(*payloads, include_usage=False):
    chunks = Chunks(Completion("chatcmpl-1", "Rico", 5), AnswerReader(PAGE), include_usage=include_usage)
    sent = b"".join([chunks.opening(), *map(chunks.encode, payloads)])
    assert sent.endswith(DONE)
    lines = sent.removesuffix(DONE).decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def deltas(*payloads, **how):
    """The deltas of the chunks that have one, in their order."""
    chunks = frames(*payloads, **how)
    for chunk in chunks:
        assert {key: chunk[key] for key in ("id", "object", "created", "model")} == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": "Rico",
        }
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def text_of(key, told):
    return "".join(delta[key] for delta in told if key in delta)


def whole(*payloads):
    reasoning, end = read_whole_answer(payloads, PAGE)
    assert end.failure is None
    completion = json.loads(Completion("chatcmpl-1", "Rico", 5).whole(reasoning, end))
    assert completion["object"] == "chat.completion"
    return completion["choices"][0]["message"], completion["choices"][0]["finish_reason"], completion["usage"]


def test_an_answer_is_role_text_finish_usage_and_done():
    chunks = frames(Accepted(), *said("A ", "turn."), final("A turn."), include_usage=True)
    told = [(chunk["choices"] and chunk["choices"][0]["delta"], chunk["usage"]) for chunk in chunks]
    assert told == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "A "}, None),
        ({"content": "turn."}, None),
        ({}, None),
        ([], USAGE),
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]


def test_usage_is_sent_only_where_it_is_asked_for_and_known():
    assert all("usage" not in chunk for chunk in frames(*said("A"), final("A")))
    assert all(chunk["choices"] for chunk in frames(*said("A"), final("A", spent=None), include_usage=True))


def test_thoughts_and_steps_are_reasoning():
    events = [
        step(0, "user", "final", text_part("What?")),
        ThoughtDelta("I "),
        ThoughtDelta("look."),
        step(1, "assistant", "tool_call", call_part("c", "search", {"q": "turn"}, "")),
        step(2, "tool", "tool_result", {"type": "tool_result", "call_id": "c", "ok": True, "content": "x" * 600}),
        step(3, "tool", "tool_result", {"type": "tool_result", "call_id": "c", "ok": False, "content": "no"}),
        ThoughtDelta("So."),
        step(4, "assistant", "thought", text_part("I look."), extras={"reasoning": True}),
    ]
    cut = "x" * 500 + "…"
    reasoning = f'I look.\n\n→ search({{"q":"turn"}})\n\n← {cut}\n\n← failed: no\n\nSo.'
    told = deltas(*events, *said("Yes.", rank=5), final("Yes.", rank=5))
    assert text_of("reasoning_content", told) == reasoning
    assert text_of("content", told) == "Yes."
    assert whole(*events, *said("Yes.", rank=5), final("Yes.", rank=5))[0]["reasoning_content"] == reasoning


def test_what_was_said_before_a_step_stays_and_does_not_run_into_the_answer():
    thought = step(1, "assistant", "thought", text_part("Let me look."))
    call = step(2, "assistant", "tool_call", call_part("c", "search", {}, ""))
    events = [*said("Let me ", "look."), thought, call, *said("Found ", "it [1].", rank=3)]
    end = final("Found it [1].", LINK, rank=3)
    told = deltas(*events, end)
    streamed = text_of("content", told)
    assert streamed == "Let me look.\n\nFound it [1]."
    assert text_of("reasoning_content", told) == "→ search({})"
    citation = next(delta for delta in told if "annotations" in delta)["annotations"][0]["url_citation"]
    assert streamed[citation["start_index"] : citation["end_index"]] == "[1]"
    answer = whole(*events, end)[0]
    assert answer["content"] == "Found it [1]."
    assert answer["reasoning_content"] == "Let me look.\n\n→ search({})"
    assert answer["annotations"][0]["url_citation"]["start_index"] == 9


def test_text_that_no_delta_had_comes_with_the_end():
    assert text_of("content", deltas(final("Dropped."))) == "Dropped."
    assert text_of("content", deltas(*said("Drop"), final("Dropped."))) == "Dropped."
    assert text_of("content", deltas(*said("Hm."), final("Dropped.", rank=2))) == "Hm.\n\nDropped."


def test_citations_are_one_chunk_with_addresses_that_open_the_passages():
    elsewhere = {**LINK, "href": "https://example.org/x", "title": "", "source_id": "3"}
    unmarked = {**LINK, "source_id": "2"}
    text = "In `[1]` and [1, 3] of it."
    told = deltas(Cited([]), *said(text), final(text, LINK, unmarked, elsewhere))
    assert [delta for delta in told if "annotations" in delta] == [told[2]]
    citations = [annotation["url_citation"] for annotation in told[2]["annotations"]]
    assert {annotation["type"] for annotation in told[2]["annotations"]} == {"url_citation"}
    places = [text[citation["start_index"] : citation["end_index"]] for citation in citations]
    assert places == ["[1, 3]", "", "[1, 3]"]
    assert [citation["url"] for citation in citations] == [
        f"{PAGE}/documents/d1#chunk=c1",
        f"{PAGE}/documents/d1#chunk=c1",
        "https://example.org/x",
    ]
    assert [citation["title"] for citation in citations] == ["Handbook", "Handbook", "https://example.org/x"]


def test_calls_of_the_clients_tools_come_with_their_index():
    calls = [call_part("c1", "clock", {"zone": "UTC"}, ""), call_part("c2", "clock", None, '{"zo')]
    end = final("", *calls, reason="tool_calls")
    chunks = frames(end)
    assert [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks[1:3]] == [
        [{"index": 0, "id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}],
        [{"index": 1, "id": "c2", "type": "function", "function": {"name": "clock", "arguments": '{"zo'}}],
    ]
    assert chunks[3]["choices"][0]["finish_reason"] == "tool_calls"
    message, reason, _ = whole(end)
    assert (message["content"], reason, len(message["tool_calls"])) == (None, "tool_calls", 2)


def test_a_question_to_a_person_is_an_answer():
    asks = Awaiting(ASKED, (), SESSION, SPENT)
    chunks = frames(*said("Well."), asks, include_usage=True)
    assert text_of("content", [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]) == f"Well.\n\n{TOLD_QUESTION}"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"] == USAGE
    assert whole(asks) == (
        {"role": "assistant", "content": TOLD_QUESTION, "refusal": None, "annotations": []},
        "stop",
        USAGE,
    )


@pytest.mark.parametrize(("reason", "theirs"), [("length", "length"), ("content_filter",) * 2, ("other", "stop")])
def test_reasons_to_end_are_theirs(reason, theirs):
    assert whole(final("A", reason=reason))[1] == theirs


def test_a_failure_in_the_stream_is_an_error_after_what_was_spent():
    broken = message(1, "assistant", "final", text_part("A"), extras={"usage": SPENT})
    failed = Failed(Code.LLM_TIMEOUT, refused=False, partial=True, messages=(broken,), session=SESSION)
    chunks = frames(*said("A"), failed, include_usage=True)
    assert chunks[2]["usage"] == USAGE
    assert chunks[3] == {
        "error": {
            "message": "The model did not answer in time.",
            "type": "server_error",
            "param": None,
            "code": "llm_timeout",
        }
    }
    stopped = frames(*said("A"), Cancelled((), SESSION))[-1]["error"]
    assert (stopped["code"], stopped["type"]) == ("cancelled", "conflict_error")


def test_what_this_protocol_has_no_place_for_is_left_out():
    graph = GraphPart("values", (), b"{}"), SpokenBy(1, "a", "b", 1, ())
    assert len(frames(CustomPart(b"1"), *graph, Cited([]), final(""))) == 2


@pytest.mark.parametrize("text", ['"\\\n\u2028', "é🙂", "\x01"])
def test_any_text_is_one_line_of_json(text):
    assert text_of("content", deltas(*said(text), final(text))) == text


BEGIN_AGAIN = (Restarted(1), Accepted())


def test_a_turn_that_runs_again_before_it_has_said_anything_is_told_as_any_other():
    asked = step(0, "user", "final", text_part("What?"))
    run = (asked, *said("Hi"), final("Hi"))
    assert frames(Accepted(2), asked, *BEGIN_AGAIN, *run) == frames(*BEGIN_AGAIN, *run) == frames(Accepted(), *run)


@pytest.mark.parametrize(
    "before",
    [
        said("Half of"),
        [ThoughtDelta("Hm.")],
        [step(1, "assistant", "tool_call", call_part("c", "search", {"q": 1}, ""))],
    ],
    ids=["text", "reasoning", "step"],
)
def test_what_was_said_is_not_continued_with_another_run(before):
    chunks = Chunks(Completion("chatcmpl-1", "Rico", 5), AnswerReader(PAGE), include_usage=True)
    for payload in (Accepted(), *before):
        chunks.encode(payload)
        assert not chunks.over
    end = chunks.encode(Restarted(1))
    assert chunks.over
    assert end.endswith(DONE)
    (error,) = end.removesuffix(DONE).decode().strip().split("\n\n")
    assert json.loads(error.removeprefix("data: ")) == {
        "error": {
            "message": "The service is restarting. Try again.",
            "type": "server_error",
            "param": None,
            "code": "draining",
        }
    }
