"""What the turns of a thread are as events of its stream: their numbers, wherever a client was cut off."""

import asyncio
import json

import pytest

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.session.models import Session
from agentic_backend.session.past_exchanges import StoredExchange
from agentic_backend.session.stream import (
    RUN_SEQS,
    Accepted,
    Ask,
    Cancelled,
    CustomPart,
    Failed,
    GraphPart,
    Restarted,
    TextDelta,
    ThoughtDelta,
    Turn,
    Whole,
)
from agentic_backend.surfaces.langgraph.messages import NOTE
from agentic_backend.surfaces.langgraph.thread_events import (
    CHANNELS,
    RUN_BITS,
    Before,
    EventsWanted,
    ThreadWriter,
    has_end,
    rank_of,
    seq_before,
)
from agentic_backend.surfaces.langgraph.thread_join import JoinWriter
from backend_kit.wire import Code
from tests.agentic_backend.surfaces.agui.turns import (
    QUESTION,
    SESSION,
    answer,
    awaiting,
    called,
    came,
    decided,
    final,
    message,
    plain_run,
    question,
    turn_of,
)

SO = message(1, "assistant", "thought", "So")
LINK = {"type": "link", "kind": "citation", "href": "/d/1", "title": "One", "source_id": "1", "document_uid": "u"}


async def _before(_below, _behind):
    return Before(b'{"id":"before"}', 3, 7)


def writer(since=0, channels=CHANNELS, load=_before, namespaces=None):
    return ThreadWriter("s", EventsWanted.of(channels, namespaces), load, since, clock=lambda: 1.0)


def told(*turns, since=0, by=None):
    """The events of turns, one behind the other."""
    by, text = by or writer(since), b""
    for turn in turns:
        at = turn.shown_from
        while at < len(turn.events) and not by.over:
            event, count = turn.events.joined(at, 0)
            text += by.write(turn, event)
            if by.owed is not None:
                text += asyncio.run(by.owed())
            at += count
    found = []
    for one in text.decode().split("\n\n"):
        if one:
            fields = dict(line.split(": ", 1) for line in one.split("\n"))
            found.append((fields, json.loads(fields["data"])))
    assert all((one["id"], one["event"]) == (str(said["seq"]), said["method"]) for one, said in found if "id" in one)
    return [said for _, said in found]


def short(events):
    return [(one["method"], _short(one["method"], one["params"]["data"])) for one in events]


def _short(method, data):
    if method == "values":
        return [one["id"] for one in data["messages"]]
    if method == "updates":
        return data["node"], [one["id"] for one in data["values"]["messages"]]
    if method == "checkpoints":
        return data["step"]
    if method == "input.requested":
        return data["interrupt_id"]
    if method == "messages":
        block = data.get("content") or data.get("delta") or {}
        return data["event"], data.get("id") or block.get("text") or block.get("reasoning") or block.get("name") or ""
    return data.get("event", data)


def history_of(*messages):
    """The exchange as history tells it."""
    turn = Turn(Ask("s", "", "", "e1", "ada", 1.0))
    StoredExchange(tuple(messages)).publish(turn, SESSION)
    return turn


def wide_run():
    """A run with everything in it."""
    return (
        Accepted(),
        question(),
        ThoughtDelta("I "),
        ThoughtDelta("think."),
        TextDelta(2, "final", "I "),
        TextDelta(2, "final", "look."),
        Whole(message(2, "assistant", "thought", "I look.")),
        called(3, ("c1", "add"), ("c2", "sub")),
        CustomPart(b'{"name":"progress","payload":5}'),
        came(4, ("c1", "5")),
        came(5, ("c2", "no"), ok=False),
        TextDelta(6, "final", "Hi "),
        TextDelta(6, "final", "there"),
        final(question().message, answer(6, "Hi there", LINK, finish_reason="stop", token_usage={"input_tokens": 1})),
    )


