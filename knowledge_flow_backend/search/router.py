"""`POST /vector/search` and `POST /vector/rerank`."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from backend_kit.auth import Identity
from backend_kit.http import refusals, request_id
from backend_kit.kpi import Kpi, Ledger
from backend_kit.wire import ServiceError, dumps
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.search.service import SEARCH_PHASE, Answer, SearchService
from knowledge_flow_backend.search.wire import RerankRequest, SearchRequest, VectorSearchHit

logger = logging.getLogger("turnwise.request")

EXCHANGE_HEADER: Final = "X-Exchange-ID"
"""The turn that a call belongs to, as its caller names it; it stands in the log line, so that the two can be joined."""
TIMING_HEADER: Final = "Server-Timing"
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@contextmanager
def call(kpi: Kpi, route: str, request_id: str, headers: Mapping[str, str]) -> Iterator[Ledger]:
    """Time what the block does, and log it however it ends. Raises what the block raises. Nothing that a person wrote
    is in the line."""
    ledger = Ledger(kpi)
    status = "error"
    try:
        with ledger.activate():
            yield ledger
        status = "ok"
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    except ServiceError as error:
        status = error.code.value
        raise
    finally:
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", _line(ledger, route, status, request_id, headers.get(EXCHANGE_HEADER, "")))


def timing(ledger: Ledger) -> dict[str, str]:
    """The call so far as a Server-Timing header (W3C): `total`, and each phase with its start, in milliseconds, and how
    many of the others are around it.

    Without `vector_search`, which holds most of the others: a caller calls its own wait for the answer that.
    """
    total_ms = (time.perf_counter() - ledger.started) * 1e3
    told = [row for row in ledger.rows() if row["phase"] != SEARCH_PHASE]
    outermost = min((row["depth"] for row in told), default=0)
    rows = [
        f"{row['phase']};dur={row['ms']:.3f};start={row['start_ms']:.3f};depth={row['depth'] - outermost}"
        for row in told
    ]
    return {TIMING_HEADER: ", ".join([f"total;dur={total_ms:.3f}", *rows])}


def _line(ledger: Ledger, route: str, status: str, request_id: str, exchange_id: str) -> str:
    total_ms = (time.perf_counter() - ledger.started) * 1e3
    took: dict[str, float] = {}
    for row in ledger.rows():
        took[row["phase"]] = took.get(row["phase"], 0.0) + row["ms"]
    exchange = exchange_id if _ID.fullmatch(exchange_id) else "none"
    phases = "".join(f" {phase}={ms:.3f}" for phase, ms in took.items())
    return (
        f"request_id={request_id} exchange_id={exchange} route={route} status={status} total_ms={total_ms:.3f}{phases}"
    )


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
        """Passages that fit a question, of what the caller may read, best first; reranked if `rerank` says so."""
        with call(service().kpi, "search", request_id(request.scope), request.headers) as ledger:
            answer = await service().search(body, _reader(identity))
        return _json(answer, ledger)

    @router.post("/rerank", responses=_HITS)
    async def rerank(body: RerankRequest, identity: caller, request: Request) -> Response:
        """Passages in the order in which they answer a question, by a second model."""
        with call(service().kpi, "rerank", request_id(request.scope), request.headers) as ledger:
            answer = await service().rerank(body, _reader(identity))
        return _json(answer, ledger)

    return router


def _reader(identity: Identity) -> Reader:
    return Reader.of(identity)


def _json(answer: Answer, ledger: Ledger) -> Response:
    headers = timing(ledger)
    if answer.rerank is not None:
        headers[RERANK_HEADER] = answer.rerank
    # Not through the framework's encoder, which costs more than the search itself (docs/libraries.md#fastapis-encoder).
    return Response(dumps(answer.hits), headers=headers, media_type="application/json")
