import json
from uuid import UUID

import pytest

from agentic_backend.events import call_part, text_part
from agentic_backend.llm.prompt import EarlierCall, HistoryItem
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
)
from agentic_backend.surfaces.openai.response_events import OF_A_RERUN, ResponseEvents
from agentic_backend.surfaces.openai.response_object import Requested, ResponseId, ResponseObject
from backend_kit.wire import Code, dumps
from tests.agentic_backend.surfaces.openai.test_chat import (
    ASKED,
    LINK,
    PAGE,
    SESSION,
    SPENT,
    TOLD_QUESTION,
    final,
    message,
    said,
    step,
)
from tests.agentic_backend.surfaces.openai.told import joined

NAME = ResponseId(str(UUID(int=1)), str(UUID(int=2)))
REQUESTED = Requested("Georges", 5)
QUESTION = step(0, "user", "final", text_part("What?"))


def result(rank, content, *, ok=True, call="c"):
    return step(rank, "tool", "tool_result", {"type": "tool_result", "call_id": call, "ok": ok, "content": content})


def called(rank, *calls):
    return step(rank, "assistant", "tool_call", *(call_part(call, "search", {"q": 1}, "") for call in calls))


def told(*payloads, name=NAME, first=0, after=-1):
    """The events of a response, as its client reads them."""
    events = ResponseEvents(ResponseObject(name, REQUESTED), PAGE, first)
    frames = b"".join(event.frame(after) for payload in payloads for event in events.take(payload)).decode()
    heard = []
    for block in frames.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        heard.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {heard[-1]['type']}"
    return heard


def kinds(heard):
    return [event["type"].removeprefix("response.") for event in heard]


def output(*payloads, **how):
    return told(*payloads, **how)[-1]["response"]["output"]


MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]


def test_an_answer_is_one_message():
    heard = told(Accepted(), QUESTION, *said("A turn."), final("A turn."))
    assert kinds(heard) == ["created", "in_progress", *MESSAGE, "completed"]
    assert [event["sequence_number"] for event in heard] == [0, 1, 2, 3, 10, 11, 12, 13, 14]
    created, done = heard[0]["response"], heard[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert (done["id"], done["status"], done["created_at"], done["model"]) == (str(NAME), "completed", 5, "Georges")
    assert done["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    [item] = done["output"]
    assert item == heard[-2]["item"]
    assert (item["phase"], item["content"][0]["text"]) == ("final_answer", "A turn.")
    assert heard[2]["item"]["id"] == heard[4]["item_id"] == item["id"]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_an_answer_that_was_cut_short_is_incomplete(reason):
    end = told(*said("A"), final("A", reason=reason))[-1]
    assert (end["type"], end["response"]["status"]) == ("response.incomplete", "incomplete")
    words = {"length": "max_output_tokens", "content_filter": "content_filter"}
    assert end["response"]["incomplete_details"] == {"reason": words[reason]}


def test_usage_that_no_model_reported_is_null():
    assert told(*said("A"), final("A", spent=None))[-1]["response"]["usage"] is None


STEPS = (
    Accepted(1),
    Accepted(),
    QUESTION,
    ThoughtDelta("I "),
    ThoughtDelta("look."),
    step(1, "assistant", "thought", text_part("I look."), extras={"reasoning": True}),
    *said("Let ", "me ", "see.", rank=2),
    step(2, "assistant", "thought", text_part("Let me see.")),
    called(3, "c", "d"),
    result(4, {"hits": []}, call="d"),
    result(5, "none", ok=False),
    step(6, "system", "system_note", text_part("Looked.")),
    Cited([]),
    CustomPart(b"1"),
    GraphPart("values", (), b"{}"),
    SpokenBy(7, "a", "b", 1, ()),
    *said("A ", "turn ", "[1].", rank=7),
    final("A turn [1].", LINK, rank=7),
)
AS_HISTORY_HAS_IT = (
    Accepted(),
    QUESTION,
    step(1, "assistant", "thought", text_part("I look."), extras={"reasoning": True}),
    step(2, "assistant", "thought", text_part("Let me see.")),
    called(3, "c", "d"),
    result(4, {"hits": []}, call="d"),
    result(5, "none", ok=False),
    step(6, "system", "system_note", text_part("Looked.")),
    Cited([]),
    TextDelta(7, "final", "A turn [1]."),
    STEPS[-1],
)


def test_steps_and_reasoning_are_items_in_their_order():
    items = output(*STEPS)
    assert [item["type"] for item in items] == [
        *("reasoning", "message", "mcp_call", "mcp_call", "reasoning", "message")
    ]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "I look."}]
    assert (items[1]["phase"], items[1]["content"][0]["text"]) == ("commentary", "Let me see.")
    failed, found = items[2:4]
    assert (failed["status"], failed["error"]["content"], failed["output"]) == ("failed", "none", None)
    assert (found["status"], found["output"], found["name"]) == ("completed", '{"hits":[]}', "search")
    assert found["arguments"] == '{"q":1}'
    [cited] = items[5]["content"][0]["annotations"]
    assert (cited["type"], cited["title"], cited["url"]) == (
        "url_citation",
        "Handbook",
        f"{PAGE}/documents/d1#chunk=c1",
    )
    assert "A turn [1]."[cited["start_index"] : cited["end_index"]] == "[1]"
    assert len({item["id"] for item in items}) == len(items)


