"""Rerank servers in the five shapes: strict about what they are asked, exact in what they answer, and in how they fail.

A request with a key, a type or a number that the real server would refuse is answered with 422, and so is noticed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from knowledge_flow_backend.rerank.shapes import Shape

KEY = "rerank-key-canary"
Scores = list[float]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Cohere(_Strict):
    model: str
    query: str
    documents: Annotated[list[str], Field(min_length=1, max_length=1000)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_doc: int | None = None
    priority: int | None = None


class _Text(_Strict):
    text: str


class _Jina(_Strict):
    model: str
    query: str
    documents: list[str | _Text]
    top_n: int | None = None
    return_documents: bool = True


class _Vllm(_Strict):
    model: str | None = None
    query: str
    documents: list[str]
    top_n: Annotated[int, Field(ge=0)] = 0
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None


class _Tei(_Strict):
    query: Annotated[str, Field(min_length=1)]
    texts: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=32)]
    truncate: bool = False
    raw_scores: bool = False
    return_text: bool = False


class _Infinity(_Strict):
    model: str
    query: str
    documents: Annotated[list[str], Field(min_length=1, max_length=2048)]
    return_documents: bool = False
    raw_scores: bool = False
    top_n: Annotated[int, Field(ge=1)] | None = None


def score(query: str, text: str) -> float:
    """How a fake server scores: the share of the text's words that stand in the question."""
    words = text.lower().split()
    return sum(word in query.lower().split() for word in words) / max(len(words), 1)


def _ranked(request: Any, texts: list[str], key: str) -> list[dict[str, Any]]:
    entries = [{"index": place, key: score(request.query, text)} for place, text in enumerate(texts)]
    entries.sort(key=lambda entry: -entry[key])
    return entries[: getattr(request, "top_n", None) or len(entries)]


def _cohere(request: _Cohere) -> Any:
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return {"id": "r1", "results": _ranked(request, request.documents, "relevance_score"), "meta": meta}


def _jina(request: _Jina) -> Any:
    texts = [given if isinstance(given, str) else given.text for given in request.documents]
    results = _ranked(request, texts, "relevance_score")
    if request.return_documents:
        results = [{**entry, "document": {"text": texts[entry["index"]]}} for entry in results]
    return {"model": request.model, "results": results, "usage": {"total_tokens": 9, "prompt_tokens": 9}}


def _vllm(request: _Vllm) -> Any:
    results = [
        {**entry, "document": {"text": request.documents[entry["index"]]}}
        for entry in _ranked(request, request.documents, "relevance_score")
    ]
    return {"id": "rerank-1", "model": request.model, "usage": {"total_tokens": 9}, "results": results}


def _tei(request: _Tei) -> Any:
    return _ranked(request, request.texts, "score")


def _infinity(request: _Infinity) -> Any:
    results = _ranked(request, request.documents, "relevance_score")
    if request.return_documents:
        results = [{**entry, "document": request.documents[entry["index"]]} for entry in results]
    usage = {"prompt_tokens": 9, "total_tokens": 9}
    return {"object": "rerank", "model": request.model, "results": results, "usage": usage, "id": "i", "created": 1}


PATHS: dict[Shape, str] = {
    "cohere": "/v2", "jina": "/v1", "vllm": "/v1", "tei": "", "infinity": "/prefix",
}  # fmt: skip
_SHAPES: dict[Shape, tuple[type[BaseModel], Callable[[Any], Any]]] = {
    "cohere": (_Cohere, _cohere),
    "jina": (_Jina, _jina),
    "vllm": (_Vllm, _vllm),
    "tei": (_Tei, _tei),
    "infinity": (_Infinity, _infinity),
}


def answer_of(shape: Shape, body: Any) -> Any:
    """What a server of this shape answers to a good request. Raises ValidationError for another one."""
    model, answer = _SHAPES[shape]
    return answer(model.model_validate(body))


def in_shape(shape: Shape, entries: list[dict[str, Any]]) -> Any:
    """Entries with `index` and `score`, dressed as an answer of this shape."""
    if shape == "tei":
        return entries
    names = {"index": "index", "score": "relevance_score"}
    return {"results": [{names[key]: value for key, value in entry.items()} for entry in entries]}


@dataclass(slots=True)
class RerankServer:
    """A running server. `fault` answers in its place; `change` alters its good answers."""

    shape: Shape
    base_url: str = ""
    asked: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fault: Fault | None = None
    change: Callable[[Any], Any] | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """`POST …/rerank`."""
        self.asked.append(await request.json())
        self.headers.append(dict(request.headers))
        if self.fault is not None:
            return await self.fault(request)
        if self.shape in ("cohere", "jina") and request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"message": "invalid api token"}, status=401)
        try:
            answer = answer_of(self.shape, self.asked[-1])
        except ValidationError as failure:
            self.refused.append(str(failure))
            return web.json_response({"error": "invalid request"}, status=422)
        return web.json_response(self.change(answer) if self.change is not None else answer)


@asynccontextmanager
async def rerank_server(shape: Shape) -> AsyncIterator[RerankServer]:
    """A server on a free port of loopback."""
    server = RerankServer(shape)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post(f"{PATHS[shape]}/rerank", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATHS[shape]}"
    try:
        yield server
    finally:
        await runner.cleanup()
