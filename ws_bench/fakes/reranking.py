"""Reranks of the fake model: the cosine of question and document, answered in the shape of the request.

`texts` is the shape of TEI; `documents` that of Cohere, Jina, vLLM and infinity, which share one answer: documents are
repeated only if `return_documents` asks for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ws_bench.fakes.embedding import DEFAULT_DIMENSIONS, embed
from ws_bench.fakes.http import BadRequest, json_object

MAX_DOCUMENTS = 1000
MAX_TEI_TEXTS = 32


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A validated request. `model` is None in the shape of TEI."""

    model: str | None
    query: str
    documents: list[str]
    top_n: int
    echo: bool


def rerank_request(body: bytes) -> RerankRequest:
    """Read a request in either shape. Raises `BadRequest`."""
    request = json_object(body, "query")
    if "texts" in request:
        texts = _documents(request["texts"], "texts", MAX_TEI_TEXTS)
        return RerankRequest(None, request["query"], texts, len(texts), request.get("return_text") is True)
    if not isinstance(request.get("model"), str):
        raise BadRequest("`model` must be a string")
    documents = _documents(request.get("documents"), "documents", MAX_DOCUMENTS)
    top_n = request.get("top_n") or len(documents)
    if not isinstance(top_n, int) or top_n < 1:
        raise BadRequest("`top_n` must be a number of documents")
    return RerankRequest(request["model"], request["query"], documents, top_n, request.get("return_documents") is True)


def rerank_body(request: RerankRequest) -> object:
    """The answer, best document first."""
    tei = request.model is None
    key = "score" if tei else "relevance_score"
    scores = _cosines(request.query, request.documents)
    best = sorted(range(len(scores)), key=lambda place: -scores[place])[: request.top_n]
    results: list[dict[str, Any]] = [{"index": place, key: scores[place]} for place in best]
    if request.echo:
        for entry in results:
            text = request.documents[entry["index"]]
            entry.update({"text": text} if tei else {"document": {"text": text}})
    if tei:
        return results
    tokens = sum(len(text.split()) for text in (request.query, *request.documents))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "rerank", "id": "rerank-mock", "model": request.model, "results": results, "usage": usage}


def _documents(given: Any, name: str, most: int) -> list[str]:
    if not isinstance(given, list) or not 1 <= len(given) <= most:
        raise BadRequest(f"`{name}` must hold 1..{most} texts")
    texts: list[Any] = [item.get("text") if isinstance(item, dict) else item for item in given]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"`{name}` must hold texts")
    return texts


def _cosines(query: str, documents: Sequence[str]) -> list[float]:
    asked = embed(query, DEFAULT_DIMENSIONS)
    return [
        sum(one * other for one, other in zip(asked, embed(text, DEFAULT_DIMENSIONS), strict=True))
        for text in documents
    ]