def test_history_tells_the_same_events_under_the_same_numbers():
    assert joined(told(*STEPS)) == told(*AS_HISTORY_HAS_IT)


def test_behind_any_number_comes_what_is_left():
    whole = told(*STEPS)
    for at, event in enumerate(whole):
        after = event["sequence_number"]
        assert joined(whole[: at + 1] + told(*AS_HISTORY_HAS_IT, after=after)) == joined(whole), after
    for after in range(whole[-1]["sequence_number"] + 1):
        rest = told(*STEPS, after=after)
        assert told(*AS_HISTORY_HAS_IT, after=after) == joined(rest), after
        assert all(event["sequence_number"] > after for event in rest)


def test_a_rerun_has_numbers_of_its_own():
    numbers = [event["sequence_number"] for event in told(*said("A"), final("A"), first=1000)]
    assert numbers[0] == 1000
    assert numbers == sorted(set(numbers))


def test_reasoning_in_the_middle_of_a_text_is_told_behind_it():
    deltas = (*said("A "), ThoughtDelta("Is "), ThoughtDelta("it?"), *said("turn."), ThoughtDelta("Yes."))
    kept = message(1, "assistant", "final", text_part("A turn."), extras={"late_thoughts": "Is it?\nYes."})
    live = told(*deltas, Final((kept,), SESSION, b"[]", 0.0, "none"))
    assert [item["type"] for item in live[-1]["response"]["output"]] == ["message", "reasoning"]
    assert live[-1]["response"]["output"][1]["summary"][0]["text"] == "Is it?\nYes."
    assert joined(live) == told(*said("A turn."), Final((kept,), SESSION, b"[]", 0.0, "none"))


def test_reasoning_behind_a_text_that_was_not_the_answer_is_told_once():
    thought = step(1, "assistant", "thought", text_part("A "))
    reasoned = step(2, "assistant", "thought", text_part("Is it?"), extras={"reasoning": True})
    end = (called(3, "c"), result(4, "yes"), *said("B", rank=5), final("B", rank=5))
    live = told(*said("A "), ThoughtDelta("Is "), ThoughtDelta("it?"), thought, reasoned, *end)
    assert [item["type"] for item in live[-1]["response"]["output"]] == ["message", "reasoning", "mcp_call", "message"]
    assert joined(live) == told(thought, reasoned, *end)


def test_a_text_that_no_delta_had_comes_with_the_end():
    assert joined(told(*said("A "), final("A turn."))) == told(final("A turn."))
    other = told(*said("A guess"), final("A turn."))
    assert other[-1]["response"]["output"][0]["content"][0]["text"] == "A turn."
    assert other[-1]["sequence_number"] == told(final("A turn."))[-1]["sequence_number"]


def test_an_answer_without_text_says_nothing():
    assert output(TextDelta(1, "final", ""), final("")) == []


def test_calls_of_the_clients_tools_are_function_calls():
    end = final("", call_part("c1", "clock", {"zone": "UTC"}, ""), call_part("c2", "clock", None, "{"))
    heard = told(end)
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(heard) == ["created", "in_progress", *call, *call, "completed"]
    first, second = heard[-1]["response"]["output"]
    assert (first["call_id"], first["name"], first["arguments"], first["status"]) == (
        *("c1", "clock", '{"zone":"UTC"}', "completed"),
    )
    assert second["arguments"] == "{"


def test_a_question_to_a_person_is_the_end_of_a_response_and_its_call_is_left_open():
    asked = Awaiting(ASKED, (message(0, "user", "final", text_part("What?")),), SESSION, SPENT)
    heard = told(QUESTION, called(1, "c"), asked)
    call, question = heard[-1]["response"]["output"]
    assert (heard[-1]["type"], call["status"]) == ("response.completed", "incomplete")
    assert heard[-2]["item"] == call
    assert question["content"][0]["text"] == TOLD_QUESTION
    assert heard[-1]["response"]["usage"]["total_tokens"] == 10
    assert [item["type"] for item in output(QUESTION, Awaiting({}, (), SESSION))] == []


