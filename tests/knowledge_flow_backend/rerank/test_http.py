"""Reranking by a server, in each of the five shapes: what is sent, what is made of the answer, and of each fault."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from backend_kit.client.connections import Connections
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed.model_server import ModelServer
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Candidate, Reranked, RerankService
from knowledge_flow_backend.rerank.http import HttpReranker, HttpRerankRules, default_batch
from knowledge_flow_backend.rerank.shapes import Shape
from tests.knowledge_flow_backend.corpus import ADMIN
from tests.knowledge_flow_backend.rerank.servers import KEY, RerankServer, in_shape, rerank_server, score
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

SHAPES: tuple[Shape, ...] = get_args(Shape)
QUESTION = "who writes the spool"
TEXTS = ["nobody knows", "the spool is a file", "who writes the spool", "the batcher"]
BEST_FIRST = sorted(range(len(TEXTS)), key=lambda place: -score(QUESTION, TEXTS[place]))
CANARY = "canary-passage"


@pytest.fixture(params=SHAPES)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RerankServer]:
    async with rerank_server(request.param) as running:
        yield running


class Reranking:
    """A `RerankService` on a server, and what it counted."""

    def __init__(self, service: RerankService, registry: CollectorRegistry) -> None:
        self.service = service
        self._registry = registry

    async def ask(self, texts: list[str] = TEXTS, top_r: int = 10, question: str = QUESTION) -> Reranked:
        return await self.service.rerank(question, [Candidate(text) for text in texts], top_r, ADMIN)

    def skipped(self, cause: str) -> float:
        return self._registry.get_sample_value("app_rerank_skipped_total", {"cause": cause}) or 0.0


@asynccontextmanager
async def reranking(
    base_url: str,
    shape: Shape,
    *,
    deadline_s: float = 20.0,
    max_retries: int = 0,
    max_connections: int = 16,
    batch_texts: int | None = None,
) -> AsyncIterator[Reranking]:
    kpi = Kpi(CollectorRegistry(), service="kf", phases=PHASES)
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    connections = Connections(max_connections=max_connections, pool_s=30.0, read_s=30.0)
    model_server = ModelServer(f"{base_url}/rerank", SecretStr(KEY), connections, max_retries)
    rules = HttpRerankRules(
        shape=shape, model="some-model", batch_texts=batch_texts or default_batch(shape), text_chars=200,
        deadline_s=deadline_s,
    )  # fmt: skip
    assert KEY not in repr(model_server)
    reranker = HttpReranker(model_server, rules, metrics=metrics)
    try:
        yield Reranking(RerankService(reranker, metrics=metrics, kpi=kpi), kpi.registry)
    finally:
        await reranker.aclose()


def as_retrieved(count: int = len(TEXTS)) -> tuple[tuple[int, None], ...]:
    return tuple((place, None) for place in range(count))


async def test_a_server_of_each_shape_takes_the_request_and_gives_the_order(server: RerankServer) -> None:
    async with reranking(server.base_url, server.shape) as made:
        done = await made.ask(top_r=3)
    assert server.refused == []
    assert done.skipped is None
    assert [place for place, _ in done.order] == BEST_FIRST[:3]
    assert [found for _, found in done.order] == [score(QUESTION, TEXTS[place]) for place in BEST_FIRST[:3]]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_no_more_goes_out_than_is_needed(server: RerankServer) -> None:
    long = "word " * 1000
    async with reranking(server.base_url, server.shape) as made:
        await made.ask([long, "", " \n"], question=long)
    assert server.refused == []
    (asked,) = server.asked
    assert [len(text) for text in asked.get("documents") or asked["texts"]] == [200, 1, 1]
    assert len(asked["query"]) == 200
    assert "Cookie" not in server.headers[0]


async def test_many_documents_go_out_in_batches_and_come_back_as_one_order(server: RerankServer) -> None:
    texts = [f"{'spool ' * (number % 7)}number {number}" for number in range(250)]
    async with reranking(server.base_url, server.shape) as made:
        done = await made.ask(texts, top_r=250)
    assert server.refused == []
    assert len(server.asked) == (8 if server.shape == "tei" else 3)
    wanted = sorted(range(250), key=lambda place: -score(QUESTION, texts[place]))
    assert [place for place, _ in done.order] == wanted


async def test_one_failed_batch_is_no_order_at_all(server: RerankServer) -> None:
    async def second_fails(_request: web.Request) -> web.Response:
        if len(server.asked) == 2:
            return web.Response(status=500)
        scores = [{"index": place, "score": 0.5} for place in range(2)]
        return web.json_response(in_shape(server.shape, scores))

    server.fault = second_fails
    async with reranking(server.base_url, server.shape, batch_texts=2, max_connections=1) as made:
        done = await made.ask()
    assert (done.order, done.skipped) == (as_retrieved(), "failed")


# What servers of one family answer differently from one another.
def _older_infinity(answer: Any) -> Any:
    return {"object": "rerank", "data": answer} if isinstance(answer, list) else {"data": answer["results"]}


def _documents_as_text(answer: Any) -> Any:
    for entry in answer if isinstance(answer, list) else answer["results"]:
        entry["document"] = "an echo"
    return answer


def _documents_as_objects(answer: Any) -> Any:
    for entry in answer if isinstance(answer, list) else answer["results"]:
        entry["document"], entry["text"] = {"text": "an echo"}, "an echo"
    return answer


def _in_order_of_input(answer: Any) -> Any:
    (answer if isinstance(answer, list) else answer["results"]).sort(key=lambda entry: entry["index"])
    return answer


def _other_name_of_the_score(answer: Any) -> Any:
    for entry in answer if isinstance(answer, list) else answer["results"]:
        name, other = ("score", "relevance_score") if "score" in entry else ("relevance_score", "score")
        entry[other] = entry.pop(name)
    return answer


def _bare_list(answer: Any) -> Any:
    return answer if isinstance(answer, list) else answer["results"]


@pytest.mark.parametrize(
    "change",
    [
        _older_infinity, _documents_as_text, _documents_as_objects, _in_order_of_input, _other_name_of_the_score,
        _bare_list,
    ],
)  # fmt: skip
async def test_variants_of_an_answer_are_understood(server: RerankServer, change: Callable[[Any], Any]) -> None:
    server.change = change
    async with reranking(server.base_url, server.shape) as made:
        done = await made.ask()
    assert done.skipped is None
    assert [place for place, _ in done.order] == BEST_FIRST


@pytest.mark.parametrize(
    ("status", "cause", "tries"),
    [(429, "busy", 3), (500, "failed", 3), (503, "failed", 3), (400, "failed", 1), (401, "failed", 1),
     (413, "failed", 1), (302, "failed", 1), (204, "failed", 1)],
)  # fmt: skip
async def test_a_refusal_leaves_the_order_and_what_may_pass_is_tried_again(
    server: RerankServer, status: int, cause: str, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        if status == 204:
            return web.Response(status=status)
        headers = {"Location": str(request.url)} if status == 302 else {}
        return web.Response(status=status, text=f"about {CANARY}", headers=headers)

    server.fault = refuse
    async with reranking(server.base_url, server.shape, max_retries=2) as made:
        done = await made.ask([CANARY, "other"], top_r=1)
    assert (done.order, done.skipped) == (as_retrieved(1), cause)
    assert made.skipped(cause) == 1
    assert len(server.asked) == tries
    assert CANARY not in caplog.text
    assert KEY not in caplog.text


async def test_a_second_attempt_may_succeed(server: RerankServer) -> None:
    async def once(_request: web.Request) -> web.Response:
        server.fault = None
        return web.Response(status=429, headers={"Retry-After": "0"})

    server.fault = once
    async with reranking(server.base_url, server.shape, max_retries=1) as made:
        done = await made.ask()
    assert done.skipped is None
    assert len(server.asked) == 2


async def test_a_wait_that_the_deadline_does_not_allow_is_not_begun(server: RerankServer) -> None:
    async def later(_request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "60"})

    server.fault = later
    async with reranking(server.base_url, server.shape, max_retries=5) as made:
        done = await made.ask()
    # Not `late`: it has not waited for the deadline.
    assert (done.order, done.skipped) == (as_retrieved(), "busy")
    assert len(server.asked) == 1


def _entries(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"index": index, "score": value} for index, value in pairs]


NONSENSE: dict[str, Any] = {
    "an index that was not sent": _entries((0, 0.5), (1, 0.5), (2, 0.5), (4, 0.5)),
    "a negative index": _entries((0, 0.5), (1, 0.5), (2, 0.5), (-1, 0.5)),
    "an index twice": _entries((0, 0.5), (1, 0.5), (2, 0.5), (2, 0.5)),
    "one missing": _entries((0, 0.5), (1, 0.5), (2, 0.5)),
    "none": [],
    "no index": [{"score": 0.5}] * 4,
    "an index of text": _entries(("0", 0.5), (1, 0.5), (2, 0.5), (3, 0.5)),
    "an index that is a truth": _entries((False, 0.5), (True, 0.5), (2, 0.5), (3, 0.5)),
    "a score of text": _entries((0, "0.5"), (1, 0.5), (2, 0.5), (3, 0.5)),
    "no score": _entries((0, None), (1, 0.5), (2, 0.5), (3, 0.5)),
    "a score that is NaN": _entries((0, float("nan")), (1, 0.5), (2, 0.5), (3, 0.5)),
    "a score that is infinite": _entries((0, float("inf")), (1, 0.5), (2, 0.5), (3, 0.5)),
}
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"<html>bad gateway</html>",
    "half of it": b'{"results": [{"index": 0, "relevance_sc',
    "a number too large": b'[{"index": 0, "score": 1e999}]',
    "null": b"null",
    "a text": b'"results"',
    "another object": b'{"error": "overloaded", "error_type": "Overloaded"}',
    "results that are none": b'{"results": {"index": 0}}',
    "results of numbers": b"[0.1, 0.2, 0.3, 0.4]",
}


async def test_an_answer_that_is_no_order_leaves_the_one_of_retrieval(server: RerankServer) -> None:
    """None is tried again, and none is a reason not to ask the next time."""
    in_the_shape = {name: json.dumps(in_shape(server.shape, entries)).encode() for name, entries in NONSENSE.items()}
    answers = {**in_the_shape, **BODIES}
    bodies = iter(answers.values())

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=next(bodies), content_type="application/json")

    server.fault = answer
    async with reranking(server.base_url, server.shape, max_retries=3) as made:
        for number, name in enumerate(answers, start=1):
            done = await made.ask()
            assert (done.order, done.skipped, len(server.asked)) == (as_retrieved(), "failed", number), name


async def test_an_answer_that_is_cut_off_is_tried_again(server: RerankServer) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"results": [')
        assert request.transport is not None
        request.transport.close()
        return response

    server.fault = cut
    async with reranking(server.base_url, server.shape, max_retries=1) as made:
        done = await made.ask()
    assert done.skipped == "failed"
    assert len(server.asked) == 2


async def test_an_answer_of_a_hundred_megabytes_is_not_read(server: RerankServer) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for _ in range(100):
                await response.write(b" " * (1 << 20))
                sent += 1
        except ConnectionError:
            pass
        return response

    server.fault = flood
    async with reranking(server.base_url, server.shape) as made:
        done = await made.ask()
    assert (done.order, done.skipped) == (as_retrieved(), "failed")
    assert sent < 100


async def test_a_silent_server_is_left_at_the_deadline(server: RerankServer) -> None:
    release = asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    server.fault = hold
    async with reranking(server.base_url, server.shape, deadline_s=0.05, max_retries=5) as made:
        for _ in range(5):
            done = await made.ask()
            assert (done.order, done.skipped) == (as_retrieved(), "late")
        # Five in a row: the next one does not wait for the deadline.
        assert (await made.ask()).skipped == "failed"
    release.set()
    assert (made.skipped("late"), made.skipped("failed")) == (5, 1)


async def test_a_server_that_is_not_there_is_said_in_words(caplog: pytest.LogCaptureFixture) -> None:
    async with reranking(f"http://127.0.0.1:{free_port()}", "vllm") as made:
        assert (await made.ask()).skipped == "failed"
    said = [record.getMessage() for record in caplog.records]
    assert said == ["reranker some-model: no answer: ClientConnectorError", "rerank: skipped (failed)"]


async def test_a_caller_who_leaves_says_nothing_of_the_server(server: RerankServer) -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        arrived.set()
        await release.wait()
        return web.Response()

    server.fault = hold
    async with reranking(server.base_url, server.shape) as made:
        for _ in range(6):
            arrived.clear()
            asked = asyncio.ensure_future(made.ask())
            await arrived.wait()
            asked.cancel()
            await asyncio.wait([asked])
        server.fault = None
        release.set()
        assert (await made.ask()).skipped is None


async def test_connections_are_bounded(server: RerankServer) -> None:
    open_now = most = 0
    full, release = asyncio.Event(), asyncio.Event()

    async def count(_request: web.Request) -> web.Response:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 2:
            full.set()
        await release.wait()
        open_now -= 1
        entries = [{"index": place, "score": 0.5} for place in range(len(TEXTS))]
        return web.json_response(in_shape(server.shape, entries))

    server.fault = count
    async with reranking(server.base_url, server.shape, max_connections=2) as made, asyncio.TaskGroup() as group:
        asked = [group.create_task(made.ask()) for _ in range(8)]
        await full.wait()
        release.set()
        await asyncio.wait(asked)
        assert [task.result().skipped for task in asked] == [None] * 8
    assert most == 2
    waited = made._registry.get_sample_value("app_http_pool_wait_seconds_count", {"pool": "rerank"})
    assert waited == 6
