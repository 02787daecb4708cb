"""A small knowledge flow over real HTTP: the search of docs/search.md, with an answer that a test may put in place."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Call:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class FakeKnowledge:
    """`hits` are what every search finds, cut at its top_k; its rerank turns their order round and scores them anew."""

    base_url: str = ""
    hits: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    search: Answer | None = None
    reranks: bool = True
    peers: set[Any] = field(default_factory=set)

    def bodies(self, route: str) -> list[Any]:
        """What was sent to /vector/{route}, in order."""
        return [call.body for call in self.calls if call.path.endswith(f"/vector/{route}")]


def hit(uid: str, content: str, *, score: float = 0.5, **more: Any) -> dict[str, Any]:
    """A VectorSearchHit with what knowledge flow sends beside the required keys."""
    return {
        "uid": uid,
        "title": f"Title of {uid}",
        "content": content,
        "score": score,
        "rank": 1,
        "section": "Chapter > Part",
        "file_name": f"{uid}.md",
        "mime_type": "text/markdown",
        "tag_ids": ["t1"],
        "citation_url": f"/documents/{uid}#chunk={uid}-1",
        "embedding_model": "m",
        "token_count": 12,
        **more,
    }


@asynccontextmanager
async def fake_knowledge(*hits: dict[str, Any]) -> AsyncIterator[FakeKnowledge]:
    """Serve until the block ends."""
    fake = FakeKnowledge(hits=list(hits))

    async def search(request: web.Request) -> web.StreamResponse:
        body = await _note(fake, request)
        if fake.search is not None:
            return await fake.search(request, body)
        hits = fake.hits[: body["top_k"]]
        if "rerank" in body:
            hits = (reranked(hits) if fake.reranks else hits)[: body["rerank"]["top_r"]]
        return web.json_response(hits)

    app = web.Application(client_max_size=32 * 1024 * 1024)
    app.router.add_post("/knowledge-flow/v1/vector/search", search)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/knowledge-flow/v1"
    try:
        yield fake
    finally:
        await runner.cleanup()


def reranked(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Last first, with scores and ranks of the rerank and the old ones kept."""
    return [
        {**old, "score": 1 / rank, "rank": rank, "retrieval_score": old["score"], "retrieval_rank": old.get("rank")}
        for rank, old in enumerate(reversed(documents), 1)
    ]


def answers(status: int = 200, body: Any = None, **headers: str) -> Answer:
    """Answer with JSON."""

    async def answer(_request: web.Request, _body: Any) -> web.StreamResponse:
        return web.json_response(body if body is not None else {}, status=status, headers=headers)

    return answer


def raw(data: bytes) -> Answer:
    """Answer with these bytes."""

    async def answer(_request: web.Request, _body: Any) -> web.StreamResponse:
        return web.Response(body=data, content_type="application/json")

    return answer


async def silent(_request: web.Request, _body: Any) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


def resets(count: int, then: Answer) -> Answer:
    """Cut the connection of the first `count` requests, then answer."""
    left = [count]

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        if left[0]:
            left[0] -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return await then(request, body)

    return answer


async def _note(fake: FakeKnowledge, request: web.Request) -> Any:
    body = await request.json()
    fake.calls.append(Call(request.path, dict(request.headers), body))
    fake.peers.add(request.transport.get_extra_info("peername") if request.transport else None)
    return body