def test_what_comes_before_an_answer_of_a_person_is_another_response():
    decided = step(2, "user", "observation", text_part("Yes"))
    name = ResponseId(NAME.session_id, NAME.exchange_id, 2)
    heard = told(Accepted(), QUESTION, called(1, "c"), decided, result(3, "kept"), final("Done.", rank=4), name=name)
    call, answer = heard[-1]["response"]["output"]
    assert (call["name"], call["output"], answer["content"][0]["text"]) == ("tool", "kept", "Done.")
    assert answer["id"].startswith(f"msg_{name.key}_")


def test_a_stop_and_a_failure_keep_what_was_said():
    stopped = told(*said("A "), Cancelled((), SESSION))[-1]
    assert (stopped["type"], stopped["response"]["status"]) == ("response.incomplete", "cancelled")
    assert stopped["response"]["output"][0]["content"][0]["text"] == "A "
    failed = told(*said("A "), Failed(Code.LLM_TIMEOUT, refused=False))[-1]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "llm_timeout"
    assert failed["response"]["output"][0]["content"][0]["text"] == "A "


def test_a_response_that_runs_is_told_as_far_as_it_is():
    events = ResponseEvents(ResponseObject(NAME, REQUESTED), PAGE)
    for payload in STEPS[:5]:
        events.take(payload)
    assert events.as_it_is("in_progress")["output"][0]["summary"] == [{"type": "summary_text", "text": "I look."}]
    for payload in STEPS[5:7]:
        events.take(payload)
    now = json.loads(dumps(events.as_it_is("in_progress")))
    assert (now["status"], now["output"][1]["status"]) == ("in_progress", "in_progress")
    assert now["output"][1]["content"][0]["text"] == "Let "
    for payload in STEPS[7:]:
        events.take(payload)
    assert events.as_it_is("in_progress") == events.response


def test_what_a_response_was_asked_with_is_noted_and_read_again():
    items = (
        HistoryItem("user", "a"),
        HistoryItem("assistant", "", calls=(EarlierCall("c", "f", "{}"),)),
        HistoryItem("tool", "b", call_id="c"),
    )
    asked = Requested(
        *("Georges", 5, "resp_1", "conv", "Be brief."),
        background=True,
        metadata={"a": "b"},
        before=items,
        answers="So?",
    )
    note = json.loads(dumps(asked.note()))
    assert Requested.noted(note["response"]) == asked
    assert Requested.noted(json.loads(dumps(REQUESTED.note()))["response"]) == REQUESTED


def test_of_too_much_it_is_noted_that_it_was_too_much():
    much = Requested("Georges", 5, instructions="Be brief.", before=(HistoryItem("user", "x" * 70_000),))
    noted = Requested.noted(much.note()["response"])
    assert (noted.before, noted.instructions) == (None, "Be brief.")
    noted = Requested.noted(Requested("Georges", 5, instructions="x" * 70_000).note()["response"])
    assert (noted.before, noted.instructions) == ((), None)


RUN = (Accepted(), QUESTION, *said("Hi"), final("Hi"))


@pytest.mark.parametrize("runs", [1, 3])
def test_a_run_again_before_anything_was_said_goes_on_with_the_numbers_of_that_run(runs):
    whole = told(Restarted(runs), *RUN, first=runs * OF_A_RERUN)
    assert [event["type"] for event in whole] == [event["type"] for event in told(*RUN)]
    events = told(Accepted(2), QUESTION, Restarted(runs), *RUN)
    assert events == [*told(Accepted(2)), *whole[2:]]
    assert [event["sequence_number"] for event in events[:3]] == [0, 1, runs * OF_A_RERUN + 2]


@pytest.mark.parametrize("before", [said("Half of"), [ThoughtDelta("Hm.")], [called(1, "c")]])
def test_what_was_said_ends_with_an_error_where_the_turn_runs_again(before):
    events = ResponseEvents(ResponseObject(NAME, REQUESTED), PAGE)
    for payload in (Accepted(), QUESTION, *before):
        events.take(payload)
    number = events.last + 1
    (end,) = events.take(Restarted(1))
    assert events.over
    kind, data = end.frame().decode().strip().split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "sequence_number": number,
        "code": "draining",
        "message": "The service is restarting. Try again.",
        "param": None,
    }


def test_a_response_to_a_persons_answer_leaves_out_again_what_stands_before_it():
    name = ResponseId(NAME.session_id, NAME.exchange_id, 2)
    decided = step(2, "user", "observation", text_part("Yes"))
    earlier = step(1, "assistant", "thought", text_part("So."))
    on = (Accepted(), QUESTION, earlier, decided, *said("Hi", rank=3), final("Hi", rank=3))
    events = told(Accepted(), decided, Restarted(1), *on, name=name)
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["Hi"]
