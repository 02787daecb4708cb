"""What the events of a turn are as a run of LangGraph's: each type of them, and a run that is cut at every event."""

import asyncio
import json
import random
from dataclasses import replace

import pytest

from agentic_backend.errors import BadRequest, HistoryUnavailable
from agentic_backend.session.stream import (
    Accepted,
    Cancelled,
    CustomPart,
    Failed,
    Final,
    GraphPart,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.surfaces.langgraph.messages import NOTE
from agentic_backend.surfaces.langgraph.stream import MODES, Place, RunEvents, RunValues, RunView
from backend_kit.wire import Code
from tests.agentic_backend.surfaces.agui.turns import (
    QUESTION,
    SESSION,
    answer,
    awaiting,
    called,
    came,
    cancelled,
    final,
    message,
    plain_run,
    question,
    some_run,
    turn_of,
)

ALL = frozenset(MODES)
VIEW = RunView("e1", "s", "e1", modes=ALL)
BASE = b'{"id":"before"}'


async def _base(_below, _behind):
    return BASE


def pieces(text):
    """Ids, names and data of the events in a stream."""
    found = []
    for one in text.decode().split("\n\n"):
        if one:
            fields = dict(line.split(": ", 1) for line in one.split("\n"))
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


def sent(turn, view=VIEW, place=None, sizes=1, load=_base):
    """The events of a run of a turn; at most so many characters are joined."""
    stream, at, text = RunEvents(view, load, place), turn.shown_from, b""
    while at < len(turn.events) and not stream.over:
        event, count = turn.events.joined(at, sizes)
        text += stream.write(turn, event)
        if stream.owed is not None:
            text += asyncio.run(stream.owed())
        at += count
    return pieces(text)


def short(events):
    """Names, and what tells each event of its kind apart."""
    return [(name, _short(name, data)) for _, name, data in events]


def _short(name, data):
    if name == "messages":
        return data[0]["type"], data[0]["id"], data[0]["content"]
    if name == "updates":
        ((node, update),) = data.items()
        return (node, [one["id"] for one in update["messages"]]) if node != "__interrupt__" else (node, update[0]["id"])
    if name == "values":
        return [one["id"] for one in data["messages"]]
    return data


def test_a_run_says_its_question_its_text_and_its_end():
    events = sent(turn_of(*plain_run()))
    assert short(events) == [
        ("metadata", {"run_id": "e1", "attempt": 1}),
        ("values", ["before", "e1.0"]),
        ("messages", ("AIMessageChunk", "e1.9", "Hi")),
        ("messages", ("AIMessageChunk", "e1.9", "")),
        ("updates", ("agent", ["e1.9"])),
        ("values", ["before", "e1.0", "e1.9"]),
        ("end", None),
    ]
    about = events[2][2][1]
    assert about == {"langgraph_node": "agent", "langgraph_step": 1, "run_id": "e1", "thread_id": "s"}


def test_only_what_was_asked_for_is_sent_and_the_ids_stay():
    turn = turn_of(*plain_run())
    everything = {number: (name, data) for number, name, data in sent(turn)}
    some = sent(turn, RunView("e1", "s", "e1", modes=frozenset(("messages-tuple",))))
    assert [name for _, name, _ in some] == ["metadata", "messages", "messages", "end"]
    assert all(everything[number] == (name, data) for number, name, data in some)


def test_calls_of_tools_belong_to_the_text_before_them():
    steps = [
        TextDelta(1, "final", "I look."),
        Whole(message(1, "assistant", "thought", "I look.")),
        called(2, ("c1", "add")),
        called(3, ("c2", "sub")),
        came(4, ("c1", "5"), ("c2", "6")),
    ]
    events = sent(turn_of(*plain_run(*steps)))
    assert short(events)[2:-5] == [
        ("messages", ("AIMessageChunk", "e1.1", "I look.")),
        ("messages", ("AIMessageChunk", "e1.1", "")),
        ("messages", ("AIMessageChunk", "e1.1", "")),
        ("updates", ("agent", ["e1.1"])),
        ("messages", ("tool", "e1.4", "5")),
        ("updates", ("tools", ["e1.4"])),
        ("messages", ("tool", "e1.4-1", "6")),
        ("updates", ("tools", ["e1.4-1"])),
        ("values", ["before", "e1.0", "e1.1", "e1.4", "e1.4-1"]),
    ]
    chunks = [data[0].get("tool_call_chunks", ()) for _, name, data in events if name == "messages"]
    called_ = [one for chunk in chunks for one in chunk]
    assert [(one["id"], one["name"], one["args"], one["index"]) for one in called_] == [
        ("c1", "add", '{"a":1}', 0),
        ("c2", "sub", '{"a":1}', 1),
    ]
    (said,) = [one for one in events[-2][2]["messages"] if one["id"] == "e1.1"]
    assert [(call["id"], call["args"]) for call in said["tool_calls"]] == [("c1", {"a": 1}), ("c2", {"a": 1})]
    result = next(one for one in events[-2][2]["messages"] if one["id"] == "e1.4")
    assert (result["tool_call_id"], result["name"], result["status"]) == ("c1", "add", "success")


def test_a_text_that_history_tells_whole_comes_whole():
    steps = [Whole(message(1, "assistant", "thought", "I look.")), called(2, ("c1", "add"))]
    assert ("messages", ("ai", "e1.1", "I look.")) in short(sent(turn_of(*plain_run(*steps))))
    told = sent(turn_of(Accepted(), question(), final(question().message, answer(9, "Hi"))))
    assert ("messages", ("ai", "e1.9", "Hi")) in short(told)


def test_reasoning_is_no_text():
    events = sent(turn_of(*plain_run(ThoughtDelta("Hm."), ThoughtDelta(" So."))))
    thoughts = [data[0] for _, name, data in events if name == "messages"][:2]
    assert [(one["id"], one["content"], one["additional_kwargs"]) for one in thoughts] == [
        ("e1.t1", "", {"reasoning_content": "Hm."}),
        ("e1.t1", "", {"reasoning_content": " So."}),
    ]
    kept = Whole(message(1, "assistant", "thought", "Hm. So.", {"extras": {"reasoning": True}}))
    values = sent(turn_of(*plain_run(ThoughtDelta("Hm. So."), kept)))[-2][2]["messages"]
    assert values[-1]["additional_kwargs"] == {"reasoning_content": "Hm. So."}


def test_an_answer_says_what_it_cites_what_it_took_and_how_it_ended():
    link = {"type": "link", "kind": "citation", "title": "A", "href": "/a"}
    use = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    told = answer(9, "Hi", link, {"type": "chart"}, finish_reason="stop", model="m", token_usage=use)
    events = sent(turn_of(Accepted(), question(), TextDelta(9, "final", "Hi"), final(question().message, told)))
    closing, whole = events[3][2][0], events[-2][2]["messages"][-1]
    for one in (closing, whole):
        assert one["usage_metadata"] == use
        assert one["response_metadata"] == {"finish_reason": "stop", "model_name": "m"}
        assert one["additional_kwargs"] == {"citations": [link], "parts": [{"type": "chart"}]}
    assert (closing["content"], closing["chunk_position"], whole["content"]) == ("", "last", "Hi")


def test_what_an_agent_writes_is_custom():
    assert ("custom", {"a": 1}) in short(sent(turn_of(*plain_run(CustomPart(b'{"a":1}')))))


def test_a_question_to_a_person_ends_the_run_with_an_interrupt():
    events = sent(turn_of(Accepted(), question(), awaiting()))
    assert short(events)[-3:-1] == [("updates", ("__interrupt__", "i1")), ("values", ["before", "e1.0"])]
    (asked,) = events[-2][2]["__interrupt__"]
    assert asked["value"]["action_requests"][0]["description"] == "Allow?"
    assert asked["value"]["choices"] == QUESTION["choices"]


def _went_on(*before, note="k:1"):
    metadata = {"extras": {"note": {NOTE: {"run_id": "r2", "answers": note}}, "decision": {"answer": "yes"}}}
    decision = Whole(message(2, "user", "observation", "Yes", metadata))
    return [*before, Accepted(), decision, TextDelta(3, "final", "Done"), final(answer(3, "Done"))]


def test_an_answer_to_it_is_a_run_of_its_own():
    view = RunView("r2", "s", "e1", "k:1", ALL)
    first = [Accepted(), question(), TextDelta(1, "final", "So"), awaiting()]
    turn = turn_of(*_went_on(), human={"choice_id": "allow"}, before=turn_of(*first))
    expected = [
        ("metadata", {"run_id": "r2", "attempt": 1}),
        ("values", ["before", "e1.0"]),
        ("messages", ("AIMessageChunk", "e1.3", "Done")),
        ("messages", ("AIMessageChunk", "e1.3", "")),
        ("updates", ("agent", ["e1.3"])),
        ("values", ["before", "e1.0", "e1.3"]),
        ("end", None),
    ]
    assert short(sent(turn, view)) == expected
    assert short(sent(turn))[-2:] == [("values", ["before", "e1.0"]), ("end", None)]
    assert short(sent(turn_of(*_went_on(Accepted(), question())), view)) == expected, "as history tells it"
    alone = turn_of(*_went_on())
    assert short(sent(alone, view))[1] == ("values", ["before"]), "what came before it is in storage"


def test_the_first_run_ends_where_history_goes_on_with_the_next():
    turn = turn_of(*_went_on(Accepted(), question()))
    assert short(sent(turn)) == [
        ("metadata", {"run_id": "e1", "attempt": 1}),
        ("values", ["before", "e1.0"]),
        ("values", ["before", "e1.0"]),
        ("end", None),
    ]


def test_what_was_said_before_a_stop_is_in_the_state():
    told = answer(1, "So f", extras={"status": "interrupted"})
    turn = turn_of(
        Accepted(), question(), TextDelta(1, "final", "So f"), Cancelled((question().message, told), SESSION)
    )
    assert short(sent(turn))[-3:] == [
        ("updates", ("agent", ["e1.1"])),
        ("values", ["before", "e1.0", "e1.1"]),
        ("end", None),
    ]
    nothing = answer(1, "", extras={"status": "interrupted"})
    turn = turn_of(Accepted(), question(), Cancelled((question().message, nothing), SESSION))
    assert short(sent(turn))[-2:] == [("values", ["before", "e1.0"]), ("end", None)]


def test_a_failure_is_an_error_with_its_code():
    events = sent(turn_of(Accepted(), question(), Failed(Code.LLM_TIMEOUT, refused=False, retry_after_ms=1500)))
    error = {"error": "llm_timeout", "message": "The model did not answer in time.", "retry_after_ms": 1500}
    assert short(events)[-2:] == [("error", error), ("end", None)]


def test_a_history_that_cannot_be_read_is_an_error():
    async def broken(_below, _behind):
        raise HistoryUnavailable("away")

    events = sent(turn_of(*plain_run()), load=broken)
    assert [name for _, name, _ in events][-1] == "error"
    assert events[-1][2]["error"] == "history_unavailable"


def test_a_run_that_begins_again_says_so_and_calls_its_messages_otherwise():
    turn = turn_of(Accepted(), question(), TextDelta(1, "final", "Hel"))
    turn.begin_again(1)
    for payload in plain_run():
        turn.publish(payload)
    stream, text = RunEvents(VIEW, _base), b""
    for event in turn.events:
        text += stream.write(turn, event)
        text += asyncio.run(stream.owed()) if stream.owed else b""
    told = short(pieces(text))
    assert told[2:6] == [
        ("messages", ("AIMessageChunk", "e1.1", "Hel")),
        ("metadata", {"run_id": "e1", "attempt": 2}),
        ("values", ["before", "e1.0"]),
        ("messages", ("AIMessageChunk", "e1.9~2", "Hi")),
    ]
    assert told[-2] == ("values", ["before", "e1.0", "e1.9"])
    assert short(sent(turn, place=Place(3))) == told[3:], "who had a part of the first run gets all of the second"


def test_what_history_tells_instead_is_told_from_its_beginning():
    turn = turn_of(*plain_run())
    turn.restarted = True
    told = short(sent(turn, place=Place(2)))
    assert told[0] == ("metadata", {"run_id": "e1", "attempt": 2})
    assert ("messages", ("AIMessageChunk", "e1.9~2", "Hi")) in told


@pytest.mark.parametrize("text", ["x", "1.", "1.x", ".1", "1" * 40, "-2", "\uff11"])
def test_a_place_that_is_none_is_refused(text):
    with pytest.raises(BadRequest) as refusal:
        Place.read(text)
    assert refusal.value.field == "Last-Event-ID"


def test_places():
    assert [Place.read(one) for one in (None, "", "-1", "7", "7.2")] == [None, None, None, Place(7), Place(7, 2)]


@pytest.mark.parametrize(("values", "also"), [(b"{}", {}), (b'{"topic":"x"}', {"topic": "x"})])
def test_a_graph_may_wait_before_its_state_has_anything(values, also):
    turn = turn_of(Accepted(), question(), GraphPart("values", (), values), awaiting())
    view = replace(VIEW, graph=True)
    (last,) = [data for _, name, data in sent(turn, view) if name == "values" and "__interrupt__" in data]
    assert [one["id"] for one in last.pop("__interrupt__")] == ["i1"]
    assert last == also
    assert [one["id"] for one in result(turn, view)["__interrupt__"]] == ["i1"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (b'{"messages":["Hi"]}', ["Hi", "e1.1"]),
        (b'{"messages":null}', ["e1.1"]),
        (b"{}", ["e1.1"]),
        (b'{"messages":{"a":1}}', {"a": 1}),
        (b'{"messages":5}', 5),
    ],
)
def test_what_people_have_seen_since_is_added_to_any_state(values, expected):
    said = [Whole(message(1, "assistant", "thought", "So")), cancelled()]
    turn = turn_of(Accepted(), question(), GraphPart("values", (), values), *said)
    view = replace(VIEW, graph=True)
    for found in ([data for _, name, data in sent(turn, view) if name == "values"][-1], result(turn, view)):
        messages = found["messages"]
        if isinstance(messages, list):
            messages = [one if isinstance(one, str) else one["id"] for one in messages]
        assert messages == expected


