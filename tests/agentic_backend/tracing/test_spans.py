"""What stands in the spans of a turn, and under which one each stands."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry

from agentic_backend.tracing import names
from agentic_backend.tracing.spans import Moment, Recorded, SpanEncoder, parents_of, user_name
from agentic_backend.tracing.traceparent import TraceParent
from agentic_backend.tracing.turn import TracedTurn
from backend_kit.kpi import Kpi, Ledger, Spent
from tests.support.collector import about

SPAN = TraceParent("a" * 32, "b" * 16, 1)
PARENT = TraceParent("a" * 32, "c" * 16, 1)
ARRIVED_NS = 1_700_000_000_123_456_789


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Kpi(CollectorRegistry(), service="agentic"), started=100.0, owner="Sammy")


def turn(**more: Any) -> TracedTurn:
    given: dict[str, Any] = {
        "agent_id": "Sammy", "session_id": "s-1", "user_id": "ann", "exchange_id": "e-1", "request_id": "r-1",
        "status": "ok", "error": "", "durable": "spool", "model": "small", "first_token_ms": 12.5, "parent": None,
        "question": "canary question", "answer": "canary answer",
    }  # fmt: skip
    return TracedTurn(**(given | more))


def encoded(ledger: Ledger, total_ms: float = 1000.0, encoder: SpanEncoder | None = None, **more: Any) -> list[Span]:
    moment = Moment(SPAN, PARENT, ARRIVED_NS, total_ms)
    recorded = Recorded.of(turn(**more), moment, ledger, ledger.rows())
    encoder, count = encoder or SpanEncoder({"service.name": "us"}), recorded.spans
    (resource,) = ExportTraceServiceRequest.FromString(encoder.request(encoder.encode(recorded))).resource_spans
    (scope,) = resource.scope_spans
    assert len(scope.spans) == count
    return list(scope.spans)


def tree(ledger: Ledger) -> list[tuple[str, str]]:
    """Each row with the one above it."""
    rows = ledger.rows()
    called = [row["phase"] for row in rows]
    return [
        (name, "" if above is None else called[above]) for name, above in zip(called, parents_of(rows), strict=True)
    ]


def test_a_row_stands_under_the_innermost_that_was_open_for_all_of_its_time(ledger: Ledger) -> None:
    ledger.add("session_wait", 100.0, 100.1, 0)
    ledger.add("stream_agent_response", 100.1, 100.9, 0)
    ledger.add("vector_search", 100.2, 100.5, 1)
    ledger.add("kf_vector_search", 100.2, 100.5, 2)
    ledger.add("kf_embed_query", 100.25, 100.3, 3)
    ledger.add("answer_with_sources", 100.5, 100.9, 1)
    ledger.add("llm_invoke", 100.6, 100.9, 2)
    ledger.add("spool_ack", 100.9, 100.95, 0)
    assert tree(ledger) == [
        ("session_wait", ""),
        ("stream_agent_response", ""),
        ("vector_search", "stream_agent_response"),
        ("kf_vector_search", "vector_search"),
        ("kf_embed_query", "kf_vector_search"),
        ("answer_with_sources", "stream_agent_response"),
        ("llm_invoke", "answer_with_sources"),
        ("spool_ack", ""),
    ]


def test_calls_side_by_side_hold_nothing_of_one_another(ledger: Ledger) -> None:
    ledger.add("stream_agent_response", 100.0, 100.9, 0)
    ledger.add("tool_call", 100.1, 100.8, 1)
    ledger.add("tool_call", 100.11, 100.2, 2)
    ledger.add("tool_call", 100.12, 100.85, 3)
    assert {above for _, above in tree(ledger)[1:]} == {"stream_agent_response"}


def test_times_are_the_rows_to_the_microsecond(ledger: Ledger) -> None:
    ledger.add("turn_open", 100.000_123_4, 100.010_456_7, 0)
    root, row = encoded(ledger, total_ms=500.25)
    (of_ledger,) = ledger.rows()
    assert root.start_time_unix_nano == ARRIVED_NS // 1000 * 1000
    assert root.end_time_unix_nano - root.start_time_unix_nano == 500_250_000
    assert row.start_time_unix_nano - root.start_time_unix_nano == of_ledger["start_ms"] * 1e6
    assert row.end_time_unix_nano - row.start_time_unix_nano == round(of_ledger["ms"] * 1e6)
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == ("a" * 32, "b" * 16, "c" * 16)
    assert row.parent_span_id == root.span_id


def test_each_model_call_has_its_tokens_and_its_cost(ledger: Ledger) -> None:
    ledger.add("llm_invoke", 100.1, 100.2, 0)
    ledger.add("llm_invoke", 100.3, 100.5, 0)
    ledger.spent.append(Spent(100.1999, "small", 10, 2, 0.0))
    ledger.spent.append(Spent(100.4999, "large", 30, 4, 0.25, 5, 3))
    root, first, second = encoded(ledger)
    assert (first.name, second.name) == ("chat small", "chat large")
    assert first.kind == second.kind == Span.SPAN_KIND_CLIENT
    assert about(first)["gen_ai.usage.input_tokens"] == 10
    assert "gen_ai.usage.cost" not in about(first)
    told = about(second)
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (30, 4)
    assert (told["gen_ai.usage.cache_read.input_tokens"], told["gen_ai.usage.reasoning.output_tokens"]) == (5, 3)
    assert told["gen_ai.usage.cost"] == 0.25
    assert "gen_ai.usage.input_tokens" not in about(root)


def test_tokens_of_no_call_are_the_turns(ledger: Ledger) -> None:
    ledger.add("llm_invoke", 100.1, 100.2, 0)
    ledger.spent += [Spent(100.15, "small", 10, 2, 0.0), Spent(100.9, "other", 7, 1, 0.5)]
    root, call = encoded(ledger)
    assert about(call)["gen_ai.usage.input_tokens"] == 10
    assert (about(root)["gen_ai.usage.input_tokens"], about(root)["gen_ai.usage.cost"]) == (7, 0.5)


def test_a_tool_has_its_name_and_a_phase_that_failed_says_so(ledger: Ledger) -> None:
    with ledger.activate():
        with pytest.raises(TimeoutError), ledger.kpi.phase("tool_call", {"gen_ai.tool.name": "look_up"}):
            raise TimeoutError
        with ledger.kpi.phase("tool_call", {"gen_ai.tool.name": "add"}):
            pass
    _, late, good = encoded(ledger)
    assert (late.name, good.name) == ("execute_tool look_up", "execute_tool add")
    assert about(late)["error.type"] == "timeout"
    assert (late.status.code, good.status.code) == (Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET)


@pytest.mark.parametrize(
    ("status", "error", "failed"), [("ok", "", False), ("cancelled", "", False), ("error", "llm_unavailable", True)]
)
def test_a_turn_fails_as_it_ended(ledger: Ledger, status: str, error: str, failed: bool) -> None:
    (root,) = encoded(ledger, status=status, error=error)
    assert (root.status.code == Status.STATUS_CODE_ERROR) is failed
    assert about(root).get("error.type") == (error or None)
    assert about(root)["turnwise.status"] == status


def test_content_is_told_by_option_only(ledger: Ledger) -> None:
    def all_of(spans: Iterator[Span]) -> bytes:
        return b"".join(span.SerializeToString() for span in spans)

    told = all_of(iter(encoded(ledger, encoder=SpanEncoder({}, content=True))))
    assert b"canary question" in told
    assert b"canary answer" in told
    assert b"canary" not in all_of(iter(encoded(ledger)))


def test_a_text_that_no_unicode_holds_does_not_lose_the_trace(ledger: Ledger) -> None:
    (root,) = encoded(ledger, exchange_id="e-\ud800")
    assert about(root)["turnwise.exchange_id"] == "e-?"


def test_users_are_named_as_asked_for() -> None:
    assert user_name("ann", "plain") == "ann"
    assert user_name("ann", "none") is None
    hashed = user_name("ann", "hashed")
    assert hashed == user_name("ann", "hashed") != user_name("bob", "hashed")
    assert hashed is not None
    assert len(hashed) == 32
    assert "ann" not in hashed


def test_turns_of_one_request_stand_under_one_resource(ledger: Ledger) -> None:
    encoder = SpanEncoder({"service.name": "us"})
    spans = encoder.encode(Recorded.of(turn(), Moment(SPAN, None, ARRIVED_NS, 1.0), ledger, ()))
    (resource,) = ExportTraceServiceRequest.FromString(encoder.request(spans + spans)).resource_spans
    assert [(one.key, one.value.string_value) for one in resource.resource.attributes] == [("service.name", "us")]
    (scope,) = resource.scope_spans
    assert [span.parent_span_id for span in scope.spans] == [b"", b""]
    assert (scope.scope.name, resource.schema_url, scope.schema_url) == (
        names.SCOPE,
        names.SCHEMA_URL,
        names.SCHEMA_URL,
    )


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, (1 << 63) - 1, -1, -(1 << 70)])
@pytest.mark.parametrize("text", ["", "a" * 70, "\u00e9" * 60, "a" * 20_000])
def test_texts_and_numbers_of_any_size_arrive(ledger: Ledger, text: str, number: int) -> None:
    ledger.add("llm_invoke", 100.2, 100.4, 0)
    ledger.spent.append(Spent(100.3, "small", number, 1, 0.125))
    root, call = encoded(ledger, session_id=text)
    assert about(root)[names.CONVERSATION] == text
    assert about(call)[names.INPUT_TOKENS] == max(number, 1 - (1 << 63))
    assert about(call)[names.COST] == 0.125


def test_what_a_model_says_of_itself_cannot_make_a_turn_fail(ledger: Ledger) -> None:
    ledger.add("tool_call", 100.1, 100.2, 0, "ok", {names.TOOL: "half \ud83d"})
    ledger.add("llm_invoke", 100.2, 100.4, 0)
    ledger.spent.append(Spent(100.3, "half \ud83d", 1 << 70, 1, 0.0))
    _, tool, call = encoded(ledger, model="half \ud83d", error="half \ud83d", status="error")
    assert (tool.name, call.name) == ("execute_tool half ?", "chat half ?")
    assert about(call)[names.INPUT_TOKENS] == (1 << 63) - 1


def test_a_name_whose_length_takes_two_bytes_is_refused(ledger: Ledger) -> None:
    ledger.add("tool_call", 100.1, 100.2, 0, "ok", {"a" * 65: "b"})
    with pytest.raises(ValueError, match="too long"):
        encoded(ledger)