def test_all_that_a_run_says():
    events = told(turn_of(*wide_run()))
    assert short(events) == [
        ("lifecycle", "running"),
        ("checkpoints", 6),
        ("values", ["before", "e1.0"]),
        ("messages", ("message-start", "e1.2")),
        ("messages", ("content-block-start", "")),
        ("messages", ("content-block-delta", "I think.")),
        ("messages", ("content-block-finish", "I think.")),
        ("messages", ("content-block-start", "")),
        ("messages", ("content-block-delta", "I ")),
        ("messages", ("content-block-delta", "look.")),
        ("messages", ("content-block-finish", "I look.")),
        ("messages", ("content-block-start", "add")),
        ("messages", ("content-block-finish", "add")),
        ("messages", ("content-block-start", "sub")),
        ("messages", ("content-block-finish", "sub")),
        ("tools", "tool-started"),
        ("tools", "tool-started"),
        ("custom", {"name": "progress", "payload": 5}),
        ("messages", ("message-finish", "")),
        ("tools", "tool-finished"),
        ("updates", ("agent", ["e1.2"])),
        ("updates", ("tools", ["e1.4"])),
        ("values", ["before", "e1.0", "e1.2", "e1.4"]),
        ("tools", "tool-error"),
        ("updates", ("tools", ["e1.5"])),
        ("values", ["before", "e1.0", "e1.2", "e1.4", "e1.5"]),
        ("messages", ("message-start", "e1.6")),
        ("messages", ("content-block-start", "")),
        ("messages", ("content-block-delta", "Hi ")),
        ("messages", ("content-block-delta", "there")),
        ("messages", ("content-block-finish", "Hi there")),
        ("messages", ("message-finish", "")),
        ("updates", ("agent", ["e1.6"])),
        ("checkpoints", 7),
        ("values", ["before", "e1.0", "e1.2", "e1.4", "e1.5", "e1.6"]),
        ("lifecycle", "completed"),
    ]
    seqs = [one["seq"] for one in events]
    assert seqs == sorted(set(seqs))
    assert all(seq < 1 << 53 for seq in seqs)
    assert has_end(seqs[-1])
    finished = [one["params"]["data"] for one in events if one["params"]["data"].get("event") == "message-finish"]
    assert finished[-1] == {
        "event": "message-finish", "usage": {"input_tokens": 1}, "metadata": {"finish_reason": "stop"}
    }  # fmt: skip
    (cited,) = [one["params"]["data"]["content"] for one in events if "annotations" in str(one)]
    assert cited["annotations"] == [
        {"type": "citation", "url": "/d/1", "title": "One", "id": "1", "extras": {"document_uid": "u"}}
    ]


def test_a_cut_at_every_event():
    turn = turn_of(*wide_run())
    whole = told(turn)
    for place, one in enumerate(whole):
        assert told(turn, since=one["seq"]) == whole[place + 1 :], place


def test_only_the_channels_that_are_asked_for():
    turn = turn_of(*wide_run())
    whole = told(turn)
    some = told(turn, by=writer(channels=["messages", "input", "custom:progress"]))
    assert some == [one for one in whole if one["method"] in ("messages", "custom")]
    assert told(turn, by=writer(channels=["custom:other"])) == []
    assert told(turn, by=writer(namespaces=[["agent:1"]])) == []
    assert told(turn, by=writer(namespaces=[["agent:1"], []])) == whole


def test_history_tells_a_run_whole_to_who_has_a_part_of_it():
    last = answer(6, "Hi there", LINK, finish_reason="stop")
    messages = (question().message, message(1, "assistant", "thought", "I look."), last)
    past = history_of(*messages)
    whole = told(past)
    live = told(turn_of(*wide_run()))
    assert short(whole)[-1] == ("lifecycle", "completed")
    assert told(past, since=live[10]["seq"]) == whole
    # Who has the end has all of it; who lacks it alone gets it alone.
    assert told(past, since=live[-1]["seq"]) == []
    assert told(past, since=live[-2]["seq"]) == whole[-1:]
    for place, one in enumerate(whole):
        assert told(past, since=one["seq"]) == whole[place + 1 :], place


def test_a_turn_that_runs_again_takes_the_place_of_what_was_said():
    turn = Turn(Ask("s", "Georges", "Hello", "e1", "ada", 1.0))
    for payload in (Accepted(), question(), TextDelta(1, "final", "Hel")):
        turn.publish(payload)
    first = told(turn)
    following = writer()
    begun = told(turn, by=following)
    turn.begin_again(1)
    for payload in (Accepted(), question(), TextDelta(1, "final", "Hi"), final(question().message, answer(1, "Hi"))):
        turn.publish(payload)
    assert turn.events[-1].seq > RUN_SEQS
    text = b""
    for place in range(3, len(turn.events)):
        text += following.write(turn, turn.events[place])
        if following.owed is not None:
            text += asyncio.run(following.owed())
    rest = [json.loads(line[6:]) for line in text.decode().split("\n") if line.startswith("data: ")]
    assert begun == first
    assert rest[0]["params"]["data"] == {"event": "message-finish", "metadata": {"finish_reason": "restarted"}}
    assert short(rest)[1:4] == [("lifecycle", "running"), ("checkpoints", 6), ("values", ["before", "e1.0"])]
    assert rest[0]["seq"] > first[-1]["seq"]
    # Whoever comes back gets the second run, and in its middle the rest of it.
    again = told(turn, since=first[-1]["seq"])
    assert again == rest[1:]
    for place, one in enumerate(again):
        assert told(turn, since=one["seq"]) == again[place + 1 :], place


