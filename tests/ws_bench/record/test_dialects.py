"""Both protocols as state over events: what counts as a token, as an end, and as a failure."""

from typing import Any

import pytest

from backend_kit.wire import dumps, loads
from ws_bench.errors import TurnBroken
from ws_bench.record.dialects import CompatibleTurn, NativeTurn, after_the_end, ask_frame, parse_event, resume_frame


def message(role: str, text: str = "x", **metadata: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": text}]
    return {"role": role, "channel": "final", "parts": parts, "metadata": metadata}


def native(kind: str, seq: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "session_id": "s", "exchange_id": "e", "seq": seq, **more}


FINAL = {"type": "final", "messages": [message("user"), message("assistant")], "session": {}}


def test_an_ask_leaves_out_what_it_does_not_say() -> None:
    assert loads(ask_frame("", "e", "Hi", "Georges", {})) == {
        "type": "ask", "message": "Hi", "agent_id": "Georges", "client_exchange_id": "e",
    }  # fmt: skip
    full = loads(ask_frame("s", "e", "Hi", "Georges", {"search_policy": "strict"}))
    assert (full["session_id"], full["runtime_context"]) == ("s", {"search_policy": "strict"})


@pytest.mark.parametrize("frame", [b"", b"{", b"[]", b'"text"', b"\xff"])
def test_a_frame_that_is_no_object_breaks_the_turn(frame: bytes) -> None:
    with pytest.raises(TurnBroken) as broken:
        parse_event(frame)
    assert broken.value.kind == "protocol_bad_json"


def test_compatible_first_token_is_the_first_assistant_message_not_the_echo() -> None:
    turn = CompatibleTurn()
    assert not turn.feed({"type": "session", "session": {}}, 1.0)
    assert not turn.feed({"type": "stream", "message": message("user")}, 2.0)
    assert not turn.feed({"type": "stream", "message": {"role": "assistant", "parts": [{"type": "tool_call"}]}}, 2.5)
    assert turn.first_token_at is None
    assert not turn.feed({"type": "stream", "message": message("assistant")}, 3.0)
    assert not turn.feed({"type": "stream", "message": message("assistant")}, 3.25)
    assert turn.feed(FINAL, 4.0)
    assert turn.first_token_at == 3.0
    assert list(turn.gaps_ms) == [250.0]


def test_native_tokens_are_deltas() -> None:
    turn = NativeTurn("e")
    assert not turn.feed(native("accepted", 0), 1.0)
    assert not turn.feed(native("message", 1, message=message("user")), 1.5)
    assert not turn.feed(native("delta", 2, rank=1, channel="final", text=""), 1.75)
    assert not turn.feed(native("delta", 3, rank=1, channel="final", text="a"), 2.0)
    assert not turn.feed({"type": "heartbeat"}, 2.1)
    assert not turn.feed(native("delta", 5, rank=1, channel="final", text="b"), 2.5)
    assert not turn.feed(native("message", 6, message=message("assistant")), 3.0)
    assert turn.feed(native("final", 7, messages=FINAL["messages"]), 4.0)
    assert turn.first_token_at == 2.0
    assert list(turn.gaps_ms) == [500.0]


def test_a_turn_that_runs_again_is_one_turn_whose_tokens_come_anew() -> None:
    turn = NativeTurn("e")
    assert not turn.feed(native("accepted", 1), 1.0)
    for seq, at in ((3, 2.0), (4, 2.5)):
        assert not turn.feed(native("delta", seq, rank=1, channel="final", text="a"), at)
    assert not turn.feed(native("restarted", 1_000_001), 60.0)
    assert turn.first_token_at is None
    assert not turn.feed(native("accepted", 1_000_002), 60.0)
    for seq, at in ((1_000_004, 61.0), (1_000_005, 61.25)):
        assert not turn.feed(native("delta", seq, rank=1, channel="final", text="b"), at)
    with pytest.raises(TurnBroken, match="seq 5 after 1000005"):
        turn.feed(native("delta", 5, rank=1, channel="final", text="a"), 61.5)
    assert turn.feed(native("final", 1_000_006, messages=FINAL["messages"]), 62.0)
    assert (turn.first_event_at, turn.first_token_at, list(turn.gaps_ms)) == (1.0, 61.0, [250.0])


def test_a_compatible_turn_that_runs_again_has_its_question_twice() -> None:
    turn = CompatibleTurn()
    question, step = {**message("user"), "rank": 4}, {**message("assistant"), "rank": 5, "channel": "thought"}
    for at in (1.0, 60.0):
        assert not turn.feed({"type": "stream", "message": question}, at)
        assert not turn.feed({"type": "stream", "message": step}, at + 0.5)
    with pytest.raises(TurnBroken, match="rank 5 after 5"):
        turn.feed({"type": "stream", "message": step}, 61.0)
    assert (turn.first_token_at, list(turn.gaps_ms)) == (60.5, [])


def test_reasoning_and_what_an_agent_says_beside_its_answer_are_no_tokens() -> None:
    kept = message("assistant", "Hm.", extras={"reasoning": True, "thinking_ms": 2.5})
    turn = NativeTurn("e")
    assert not turn.feed(native("thought", 1, text="Hm."), 1.0)
    assert not turn.feed(native("message", 2, message=kept), 1.5)
    assert not turn.feed(native("custom", 3, data=[1]), 1.75)
    assert (turn.first_event_at, turn.first_token_at, turn.last_seq) == (1.0, None, 3)
    assert not turn.feed(native("delta", 4, rank=1, channel="final", text="a"), 2.0)
    assert turn.feed(native("final", 5, messages=FINAL["messages"]), 3.0)
    assert turn.first_token_at == 2.0
    compatible = CompatibleTurn()
    assert not compatible.feed({"type": "stream", "message": kept}, 1.0)
    assert compatible.first_token_at is None


def test_a_native_turn_without_deltas_counts_its_message() -> None:
    turn = NativeTurn("e")
    turn.feed(native("message", 0, message=message("user")), 1.0)
    turn.feed(native("message", 1, message=message("assistant")), 2.0)
    assert turn.first_token_at == 2.0


@pytest.mark.parametrize(
    ("event", "kind", "usable"),
    [
        ({"type": "error", "content": "no", "code": "overloaded"}, "server_error_event(overloaded)", False),
        ({"type": "error", "content": "no"}, "server_error_event(unknown)", False),
        ({"type": "delta", "text": "x"}, "protocol_unknown_event", False),
        ({}, "protocol_unknown_event", False),
        ({"type": "awaiting_human", "payload": {}}, "awaiting_human", False),
        ({"type": "final", "messages": []}, "protocol_empty_final", True),
        ({"type": "final", "messages": [message("user")]}, "protocol_empty_final", True),
        (
            {"type": "final", "messages": [message("user"), message("assistant", extras={"error": "llm_timeout"})]},
            "server_error_event(llm_timeout)",
            True,
        ),
        (
            {"type": "final", "messages": [message("assistant", extras={"error": {"code": "internal"}})]},
            "server_error_event(internal)",
            True,
        ),
    ],
)
def test_compatible_failures(event: dict[str, Any], kind: str, usable: bool) -> None:
    with pytest.raises(TurnBroken) as broken:
        CompatibleTurn().feed(event, 1.0)
    assert (broken.value.kind, broken.value.usable) == (kind, usable)


@pytest.mark.parametrize(
    ("event", "kind", "usable"),
    [
        ({"type": "error", "code": "session_busy", "message": "no"}, "server_error_event(session_busy)", True),
        (native("cancelled", 1), "server_cancelled", True),
        (native("awaiting_human", 1), "awaiting_human", False),
        (native("stream", 1), "protocol_unknown_event", False),
        ({**native("delta", 1, text="x"), "exchange_id": "other"}, "protocol_cross_talk", False),
        (native("delta", 0, text="x"), "protocol_order", False),
        ({"type": "delta", "exchange_id": "e", "text": "x"}, "protocol_order", False),
        (native("final", 1, messages=[]), "protocol_empty_final", True),
    ],
)
def test_native_failures(event: dict[str, Any], kind: str, usable: bool) -> None:
    turn = NativeTurn("e")
    turn.feed(native("accepted", 0), 0.5)
    with pytest.raises(TurnBroken) as broken:
        turn.feed(event, 1.0)
    assert (broken.value.kind, broken.value.usable) == (kind, usable)


def test_a_compatible_message_of_somebody_else_is_cross_talk() -> None:
    mine = {**message("assistant"), "exchange_id": "e", "session_id": "s", "rank": 1}
    for change in ({"exchange_id": "other"}, {"session_id": "other"}):
        for event in (
            {"type": "stream", "message": {**mine, **change}},
            {"type": "final", "messages": [{**mine, **change}]},
        ):
            with pytest.raises(TurnBroken) as broken:
                CompatibleTurn("s", "e").feed(event, 1.0)
            assert (broken.value.kind, broken.value.usable) == ("protocol_cross_talk", False)


def test_compatible_ranks_must_rise() -> None:
    turn = CompatibleTurn()
    turn.feed({"type": "stream", "message": {**message("user"), "rank": 4}}, 1.0)
    with pytest.raises(TurnBroken, match="rank 4 after 4"):
        turn.feed({"type": "stream", "message": {**message("assistant"), "rank": 4}}, 2.0)
    messages = [{**message("user"), "rank": 1}, {**message("assistant"), "rank": 0}]
    with pytest.raises(TurnBroken, match="ranks of the final"):
        CompatibleTurn().feed({"type": "final", "messages": messages}, 1.0)


LEDGER = [
    {"phase": "admission_wait", "depth": 0, "start_ms": 0.5, "ms": 1.0},
    {"phase": "stream_agent_response", "depth": 0, "start_ms": 2.0, "ms": 100.0},
    {"phase": "vector_search", "depth": 1, "start_ms": 3.0, "ms": 30.0},
    {"phase": "kf_vector_search", "depth": 2, "start_ms": 4.0, "ms": 25.0},
    {"phase": "llm_invoke", "depth": 1, "start_ms": 40.0, "ms": 50.0},
    {"phase": "llm_invoke", "depth": 1, "start_ms": 92.0, "ms": 8.0},
]


def test_the_ledger_of_a_final_is_read_in_both_protocols() -> None:
    answer = message("assistant", extras={"ledger": LEDGER, "total_ms": 103.5})
    compatible, with_ledger = CompatibleTurn(), NativeTurn("e")
    assert compatible.feed({"type": "final", "messages": [message("user"), answer]}, 1.0)
    assert with_ledger.feed(native("final", 1, messages=[message("user"), answer], ledger=LEDGER), 1.0)
    for turn in (compatible, with_ledger):
        ledger = turn.ledger
        assert ledger.phases["llm_invoke"] == 58.0
        assert ledger.top == ("admission_wait", "stream_agent_response")
        # Own times add up to the phases of depth 0, whatever lies inside what.
        assert ledger.own == {
            "admission_wait": 1.0, "stream_agent_response": 12.0, "vector_search": 5.0, "kf_vector_search": 25.0,
            "llm_invoke": 58.0,
        }  # fmt: skip
        assert sum(ledger.own.values()) == 101.0
        assert ledger.total_ms == 103.5


def test_a_phase_that_ended_after_the_answers_total_still_counts() -> None:
    rows = [*LEDGER, {"phase": "spool_ack", "depth": 0, "start_ms": 103.5, "ms": 6.0}]
    turn = NativeTurn("e")
    answer = message("assistant", extras={"total_ms": 103.5})
    turn.feed(native("final", 1, messages=[answer], ledger=rows), 1.0)
    assert turn.ledger.total_ms == 109.5


@pytest.mark.parametrize(
    "ledger", [None, "x", [1], [{"phase": 3}], [{"phase": "p", "depth": 0, "start_ms": 0, "ms": "x"}]]
)
def test_a_service_without_a_ledger_is_fine(ledger: object) -> None:
    turn = NativeTurn("e")
    assert turn.feed(native("final", 1, messages=[message("assistant")], ledger=ledger), 1.0)
    assert (turn.ledger.phases, turn.ledger.total_ms) == ({}, None)


def test_the_answer_of_a_final_is_kept() -> None:
    turn = CompatibleTurn()
    turn.feed({"type": "final", "messages": [message("user", "q"), message("assistant", "the answer")]}, 1.0)
    assert turn.answer == "the answer"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "session", "exchange_id": "e"}, ""),
        ({"type": "pong"}, ""),
        ({"type": "final", "exchange_id": "e"}, "protocol_after_final"),
        ({"type": "delta", "exchange_id": "e"}, "protocol_after_final"),
        ({"type": "final", "messages": []}, "protocol_after_final"),
        ({"type": "delta", "exchange_id": "other"}, "protocol_cross_talk"),
    ],
)
def test_what_may_come_after_a_turns_end(event: dict[str, Any], kind: str) -> None:
    assert after_the_end(dumps(event), "e") == kind


def test_a_resume_says_from_where() -> None:
    assert loads(resume_frame("s", "e", -1)) == {
        "type": "resume", "session_id": "s", "exchange_id": "e", "after_seq": 0,
    }  # fmt: skip