def joined(events):
    """The events, where pieces of one message that follow each other are one."""
    told = []
    for _, name, data in events:
        last = told[-1] if told else None
        piece = name == "messages" and data[0]["type"] == "AIMessageChunk" and not data[0]["tool_call_chunks"]
        if piece and last is not None and last[0] == "piece" and last[1] == data[0]["id"]:
            last[2] += data[0]["content"]
            last[3] += data[0]["additional_kwargs"].get("reasoning_content", "")
        elif piece:
            thought = data[0]["additional_kwargs"].get("reasoning_content", "")
            told.append(["piece", data[0]["id"], data[0]["content"], thought])
        else:
            told.append([name, data])
    return told


@pytest.mark.parametrize("seed", range(40))
def test_a_run_that_is_cut_at_any_event_goes_on_there(seed):
    rng = random.Random(seed)  # noqa: S311 - a test's choice
    turn = turn_of(*some_run(rng))
    whole = sent(turn)
    for sizes in (1, 3, 10_000):
        events = sent(turn, sizes=sizes)
        assert joined(events) == joined(whole)
        assert len({number for number, _, _ in events}) == len(events)
        for cut, (number, _, _) in enumerate(events):
            rest = sent(turn, place=Place.read(number), sizes=rng.choice([1, 2, 10_000]))
            assert joined([*events[: cut + 1], *rest]) == joined(whole), number