def test_a_mirror_that_is_told_from_history_in_the_end():
    turn = Turn(Ask("s", "Georges", "Hello", "e1", "ada", 1.0))
    for payload in (Accepted(), question(), TextDelta(1, "final", "Hel")):
        turn.publish(payload)
    live = told(turn)
    StoredExchange((question().message, answer(1, "Hello you"))).publish(turn, SESSION)
    alone = history_of(question().message, answer(1, "Hello you"))
    assert short(told(turn, since=live[-1]["seq"])) == short(told(alone))
    assert [one["seq"] for one in told(turn, since=live[-1]["seq"])] == [one["seq"] for one in told(alone)]


def resumed():
    asks = turn_of(Accepted(), question("Hello"), TextDelta(1, "final", "So"), Whole(SO), awaiting(rank=1))
    goes_on = (Accepted(), decided("allow"), TextDelta(3, "final", "Done"))
    end = final(
        question().message, message(1, "assistant", "thought", "So"), decided("allow").message, answer(3, "Done")
    )
    return asks, turn_of(*goes_on, end, human={"choice_id": "allow"}, before=asks), (*goes_on, end)


def test_each_answer_of_a_person_begins_a_run_of_its_own():
    asks, goes_on, _ = resumed()
    first = told(asks)
    assert short(first)[-3:] == [
        ("values", ["before", "e1.0", "e1.1"]),
        ("input.requested", "i1"),
        ("lifecycle", "interrupted"),
    ]
    request = first[-2]["params"]["data"]
    assert request["value"] == request["payload"]
    both = told(asks, goes_on)
    assert both[: len(first)] == first
    assert short(both)[len(first)] == ("lifecycle", "running")
    assert short(both)[-2:] == [("values", ["before", "e1.0", "e1.1", "e1.3"]), ("lifecycle", "completed")]
    assert rank_of(both[-1]["seq"]) == 2
    for place, one in enumerate(both):
        assert told(goes_on, since=one["seq"]) == both[place + 1 :], place


def test_an_instance_that_did_not_ask_numbers_the_answer_alike():
    _, goes_on, payloads = resumed()
    ask = Ask("s", "Georges", "", "e1", "ada", 1.0, human=goes_on.ask.human)
    alone = Turn(ask)
    alone.continue_after(goes_on.events[4].seq)
    for payload in payloads:
        alone.publish(payload)

    async def before(_below, _behind):
        return Before(b'{"id":"before"},{"id":"e1.0"},{"id":"e1.1"}', 4, 0)

    mine = told(alone, by=writer(load=before))
    there = [one for one in told(goes_on) if rank_of(one["seq"]) == 2]
    assert [(one["seq"], *kind) for one, kind in zip(mine, short(mine), strict=True)] == [
        (one["seq"], *kind) for one, kind in zip(there, short(there), strict=True)
    ]


@pytest.mark.parametrize("noted", [{}, {"note": {NOTE: {"answers": "k:1"}}}], ids=["another door", "this one"])
def test_history_has_the_same_runs(noted):
    extras = {"extras": {"decision": {"by": "ada", "at": "", "answer": 1}, **noted}}
    chose = message(2, "user", "observation", "Yes", extras)
    past = history_of(question().message, SO, chose, answer(3, "Done"))
    whole = told(past)
    ends = [one for one in whole if has_end(one["seq"])]
    assert [one["params"]["data"]["event"] for one in ends] == ["interrupted", "completed"]
    live = told(*resumed()[:2])
    assert [one["seq"] for one in live if has_end(one["seq"])] == [one["seq"] for one in ends]
    assert told(past, since=live[-1]["seq"]) == []
    for place, one in enumerate(whole):
        assert told(past, since=one["seq"]) == whole[place + 1 :], place


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (Cancelled((question().message, answer(1, "Hi")), SESSION), {"event": "completed"}),
        (
            Failed(Code.INTERNAL, refused=False, messages=(question().message,), session=SESSION),
            {"event": "failed", "code": Code.INTERNAL.value},
        ),
    ],
    ids=["stopped", "failed"],
)
def test_other_ends(end, said):
    events = told(turn_of(Accepted(), question(), TextDelta(1, "final", "Hi"), end))
    assert said.items() <= events[-1]["params"]["data"].items()
    assert short(events)[-2][0] == "values"
    assert ("messages", ("message-finish", "")) in short(events)


