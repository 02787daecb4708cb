import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from agentic_backend.errors import KfUnavailable
from agentic_backend.knowledge import Caller, KnowledgeClient, KnowledgeEndpoint, SearchQuery
from agentic_backend.knowledge.attachments import AttachmentEndpoint
from agentic_backend.metrics import AgenticMetrics
from backend_kit.auth import Credentials
from backend_kit.kpi import Kpi, Ledger
from backend_kit.settings import ConnectionBounds
from tests.agentic_backend.knowledge.fake import (
    Answer,
    FakeKnowledge,
    answers,
    fake_knowledge,
    hit,
    raw,
    resets,
    silent,
)
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

QUERY = SearchQuery("how?", 3)
TOKEN = "canary.token.value"


@asynccontextmanager
async def client_of(base_url: str, **endpoint: Any) -> AsyncIterator[KnowledgeClient]:
    client = KnowledgeClient(KnowledgeEndpoint(base_url, **endpoint))
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture
async def fake() -> AsyncIterator[FakeKnowledge]:
    async with fake_knowledge(*(hit(f"d{n}", f"passage {n}") for n in range(5))) as running:
        yield running


@pytest.fixture
async def client(fake: FakeKnowledge) -> AsyncIterator[KnowledgeClient]:
    async with client_of(fake.base_url) as made:
        yield made


async def test_a_search_sends_what_the_contract_names_and_returns_the_hits(
    fake: FakeKnowledge, client: KnowledgeClient
) -> None:
    query = SearchQuery("how?", 2, ("lib",), ("doc",), "strict", "s1", True, False)
    hits = await client.search(query, Caller())
    assert [found["uid"] for found in hits] == ["d0", "d1"]
    assert fake.calls[0].path == "/knowledge-flow/v1/vector/search"
    assert fake.calls[0].body == {
        "question": "how?",
        "top_k": 2,
        "document_library_tags_ids": ["lib"],
        "document_uids": ["doc"],
        "search_policy": "strict",
        "session_id": "s1",
        "include_session_scope": True,
        "include_corpus_scope": False,
    }


async def test_a_search_leaves_out_what_was_not_said(fake: FakeKnowledge, client: KnowledgeClient) -> None:
    await client.search(SearchQuery("x" * 50_000, 8, session_id="s1", include_session_scope=False), Caller())
    body = fake.calls[0].body
    assert set(body) == {"question", "top_k", "include_session_scope", "include_corpus_scope"}
    assert len(body["question"]) == 4_000


async def test_a_search_may_ask_for_a_rerank_and_returns_the_best_scored_anew(
    fake: FakeKnowledge, client: KnowledgeClient
) -> None:
    best = await client.search(replace(QUERY, top_r=2), Caller())
    assert [(found["uid"], found["rank"], found["retrieval_score"]) for found in best] == [
        ("d2", 1, 0.5),
        ("d1", 2, 0.5),
    ]
    assert [body["rerank"] for body in fake.bodies("search")] == [{"top_r": 2}]


async def test_no_more_than_top_r_hits_are_taken_from_a_service_that_knows_no_rerank(
    fake: FakeKnowledge, client: KnowledgeClient
) -> None:
    fake.search = answers(200, fake.hits)
    assert [found["uid"] for found in await client.search(replace(QUERY, top_r=2), Caller())] == ["d0", "d1"]


