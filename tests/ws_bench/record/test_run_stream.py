"""Runs of LangGraph's API as state over events: what counts as a token, as an end, and as a failure."""

from typing import Any

import pytest

from backend_kit.wire import loads
from ws_bench.errors import TurnBroken
from ws_bench.record.dialects import run_frame
from ws_bench.record.run_stream import RunTurn

METADATA = {"event": "metadata", "data": {"run_id": "r", "attempt": 1}}
END = {"event": "end", "data": None}


def said(content: Any, kind: str = "AIMessageChunk", **more: Any) -> dict[str, Any]:
    return {"event": "messages", "data": [{"type": kind, "id": "m", "content": content, **more}, {"run_id": "r"}]}


def values(*contents: str, **more: Any) -> dict[str, Any]:
    return {"event": "values", "data": {"messages": [{"type": "ai", "content": one} for one in contents], **more}}


def read(*events: dict[str, Any]) -> RunTurn:
    """A run of these events, a second apart, and its end."""
    turn = RunTurn()
    for number, event in enumerate(events):
        assert not turn.feed(event, float(number))
    assert turn.feed(END, float(len(events)))
    return turn


def test_a_run_has_a_path_and_a_body() -> None:
    path, _, body = run_frame("a/b", "Rico", "Hi", ("messages-tuple",)).partition("\n")
    assert path == "/threads/a%2Fb/runs/stream"
    assert loads(body) == {
        "assistant_id": "Rico",
        "input": {"messages": [{"role": "user", "content": "Hi"}]},
        "stream_mode": ["messages-tuple"],
        "on_disconnect": "continue",
        "multitask_strategy": "reject",
    }
    assert run_frame("", "Rico", "Hi", ("messages-tuple",)).startswith("/runs/stream\n")


def test_a_token_is_text_of_the_agent_alone() -> None:
    turn = read(
        METADATA,
        said("", additional_kwargs={"reasoning_content": "hm"}),
        said("Hel"),
        said("found it", "tool", id="t"),
        said([{"type": "text", "text": "lo"}, {"type": "reasoning", "reasoning": "hm"}]),
        values("Hello"),
    )
    assert turn.answer == "Hello"
    assert (turn.first_event_at, turn.first_token_at, turn.last_token_at) == (0.0, 2.0, 4.0)
    assert list(turn.gaps_ms) == [2000.0]


def test_the_answer_is_the_last_message_that_said_something() -> None:
    whole = said("Done.", "ai", id="second")
    assert read(METADATA, said("Wait.", id="first"), said("Do", id="second"), whole).answer == "Done."


def test_a_later_attempt_begins_anew() -> None:
    again = {"event": "metadata", "data": {"run_id": "r", "attempt": 2}}
    turn = read(METADATA, said("Hel"), again, values(), said("Bye"), values("Bye"))
    assert (turn.answer, turn.first_token_at, list(turn.gaps_ms)) == ("Bye", 4.0, [])


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (
            [said("Hel"), {"event": "error", "data": {"error": "draining", "message": "x"}}],
            "server_error_event(draining)",
        ),
        ([{"event": "error", "data": None}], "server_error_event(unknown)"),
        ([said("Hel"), values("Hello")], "protocol_order"),
        ([METADATA], "protocol_empty_final"),
        ([said("Hel"), said("", response_metadata={"finish_reason": "cancelled"})], "server_cancelled"),
        ([{"event": "messages", "data": {}}], "protocol_unknown_event"),
        ([{"event": "song", "data": {}}], "protocol_unknown_event"),
        ([said("Hel"), {"event": "updates", "data": {"__interrupt__": []}}], "awaiting_human"),
        ([values("Hello", __interrupt__=[])], "awaiting_human"),
    ],
)
def test_a_run_that_is_no_answer_has_its_class(events: list[dict[str, Any]], kind: str) -> None:
    with pytest.raises(TurnBroken) as broken:
        read(*events)
    assert broken.value.kind == kind
