"""Turns as traces: what a collector receives is the ledger that the client got, and where none is nobody notices."""

import hashlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from websockets.asyncio.client import connect

from tests.integration.test_rico_and_knowledge_flow import SPOOL, agents, upload
from tests.knowledge_flow_backend.service import start_on
from tests.support.collector import Collector, about, collector
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database
from tests.support.service import PATIENT_CLIENT, StartService, hear_until, merge, say

QUESTION = "Where is a finished turn appended?"
TRACE = "0af7651916cd43dd8448eb211c80319c"
ASKER = "b7ad6b7169203331"


@pytest.fixture
async def otlp() -> AsyncIterator[Collector]:
    async with collector() as running:
        yield running


def traced(otlp: Collector, **more: Any) -> dict[str, Any]:
    """The changes of a configuration that send each turn at once."""
    return {"tracing": {"endpoint": otlp.url, "schedule_delay_ms": 1, **more}}


async def ask(service: Any, agent: str = "Georges", traceparent: str | None = None, **more: Any) -> dict[str, Any]:
    """The `final` of a turn whose socket came with that header."""
    session_id = await service.create_session(agent_id=agent)
    headers = {"Authorization": "Bearer local"} | ({} if traceparent is None else {"traceparent": traceparent})
    protocols: Any = ["turnwise.v1"]
    async with connect(service.ws_url, additional_headers=headers, subprotocols=protocols, **PATIENT_CLIENT) as socket:
        await say(socket, type="ask", session_id=session_id, agent_id=agent, message=QUESTION, **more)
        return (await hear_until(socket, "final"))[-1]


def phase_of(span: Span) -> str:
    return str(about(span).get("turnwise.phase", ""))


async def test_each_row_of_a_ricos_ledger_is_a_span_of_its_time_where_it_belongs(
    start_service: StartService, database: Database, mock_llm: MockModel, otlp: Collector
) -> None:
    chunks = {"processing": {"chunk_size_chars": 150, "chunk_overlap_chars": 0}}
    async with start_on(database, mock_llm.base_url)(**chunks) as knowledge:
        await upload(knowledge, "spool.md", SPOOL)
        prices = {"prices": [{"model": "mock", "input_per_million": 1.0, "output_per_million": 2.0}]}
        changes = merge(merge(agents(knowledge.port), {"ai": prices}), traced(otlp))
        async with start_service(**changes) as service:
            final = await ask(service, "Rico", f"00-{TRACE}-{ASKER}-01")
            spans = await otlp.wait_spans(len(final["ledger"]) + 1)
    root, *rows = spans
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert root.parent_span_id.hex() == ASKER
    assert root.name == "invoke_agent Rico"
    assert len({span.span_id for span in spans}) == len(spans)
    expected = sorted((row["phase"], row["start_ms"], row["ms"]) for row in final["ledger"])
    found = sorted(
        (
            phase_of(span),
            (span.start_time_unix_nano - root.start_time_unix_nano) / 1e6,
            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
        )
        for span in rows
    )
    assert [name for name, *_ in found] == [name for name, *_ in expected]
    for (_, *times), (_, *wanted) in zip(found, expected, strict=True):
        assert times == pytest.approx(wanted, abs=0.001001)
    by_id = {span.span_id: span for span in spans}
    parents = {phase_of(span): by_id[span.parent_span_id] for span in rows}
    assert phase_of(parents["kf_vector_search"]) == "vector_search"
    assert about(parents["kf_vector_search"])["gen_ai.operation.name"] == "retrieval"
    assert phase_of(parents["kf_vector_rerank"]) == "kf_vector_search"
    assert phase_of(parents["kf_rerank"]) == "kf_vector_rerank"
    assert phase_of(parents["llm_invoke"]) == "answer_with_sources"
    assert parents["stream_agent_response"] is root
    for span in rows:
        around = by_id[span.parent_span_id]
        assert around.start_time_unix_nano <= span.start_time_unix_nano + 1000
        assert span.end_time_unix_nano <= around.end_time_unix_nano + 2000
    (chat,) = [span for span in rows if phase_of(span) == "llm_invoke"]
    usage = final["messages"][-1]["metadata"]["extras"]["usage"]
    told = about(chat)
    assert chat.name == f"chat {usage['steps'][0]['model']}"
    assert told["gen_ai.usage.input_tokens"] == usage["input_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["output_tokens"]
    assert told["gen_ai.usage.cost"] == pytest.approx(usage["cost"], abs=1e-9)


async def test_users_are_hashed_and_nothing_that_anybody_wrote_is_told(
    start_service: StartService, otlp: Collector
) -> None:
    async with start_service(**traced(otlp)) as service:
        final = await ask(service)
        spans = await otlp.wait_spans(len(final["ledger"]) + 1)
    sent = b"".join(request.SerializeToString() for request in otlp.requests)
    assert QUESTION.encode() not in sent
    assert final["messages"][-1]["parts"][0]["text"][:20].encode() not in sent
    told = about(spans[0])
    assert told["user.id"] == hashlib.sha256(b"turnwise user admin").hexdigest()[:32]
    assert told["session.id"] == told["gen_ai.conversation.id"] == final["session_id"]
    assert told["turnwise.exchange_id"] == final["exchange_id"]


async def test_content_and_user_ids_are_told_where_asked_for(start_service: StartService, otlp: Collector) -> None:
    async with start_service(**traced(otlp, content=True, user_id="plain")) as service:
        final = await ask(service)
        spans = await otlp.wait_spans(len(final["ledger"]) + 1)
    told = about(spans[0])
    assert told["user.id"] == "admin"
    assert QUESTION in told["gen_ai.input.messages"]
    assert final["messages"][-1]["parts"][0]["text"] in told["gen_ai.output.messages"]


@pytest.mark.one_instance("one exporter is looked at")
async def test_an_endpoint_that_is_not_there_delays_no_turn_and_no_end(start_service: StartService) -> None:
    nobody = {"endpoint": "http://127.0.0.1:9", "schedule_delay_ms": 1, "max_queue_size": 20}
    async with start_service(tracing=nobody) as service:
        for _ in range(4):
            final = await ask(service)
            assert final["ledger"]
        instance = service.service
        assert service.sample("app_trace_spans_dropped_total", reason="queue_full") > 0
    registry = instance._registry
    left = registry.get_sample_value("app_trace_spans_dropped_total", {"reason": "unreachable"}) or 0.0
    left += registry.get_sample_value("app_trace_spans_dropped_total", {"reason": "shutdown"}) or 0.0
    assert left > 0
    assert registry.get_sample_value("app_trace_spans_sent_total") == 0


async def test_a_turn_that_its_asker_does_not_sample_is_not_sent(start_service: StartService, otlp: Collector) -> None:
    async with start_service(**traced(otlp)) as service:
        await ask(service, traceparent=f"00-{TRACE}-{ASKER}-00")
        final = await ask(service)
        spans = await otlp.wait_spans(len(final["ledger"]) + 1)
    assert TRACE not in {span.trace_id.hex() for span in spans}
    assert re.fullmatch("[0-9a-f]{32}", spans[0].trace_id.hex())