async def test_the_callers_token_and_trace_go_along_and_nowhere_else(
    fake: FakeKnowledge, client: KnowledgeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    caller = Caller(Credentials(TOKEN), "r1", trace)
    await client.search(QUERY, caller)
    fake.search = answers(500)
    with pytest.raises(KfUnavailable) as raised:
        await client.search(QUERY, caller)
    headers = fake.calls[0].headers
    assert (headers["Authorization"], headers["X-Request-ID"]) == (f"Bearer {TOKEN}", "r1")
    assert headers["traceparent"] == trace
    assert TOKEN not in caplog.text + repr(caller) + str(raised.value) + json.dumps(fake.calls[0].body)


@pytest.mark.parametrize("token", ["", "a\r\nX-Evil: 1", "é", "x" * 9000])
async def test_a_token_that_no_header_can_carry_is_left_out(
    fake: FakeKnowledge, client: KnowledgeClient, token: str
) -> None:
    await client.search(QUERY, Caller(Credentials(token)))
    assert "Authorization" not in fake.calls[0].headers
    assert "X-Evil" not in fake.calls[0].headers


async def test_connections_are_kept_and_their_number_is_bounded(fake: FakeKnowledge) -> None:
    async with client_of(fake.base_url, max_connections=2) as client:
        for _ in range(3):
            await asyncio.gather(*(client.search(QUERY, Caller()) for _ in range(10)))
    assert len(fake.calls) == 30
    assert len(fake.peers) == 2


async def test_searches_and_waits_for_a_connection_are_counted(fake: FakeKnowledge) -> None:
    registry = CollectorRegistry()
    kpi = Kpi(registry, service="agentic", legacy_ms_names=True)
    client = KnowledgeClient(KnowledgeEndpoint(fake.base_url, max_connections=1), AgenticMetrics(registry, kpi))
    try:
        await asyncio.gather(*(client.search(QUERY, Caller()) for _ in range(3)))
        fake.hits.clear()
        assert await client.search(QUERY, Caller()) == []
    finally:
        await client.aclose()
    assert registry.get_sample_value("rag_search_total") == 4
    assert registry.get_sample_value("rag_search_empty_total") == 1
    assert registry.get_sample_value("app_http_pool_wait_seconds_count", {"pool": "kf"}) == 2


async def test_each_call_is_a_phase_with_its_outcome(fake: FakeKnowledge) -> None:
    registry = CollectorRegistry()
    ledger = Ledger(Kpi(registry, service="agentic"))
    with ledger.activate():
        async with (
            client_of(fake.base_url, deadline_s=PATIENCE_S) as client,
            client_of(fake.base_url, deadline_s=0.2) as hasty,
        ):
            await client.search(QUERY, Caller())
            fake.search = silent
            with pytest.raises(KfUnavailable):
                await hasty.search(QUERY, Caller())
            fake.search = answers(503)
            with pytest.raises(KfUnavailable):
                await client.search(QUERY, Caller())
    assert [row["phase"] for row in ledger.rows()] == ["kf_vector_search"] * 3
    for status in ("ok", "timeout", "error"):
        labels = {"phase": "kf_vector_search", "status": status}
        assert registry.get_sample_value("app_phase_latency_seconds_count", labels) == 1


# Faults


async def dribbles(request: web.Request, _body: Any) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [silent, dribbles])
async def test_the_deadline_is_over_the_whole_call(fake: FakeKnowledge, answer: Answer) -> None:
    """An answer that drips for ever never falls silent, and ends at the deadline all the same."""
    fake.search = answer
    async with client_of(fake.base_url, deadline_s=0.2) as client:
        with pytest.raises(KfUnavailable):
            async with asyncio.timeout(PATIENCE_S):
                await client.search(QUERY, Caller())
    assert len(fake.calls) <= 1  # a busy machine may not even get there


async def test_a_reset_connection_is_tried_once_more(fake: FakeKnowledge, client: KnowledgeClient) -> None:
    fake.search = resets(1, answers(200, [hit("d", "x")]))
    assert [found["uid"] for found in await client.search(QUERY, Caller())] == ["d"]
    assert len(fake.calls) == 2


async def test_a_read_is_tried_twice_and_not_twice_by_each_of_two_layers() -> None:
    """aiohttp tries a GET again by itself where its connection is lost."""
    asked = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, client_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(KfUnavailable):
            await client.markdown("d", Caller())
        assert asked == 2
        with pytest.raises(KfUnavailable):
            await client.passage("d", "c", Caller())
        assert asked == 4


async def test_a_second_reset_is_the_end(fake: FakeKnowledge, client: KnowledgeClient) -> None:
    fake.search = resets(5, answers(200, []))
    with pytest.raises(KfUnavailable):
        await client.search(QUERY, Caller())
    assert len(fake.calls) == 2


