"""`POST /vector/search` and `POST /vector/rerank`."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from backend_kit.auth import Identity
from backend_kit.http import refusals, request_id
from backend_kit.wire import dumps
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.search.calls import call, timing
from knowledge_flow_backend.search.service import SearchService
from knowledge_flow_backend.search.wire import RerankRequest, SearchRequest, VectorSearchHit

RERANK_HEADER = "X-Turnwise-Rerank"
"""`done`, or `skipped`: then the hits are in the order of retrieval, with the scores they came with."""

_HITS: dict[int | str, dict[str, Any]] = {200: {"model": list[VectorSearchHit], "description": "Best first."}}


def build_router(
    service: Callable[[], SearchService], identify: Callable[[Request], Awaitable[Identity]], base: str
) -> APIRouter:
    """The routes below the base path, for the caller that `identify` gives."""
    router = APIRouter(prefix=f"{base}/vector", tags=["search"], responses=refusals())
    caller = Annotated[Identity, Depends(identify)]

    @router.post("/search", responses=_HITS)
    async def search(body: SearchRequest, identity: caller, request: Request) -> Response:
        """Passages that fit a question, of what the caller may read, best first."""
        with call(service().kpi, "search", request_id(request.scope), request.headers) as ledger:
            hits = await service().search(body, _reader(identity))
        return _json(hits, timing(ledger))

    @router.post("/rerank", responses=_HITS)
    async def rerank(body: RerankRequest, identity: caller, request: Request) -> Response:
        """Passages in the order in which they answer a question, by a second model."""
        with call(service().kpi, "rerank", request_id(request.scope), request.headers) as ledger:
            hits, skipped = await service().rerank(body, _reader(identity))
        return _json(hits, {RERANK_HEADER: "done" if skipped is None else "skipped", **timing(ledger)})

    return router


def _reader(identity: Identity) -> Reader:
    return Reader(identity.uid, identity.groups)


def _json(hits: list[dict[str, Any]], headers: dict[str, str]) -> Response:
    # Not through the framework's encoder, which costs more than the search itself (docs/libraries.md#fastapis-encoder).
    return Response(dumps(hits), headers=headers, media_type="application/json")