async def _no_state(_agent_id, _end):
    return None


def result(turn, view=VIEW, load_base=_base, load_state=_no_state):
    """What waiting for a run gives."""
    values = RunValues(view, load_base, load_state)
    for event in turn.events:
        if values.owed is None:
            assert (values.write(turn, event), values.over) == (b"", False)
    said = asyncio.run(values.owed())
    assert (values.over, values.owed) == (True, None)
    return json.loads(values.heartbeat + said)


def test_the_result_of_a_run_is_its_last_state():
    assert [one["id"] for one in result(turn_of(*plain_run()))["messages"]] == ["before", "e1.0", "e1.9"]
    asked = result(turn_of(Accepted(), question(), awaiting()))
    assert [one["id"] for one in asked["__interrupt__"]] == ["i1"]
    failed = result(turn_of(Accepted(), question(), Failed(Code.INTERNAL, refused=False)))
    assert failed == {"__error__": {"error": "internal", "message": "Something went wrong on our side."}}


def test_each_run_of_an_exchange_has_values_of_its_own():
    first = [Accepted(), question(), TextDelta(1, "final", "So"), awaiting()]
    turn = turn_of(*_went_on(), human={"choice_id": "allow"}, before=turn_of(*first))
    asked, went_on = result(turn), result(turn, RunView("r2", "s", "e1", "k:1", ALL))
    assert [one["id"] for one in asked["__interrupt__"]] == ["i1"]
    assert [one["id"] for one in went_on["messages"]] == ["before", "e1.0", "e1.3"]
    # Of a run that never was there is nothing but what was said before.
    assert [one["id"] for one in result(turn, RunView("r3", "s", "e1", "k:9", ALL))["messages"]] == ["before"]


def test_a_graph_whose_state_was_not_told_has_it_read():
    async def state_of(agent_id, end):
        assert (agent_id, type(end)) == ("Georges", Final)
        return b'{"count":1}'

    graph = replace(VIEW, graph=True)
    assert result(turn_of(*plain_run()), graph, load_state=state_of) == {"count": 1}
    assert [one["id"] for one in result(turn_of(*plain_run()), graph)["messages"]] == ["before", "e1.0", "e1.9"]


def test_values_that_cannot_be_read_are_an_error():
    async def base(_below, _behind):
        raise HistoryUnavailable("away")

    said = result(turn_of(*plain_run()), load_base=base)
    assert said["__error__"]["error"] == "history_unavailable"
