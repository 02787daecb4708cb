"""An OpenAI-compatible endpoint: the shipped mock, and servers that do each thing wrong."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from backend_kit.aio import TaskRegistry
from backend_kit.client.connections import Connections
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed.batcher import BatchRules
from knowledge_flow_backend.embed.model_server import ModelServer
from knowledge_flow_backend.embed.openai import EmbeddingRules, OpenAiEmbedder
from knowledge_flow_backend.errors import EmbeddingUnavailable, SchemaMismatch
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from tests.knowledge_flow_backend.corpus import vector
from tests.support.mock_llm import MockModel
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CANARY = "canary-question"


@asynccontextmanager
async def embedder(
    base_url: str, *, max_retries: int = 0, read_s: float = 10.0, slots: int = 8, dimensions: int | None = None
) -> AsyncIterator[OpenAiEmbedder]:
    kpi = Kpi(CollectorRegistry(), service="kf")
    tasks = TaskRegistry()
    connections = Connections(max_connections=16, connect_s=2.0, read_s=read_s)
    model_server = ModelServer(f"{base_url}/embeddings", SecretStr("key-canary"), connections, max_retries)
    rules = BatchRules(slots=slots, queries=32, documents=4, waiting=100)
    embedding = EmbeddingRules("mock", dimensions)
    made = OpenAiEmbedder(model_server, embedding, rules, metrics=KnowledgeFlowMetrics(kpi.registry, kpi), tasks=tasks)
    try:
        yield made
    finally:
        await made.aclose()
        await tasks.aclose()


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """A server of one route; its base URL."""
    app = web.Application()
    app.router.add_post("/v1/embeddings", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def entry(index: int, numbers: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": numbers}


async def test_the_mock_gives_its_vectors_in_order(mock_llm: MockModel) -> None:
    async with embedder(mock_llm.base_url) as made:
        texts = [f"passage {number}" for number in range(50)]
        for text, one in zip(texts, await made.embed_documents(texts), strict=True):
            assert np.allclose(one, vector(text), atol=1e-6)
        assert np.allclose(await made.embed_query("question"), vector("question"), atol=1e-6)


async def test_an_endpoint_is_called_ready_once_it_has_answered() -> None:
    status = 503

    async def handler(_request: web.Request) -> web.Response:
        return web.json_response({"data": [entry(0, vector("q").tolist())]}, status=status)

    async with server(handler) as url, embedder(url) as made:
        told = [made.state]
        for _ in range(5):
            with pytest.raises(EmbeddingUnavailable):
                await made.embed_query("q")
            told.append(made.state)
    status = 200
    async with server(handler) as url, embedder(url) as made:
        await made.embed_query("q")
        told.append(made.state)
    assert told == ["unknown"] * 5 + ["down", "ready"]


async def test_questions_that_come_while_the_endpoint_is_busy_go_together() -> None:
    sizes: list[int] = []
    arrived, first = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        sizes.append(len(texts))
        if len(sizes) == 1:
            arrived.set()
            await first.wait()
        return web.json_response({"data": [entry(place, vector(text).tolist()) for place, text in enumerate(texts)]})

    async with server(handler) as url, embedder(url, slots=1) as made, asyncio.TaskGroup() as group:
        asked = [group.create_task(made.embed_query(f"q{number}")) for number in range(10)]
        await arrived.wait()
        first.set()
        await asyncio.wait(asked)
    assert sizes == [1, 9]
    for number, task in enumerate(asked):
        assert np.allclose(task.result(), vector(f"q{number}"))


@pytest.mark.parametrize("encoding", ["list", "base64"])
async def test_vectors_are_taken_by_their_index_and_made_unit_vectors(encoding: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key-canary"
        texts = (await request.json())["input"]
        entries: list[dict[str, Any]] = []
        for place, text in enumerate(texts):
            numbers = vector(text) * 7.5
            shown = numbers.tolist() if encoding == "list" else base64.b64encode(numbers.tobytes()).decode()
            entries.insert(0, entry(place, shown))
        return web.json_response({"data": entries})

    async with server(handler) as url, embedder(url) as made:
        one, other = await made.embed_documents(["one", "other"])
        assert np.allclose(one, vector("one"), atol=1e-6)
        assert np.allclose(other, vector("other"), atol=1e-6)


GOOD = {"data": [entry(0, [3.0, 4.0])]}
BAD_ANSWERS = [
    b"not json",
    b"[]",
    b"null",
    json.dumps({"data": []}).encode(),
    json.dumps({"data": [entry(1, [1.0])]}).encode(),
    json.dumps({"data": [entry(0, [1.0]), entry(0, [1.0])]}).encode(),
    json.dumps({"data": [entry(0, [0.0, 0.0])]}).encode(),
    json.dumps({"data": [entry(0, [])]}).encode(),
    json.dumps({"data": [entry(0, ["x"])]}).encode(),
    json.dumps({"data": [entry(0, [[1.0]])]}).encode(),
    json.dumps({"data": [entry(0, [1e39])]}).encode(),
    json.dumps({"data": [entry(0, "!!!")]}).encode(),
    json.dumps({"data": [entry(0, "AAA=")]}).encode(),
    json.dumps({"data": [{"embedding": [1.0]}]}).encode(),
    json.dumps({"data": [{"index": "0", "embedding": [1.0]}]}).encode(),
]


@pytest.mark.parametrize("answer", BAD_ANSWERS)
async def test_an_answer_without_the_vectors_asked_for_is_a_failure(answer: bytes) -> None:
    asked = 0

    async def handler(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(body=answer, content_type="application/json")

    async with server(handler) as url, embedder(url, max_retries=3) as made:
        with pytest.raises(EmbeddingUnavailable) as caught:
            await made.embed_query(CANARY)
    assert CANARY not in str(caught.value)
    assert asked == 1


async def test_the_length_of_vectors_does_not_change() -> None:
    answers = iter([[1.0, 0.0], [1.0, 0.0, 0.0]])

    async def handler(_request: web.Request) -> web.Response:
        return web.json_response({"data": [entry(0, next(answers))]})

    async with server(handler) as url, embedder(url) as made:
        await made.embed_query("q")
        with pytest.raises(SchemaMismatch, match="3 numbers instead of 2"):
            await made.embed_query("q")


async def test_the_length_asked_for_is_asked_for_and_held_against_the_answer() -> None:
    asked: list[object] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append((await request.json())["dimensions"])
        return web.json_response({"data": [entry(0, [1.0] * (3 if len(asked) == 1 else 4))]})

    async with server(handler) as url, embedder(url, dimensions=3) as made:
        assert await made.dimension() == 3
        with pytest.raises(SchemaMismatch, match="4 numbers instead of 3"):
            await made.embed_query("q")
    assert asked == [3, 3]


async def test_a_text_of_nothing_is_sent_as_a_full_stop() -> None:
    got: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        got.extend(texts)
        return web.json_response({"data": [entry(place, vector(text).tolist()) for place, text in enumerate(texts)]})

    async with server(handler) as url, embedder(url) as made:
        assert await made.embed_documents([]) == []
        await made.embed_documents(["", " \n", "text"])
    assert got == [".", ".", "text"]


async def test_a_text_that_is_too_long_is_embedded_by_its_beginning() -> None:
    """And those that came with it are not held against it."""

    async def handler(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        if any(len(text) > 1000 for text in texts):
            return web.Response(status=413)
        return web.json_response({"data": [entry(place, vector(text).tolist()) for place, text in enumerate(texts)]})

    long = "spool " * 1000
    async with server(handler) as url, embedder(url) as made:
        vectors = await made.embed_documents(["one", long, "two", "three"])
    for text, one in zip(["one", long[:750], "two", "three"], vectors, strict=True):
        assert np.allclose(one, vector(text), atol=1e-6)


async def test_a_text_that_is_refused_fails_alone() -> None:
    asked = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        texts = (await request.json())["input"]
        if CANARY in texts:
            return web.Response(status=400, text=f"error about {CANARY}")
        return web.json_response({"data": [entry(place, vector(text).tolist()) for place, text in enumerate(texts)]})

    async with server(handler) as url, embedder(url) as made:
        texts = ["one", CANARY, "two", "three"]
        asked_for = [asyncio.ensure_future(made.embed_query(text)) for text in texts]
        await asyncio.wait(asked_for)
        with pytest.raises(EmbeddingUnavailable, match="refuses a text"):
            await made.embed_documents(texts)
    for text, task in zip(texts, asked_for, strict=True):
        if text == CANARY:
            assert isinstance(task.exception(), EmbeddingUnavailable)
        else:
            assert np.allclose(task.result(), vector(text), atol=1e-6)


async def test_an_endpoint_that_refuses_everything_is_not_asked_for_ever() -> None:
    asked = 0

    async def handler(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=400)

    async with server(handler) as url, embedder(url) as made:
        with pytest.raises(EmbeddingUnavailable):
            await made.embed_documents(["word " * 10_000] * 4)
    assert asked == 16


async def test_after_a_429_questions_are_told_when_to_come_back() -> None:
    asked = 0

    async def handler(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=429, headers={"Retry-After": "3600"})

    async with server(handler) as url, embedder(url, max_retries=5) as made:
        for _ in range(3):
            with pytest.raises(EmbeddingUnavailable) as caught:
                await made.embed_query("q")
            assert caught.value.retry_after_s is not None
            assert 0 < caught.value.retry_after_s <= 60
        passages = asyncio.ensure_future(made.embed_documents(["passage"]))
        done, _ = await asyncio.wait([passages], timeout=0.01)
        assert not done
        passages.cancel()
    assert asked == 1


async def test_an_endpoint_that_is_down_is_left_alone() -> None:
    asked = 0

    async def handler(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=503)

    async with server(handler) as url, embedder(url) as made:
        for _ in range(5):
            with pytest.raises(EmbeddingUnavailable, match="HTTP 503"):
                await made.embed_query("q")
        with pytest.raises(EmbeddingUnavailable, match="circuit open"):
            await made.embed_query("q")
    assert asked == 5


@pytest.mark.parametrize(("status", "tries"), [(429, 3), (500, 3), (503, 3), (404, 1), (401, 1), (302, 1)])
async def test_what_may_pass_is_tried_again(status: int, tries: int, caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def handler(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
        return web.Response(status=status, text=f"error about {CANARY}", headers=headers)

    async with server(handler) as url, embedder(url, max_retries=2) as made:
        with pytest.raises(EmbeddingUnavailable, match=f"HTTP {status}"):
            await made.embed_query(CANARY)
    assert asked == tries
    assert CANARY not in caplog.text
    assert "key-canary" not in caplog.text


async def test_a_second_attempt_may_succeed() -> None:
    answers = iter([web.Response(status=503), web.json_response(GOOD)])

    async def handler(_request: web.Request) -> web.Response:
        return next(answers)

    async with server(handler) as url, embedder(url, max_retries=1) as made:
        assert np.allclose(await made.embed_query("q"), [0.6, 0.8])


async def test_a_silent_endpoint_is_given_up_at_the_deadline() -> None:
    hold = asyncio.Event()

    async def handler(_request: web.Request) -> web.Response:
        await hold.wait()
        return web.json_response(GOOD)

    async with server(handler) as url, embedder(url, read_s=0.2) as made:
        with pytest.raises(EmbeddingUnavailable, match="no answer in time"):
            await made.embed_query("q")
        hold.set()


async def test_an_endpoint_that_is_not_there_is_said() -> None:
    async with embedder(f"http://127.0.0.1:{free_port()}/v1") as made:
        with pytest.raises(EmbeddingUnavailable, match="no answer"):
            await made.embed_query("q")


async def test_an_answer_without_end_is_cut() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(40):
            await response.write(b" " * 1024 * 1024)
        return response

    async with server(handler) as url, embedder(url) as made:
        with pytest.raises(EmbeddingUnavailable, match="too large"):
            await made.embed_query("q")