async def test_a_refused_connection_is_kf_unavailable() -> None:
    async with client_of(f"http://127.0.0.1:{free_port()}/v1") as client:
        with pytest.raises(KfUnavailable):
            await client.search(QUERY, Caller())


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422, 429, 500, 502, 503])
async def test_no_status_but_200_is_an_answer_and_none_is_tried_again(
    fake: FakeKnowledge, client: KnowledgeClient, status: int
) -> None:
    fake.search = answers(status, {"detail": "x"}, Location=fake.base_url + "/elsewhere")
    with pytest.raises(KfUnavailable) as raised:
        await client.search(QUERY, Caller())
    assert str(raised.value) == f"HTTP {status}"
    assert len(fake.calls) == 1


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("99999", 60.0), ("soon", None), ("-1", None), ("", None)])
async def test_the_wait_that_it_asks_for_is_passed_on(
    fake: FakeKnowledge, client: KnowledgeClient, header: str, seconds: float | None
) -> None:
    fake.search = answers(503, **{"Retry-After": header})
    with pytest.raises(KfUnavailable) as raised:
        await client.search(QUERY, Caller())
    assert raised.value.retry_after_s == seconds


async def test_ten_thousand_hits_are_cut_at_top_k(fake: FakeKnowledge, client: KnowledgeClient) -> None:
    fake.search = answers(200, [hit(f"d{n}", "x") for n in range(10_000)])
    assert len(await client.search(QUERY, Caller())) == 3


async def test_huge_texts_are_clipped(fake: FakeKnowledge, client: KnowledgeClient) -> None:
    fake.search = answers(
        200, [hit("d", "x" * 100_000, title="t" * 9_000, author="a" * 9_000, tag_names=["n" * 9_000] * 99)]
    )
    (found,) = await client.search(QUERY, Caller())
    assert [len(found[key]) for key in ("content", "title", "author", "tag_names")] == [8_000, 2_000, 2_000, 50]
    assert {len(name) for name in found["tag_names"]} == {2_000}


async def test_an_answer_above_its_bound_is_not_read_to_its_end(fake: FakeKnowledge) -> None:
    fake.search = answers(200, [hit("d", "x" * 500_000)])
    async with client_of(fake.base_url, max_body_bytes=100_000) as client:
        with pytest.raises(KfUnavailable, match="too large"):
            await client.search(QUERY, Caller())


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<html>", b"null", b"{}", b'{"hits": []}', b"[1]", b"[null]", b"[{}]", b'"x"', b"[" * 5_000,
        b'[{"uid":"d","title":"t","content":"c"}]',
        b'[{"uid":"d","title":"t","content":"c","score":"high"}]',
        b'[{"uid":"d","title":"t","content":"c","score":true}]',
        b'[{"uid":"d","title":"t","content":"c","score":null}]',
        b'[{"uid":"","title":"t","content":"c","score":1}]',
        b'[{"uid":7,"title":"t","content":"c","score":1}]',
        b'[{"uid":"d","title":"t","content":["c"],"score":1}]',
        b'[{"uid":"d","title":"\\ud800","content":"c","score":1}]',
        b'[{"uid":"d","title":"\xff","content":"c","score":1}]',
        b'[{"uid":"d","title":"t","content":"c","score":NaN}]',
    ],
)  # fmt: skip
async def test_what_is_no_list_of_hits_is_kf_unavailable(
    fake: FakeKnowledge, client: KnowledgeClient, data: bytes
) -> None:
    fake.search = raw(data)
    with pytest.raises(KfUnavailable, match="broken answer"):
        await client.search(QUERY, Caller())


async def test_optional_keys_of_another_type_and_unknown_keys_are_dropped(
    fake: FakeKnowledge, client: KnowledgeClient
) -> None:
    odd = {
        "page": "7",
        "rank": 1.5,
        "section": ["a"],
        "confidential": "yes",
        "tag_ids": [1, "t"],
        "score": 2,
        "evil": "x",
    }
    fake.search = answers(200, [{"uid": "d", "title": "t", "content": "c", "author": "\x00a", "page": None, **odd}])
    assert await client.search(QUERY, Caller()) == [
        {"uid": "d", "title": "t", "content": "c", "score": 2, "author": "\ufffda", "tag_ids": ["t"]}
    ]