def test_a_run_that_never_began():
    ended = turn_of(Accepted(1), Cancelled((), Session("s", "ada", "Georges", "", "")))
    (event,) = told(ended, since=9)
    assert (event["seq"], event["params"]["data"]["event"]) == (9, "completed")
    refused = turn_of(Failed(Code.OVERLOADED, refused=True))
    (event,) = told(refused)
    assert event["params"]["data"]["event"] == "failed"


def test_what_is_not_there_is_no_run_and_what_cannot_be_read_ends_the_stream():
    def replay(code):
        turn = Turn(Ask("s", "", "", "e1", "ada", 1.0))
        turn.publish(Failed(code, refused=True))
        return turn

    assert told(replay(Code.EXCHANGE_NOT_FOUND)) == []
    by = writer()
    (frame,) = _frames(by, replay(Code.HISTORY_UNAVAILABLE))
    assert (frame["type"], frame["id"], frame["error"]) == ("error", None, "history_unavailable")
    assert by.over


def _frames(by, turn):
    text = by.write(turn, turn.events[0])
    return [json.loads(line[6:]) for line in text.decode().split("\n") if line.startswith("data: ")]


def test_a_stream_ends_where_what_was_before_cannot_be_read():
    async def gone(_below, _behind):
        raise HistoryUnavailable

    by = writer(load=gone)
    turn = turn_of(*plain_run())
    by.write(turn, turn.events[0])
    assert by.write(turn, turn.events[1]) == b""
    assert by.owed is not None
    assert b'"error":"history_unavailable"' in asyncio.run(by.owed())
    assert by.over


def test_more_parts_than_there_are_numbers():
    calls = [(f"c{number}", "add") for number in range(200)]
    turn = turn_of(*plain_run(called(1, *calls)))
    whole = told(turn)
    seqs = [one["seq"] for one in whole]
    assert seqs == sorted(seqs)
    assert len({one["event_id"] for one in whole}) == len(whole)
    for place in range(0, len(whole), 50):
        one = whole[place]
        # All that share a number are told again to who has one of them; they are known by their ids.
        rest = told(turn, since=one["seq"])
        assert [one for one in rest if one["seq"] > whole[place]["seq"]] == [
            one for one in whole if one["seq"] > whole[place]["seq"]
        ]
        assert {one["event_id"] for one in whole[place + 1 :]} <= {one["event_id"] for one in rest}


def test_numbers():
    assert seq_before(0) == 0
    assert rank_of(seq_before(5)) == 4
    assert has_end(seq_before(5))
    assert not has_end(5 << RUN_BITS)
    assert (QUESTION["interrupt_id"], SESSION.id) == ("i1", "s")


def test_a_restart_is_no_run():
    turn = Turn(Ask("s", "Georges", "Hello", "e1", "ada", 1.0))
    turn.publish(Restarted(1))
    assert told(turn) == []


@pytest.mark.parametrize(("values", "also"), [(b"{}", {}), (b'{"topic":"x"}', {"topic": "x"})])
def test_a_graph_that_is_joined_may_wait_before_its_state_has_anything(values, also):
    note = {"extras": {"note": {NOTE: {"modes": ["values"]}}}}
    asked = Whole(message(0, "user", "final", "Hello", note))
    turn = turn_of(Accepted(), asked, GraphPart("values", (), values), awaiting())
    by = JoinWriter("s", frozenset(("run_modes", "state_update")), _before, is_graph=lambda _: True)
    frames = b"".join(by.write(turn, turn.events[at]) for at in range(len(turn.events))).decode().split("\n\n")
    events = [dict(line.split(": ", 1) for line in one.split("\n")) for one in frames if one]
    for name in ("values", "state_update"):
        *_, last = (json.loads(one["data"]) for one in events if one["event"] == name)
        assert [one["id"] for one in last.pop("__interrupt__")] == ["i1"]
        assert last == also