async def test_what_is_down_is_no_longer_asked_and_each_route_has_its_own_breaker(
    fake: FakeKnowledge, client: KnowledgeClient
) -> None:
    fake.search = answers(500)
    for _ in range(8):
        with pytest.raises(KfUnavailable):
            await client.search(QUERY, Caller())
    assert len(fake.bodies("search")) == 5
    assert client.health == "down"
    assert await client.markdown("d0", Caller()) is None  # the fake has no such route: it was asked


async def test_a_slow_service_is_no_longer_waited_for(fake: FakeKnowledge) -> None:
    fake.search = silent
    async with client_of(fake.base_url, deadline_s=0.25) as client:
        for _ in range(5):
            with pytest.raises(KfUnavailable, match="late"):
                await client.search(QUERY, Caller())
        asked = len(fake.calls)
        with pytest.raises(KfUnavailable, match="circuit open") as raised:
            await client.search(QUERY, Caller())
        assert client.health == "down"
    assert raised.value.retry_after_s is not None
    assert len(fake.calls) == asked <= 5


async def test_late_calls_of_one_user_alone_take_documents_from_nobody(fake: FakeKnowledge) -> None:
    """They may have waited for the user's own searches, of which knowledge flow lets some run at a time."""
    fake.search = silent
    async with client_of(fake.base_url, deadline_s=0.05) as client:
        for _ in range(7):
            with pytest.raises(KfUnavailable, match="late"):
                await client.search(QUERY, Caller(user_id="mallory"))
        assert client.health != "down"
        for user in ("alice", "bob", "mallory", "mallory", "mallory"):
            with pytest.raises(KfUnavailable):
                await client.search(QUERY, Caller(user_id=user))
        assert client.health == "down"
    async with client_of(fake.base_url, deadline_s=0.05, one_user=True) as client:
        for _ in range(5):
            with pytest.raises(KfUnavailable, match="late"):
                await client.search(QUERY, Caller(user_id="admin"))
        assert client.health == "down"


async def test_refusals_of_single_requests_do_not_open_the_breaker(
    fake: FakeKnowledge, client: KnowledgeClient
) -> None:
    for status in (401, 404, 422, 429, 401, 404, 422, 429):
        fake.search = answers(status)
        with pytest.raises(KfUnavailable):
            await client.search(QUERY, Caller())
    assert client.health != "down"


async def test_a_cancelled_call_closes_its_connection(fake: FakeKnowledge, client: KnowledgeClient) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def held(_request: web.Request, _body: Any) -> web.StreamResponse:
        arrived.set()
        try:
            return await silent(_request, _body)
        finally:
            gone.set()

    fake.search = held
    async with asyncio.TaskGroup() as group:
        call = group.create_task(client.search(QUERY, Caller()))
        await arrived.wait()
        call.cancel()
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    assert client.health != "down"


async def test_failures_are_said_once_a_second_without_what_was_asked(
    fake: FakeKnowledge, client: KnowledgeClient, caplog: pytest.LogCaptureFixture
) -> None:
    fake.search = answers(500, {"detail": "canary-body"})
    begun = time.perf_counter()
    for _ in range(4):
        with pytest.raises(KfUnavailable):
            await client.search(SearchQuery("canary-question", 3), Caller())
    said = [record.getMessage() for record in caplog.records]
    # A line that comes a second later ends with how many were left out.
    assert {line.partition(" (")[0] for line in said} == {"knowledge flow failed: kf_vector_search: HTTP 500"}
    assert len(said) <= 1 + (time.perf_counter() - begun)
    assert "canary" not in caplog.text


@pytest.mark.parametrize("endpoint", [KnowledgeEndpoint, AttachmentEndpoint])
def test_no_request_meets_the_end_of_a_connection_that_was_idle(
    endpoint: type[KnowledgeEndpoint | AttachmentEndpoint],
) -> None:
    assert endpoint("http://127.0.0.1").keepalive_s <= ConnectionBounds().idle_s - 1.0


@pytest.mark.parametrize("bad", [{"deadline_s": 0}, {"max_connections": 0}, {"read_s": -1}])
def test_an_endpoint_without_bounds_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        KnowledgeEndpoint("http://127.0.0.1", **bad)
