"""Calls to knowledge flow: a bulkhead of connections, one deadline over all of a call, a breaker for each route."""

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import perf_counter
from typing import Any, Final, TypeVar

from yarl import URL

from agentic_backend.errors import KfPreparing, KfUnavailable
from agentic_backend.knowledge.hits import BadHits, Hit, SearchQuery, parse_hits
from agentic_backend.knowledge.links import BadListing, Listed, linked, listing_for, parse_document, parse_listing
from agentic_backend.metrics import AgenticMetrics
from backend_kit.aio import Breaker
from backend_kit.aio.retry import NO_RETRY, QuietLog, Retries
from backend_kit.auth import Credentials
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import CallFailed, HttpRequest, JsonClient, guarded
from backend_kit.kpi import current_ledger, phase
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MIB: Final = 1 << 20
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ONCE_MORE: Final = Retries(max_retries=1, budget_s=inf, base_s=0.075, jitter=2 / 3)
"""Jitter spreads the turns that lost their connection at one moment."""
_LONGEST_WAIT_S: Final = 60.0
KEPT_S: Final = 4.0
"""Seconds for which an idle connection may be used again: less than the 5 for which knowledge flow keeps one
(`ConnectionBounds.idle_s`), as a request that meets its end is lost. The second between is for a loop that is late."""


@dataclass(frozen=True, slots=True)
class KnowledgeEndpoint:
    """Where knowledge flow is and what a call to it may take. Seconds of the monotonic clock."""

    base_url: str
    deadline_s: float = 5.0
    """A whole call: waiting for a connection, connecting, the answer and a second try."""
    connect_s: float = 20.0
    read_s: float = 60.0
    """The longest silence within an answer. Both end at the deadline at the latest."""
    max_connections: int = 100
    """Calls at once; more wait, within their deadline. What is slow there must not use up this process."""
    keepalive_s: float = KEPT_S
    max_body_bytes: int = 4 * _MIB
    """An answer above this is refused: reading it would hold the loop for the turns of everybody."""
    one_user: bool = False
    """Whether all callers are one user there, as without authentication."""

    def __post_init__(self) -> None:
        if min(self.deadline_s, self.connect_s, self.read_s, self.keepalive_s, self.max_connections) <= 0:
            raise ValueError("deadlines and limits of the knowledge-flow client are positive")


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a call is made: knowledge flow decides by the token what may be found."""

    credentials: Credentials | None = None
    request_id: str = ""
    traceparent: str | None = None
    exchange_id: str = ""
    user_id: str = ""

    def headers(self) -> dict[str, str]:
        """The headers that say so. A token that no header can carry is left out."""
        headers: dict[str, str] = {}
        if self.credentials is not None and _TOKEN.fullmatch(self.credentials.reveal()):
            headers |= self.credentials.headers()
        if self.request_id:
            headers["X-Request-ID"] = self.request_id
        if self.traceparent is not None:
            headers["traceparent"] = self.traceparent
        if _ID.fullmatch(self.exchange_id):
            headers["X-Exchange-ID"] = self.exchange_id
        return headers


class _Route:
    """One route: its address, its name in the log, and whether it may be called at all. `timed`: it is part of a turn,
    of which its name is a phase."""

    def __init__(self, base: str, path: str, name: str, *, timed: bool = False) -> None:
        self.url = URL(base.rstrip("/") + path)
        self.name = name
        self.timed = timed
        self.breaker = Breaker(perf_counter, lambda wait_s: KfUnavailable("circuit open", retry_after_s=wait_s))


class KnowledgeClient:
    """The process's one client of knowledge flow. Built on the running loop, closed by `aclose`.

    Every call raises `KfUnavailable` and nothing else, at the deadline at the latest. The caller's token goes into
    the request's header and nowhere else.
    """

    def __init__(self, endpoint: KnowledgeEndpoint, metrics: AgenticMetrics | None = None) -> None:
        self.endpoint = endpoint
        self._metrics = metrics
        # A breaker each: what one route cannot do says nothing of the others.
        self._search = _Route(endpoint.base_url, "/vector/search", "kf_vector_search", timed=True)
        self._markdown = _Route(endpoint.base_url, "/markdown", "kf_markdown")
        self._passage = _Route(endpoint.base_url, "/documents", "kf_passage")
        self._metadata = _Route(endpoint.base_url, "/documents/metadata", "kf_metadata")
        self._listing = _Route(endpoint.base_url, "/documents/browse", "kf_browse")
        self._log = QuietLog(logger)
        self._client = JsonClient(
            Connections(
                max_connections=endpoint.max_connections,
                keepalive_s=endpoint.keepalive_s,
                connect_s=min(endpoint.connect_s, endpoint.deadline_s),
                pool_s=None,
                read_s=min(endpoint.read_s, endpoint.deadline_s),
            ),
            pool_wait=metrics.http_pool_wait("kf").observe if metrics is not None else None,
            pool_wait_row="kf_pool_wait",
        )

    @property
    def health(self) -> str:
        """The state of the search, for /ready: `unknown` before the first answer, then `up`, or `down` while no
        requests are sent."""
        return self._search.breaker.health

    async def search(self, query: SearchQuery, caller: Caller) -> list[Hit]:
        """The best hits, best first, at most `query.limit`. Raises `KfUnavailable`; never for a rerank that fails: then
        they are in the order of retrieval.

        Phase `kf_vector_search`, with `kf_vector_rerank` inside it where knowledge flow says how long that took.
        """
        hits = await self._call(self._search, query, caller)
        if self._metrics is not None:
            self._metrics.rag_searches.inc()
            if not hits:
                self._metrics.rag_empty_searches.inc()
        return hits

    async def markdown(self, document_uid: str, caller: Caller) -> bytes | None:
        """`{"content": …}`: the text that the offsets of passages count in, as JSON. None: not there, or not for this
        caller. Raises `KfUnavailable`, also for a document above `endpoint.max_body_bytes`."""
        return await self._read(self._markdown, self._markdown.url / document_uid, caller)

    async def passage(self, document_uid: str, chunk_uid: str, caller: Caller) -> bytes | None:
        """One chunk as JSON: its text, offsets, section, page and document. None as with `markdown`."""
        return await self._read(self._passage, self._passage.url / document_uid / "chunks" / chunk_uid, caller)

    async def linked(self, document_uid: str, link: str, caller: Caller) -> bytes | None:
        """The document that a relative link in another one leads to: `{document_uid, title, file_name, mime_type}`.

        None where the document, or what it links to, is not there or not for this caller. Raises `KfUnavailable`.
        """
        found = await self._read(self._metadata, self._metadata.url / document_uid, caller)
        if found is None:
            return None
        document = self._parsed(self._metadata, parse_document, found)
        wanted = listing_for(document, link)
        listed = [] if wanted is None else await self._list(wanted, caller)
        target = linked(document, link, listed)
        if target is None:
            return None
        return dumps(target.shown())

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._client.aclose()

    async def _read(self, route: _Route, url: URL, caller: Caller) -> bytes | None:
        request = HttpRequest(url, "GET", headers=caller.headers(), max_bytes=self.endpoint.max_body_bytes)
        try:
            # aiohttp itself repeats a GET whose connection is lost: two layers would make four attempts of it.
            return await self._answer(route, request, caller, NO_RETRY, bytes)
        except CallFailed as failure:
            if failure.status == 404:
                return None
            raise self._unavailable(route, failure) from failure

    async def _list(self, wanted: dict[str, Any], caller: Caller) -> list[Listed]:
        request = HttpRequest(
            self._listing.url, data=dumps(wanted), headers=caller.headers(), max_bytes=self.endpoint.max_body_bytes
        )
        try:
            found = await self._answer(self._listing, request, caller, _ONCE_MORE, bytes)
        except CallFailed as failure:
            raise self._unavailable(self._listing, failure) from failure
        return self._parsed(self._listing, parse_listing, found)

    def _parsed(self, route: _Route, parse: Callable[[bytes], T], found: bytes) -> T:
        try:
            return parse(found)
        except BadListing as failure:
            raise self._log_failure(route, f"broken answer: {failure}") from None

    async def _call(self, route: _Route, query: SearchQuery, caller: Caller) -> list[Hit]:
        """The answer to a search.

        Tried twice where the first connection was refused or reset: a search changes nothing, and a kept connection may
        have been closed just now. Nothing else is tried again.
        """
        request = HttpRequest(
            route.url, data=dumps(query.body()), headers=caller.headers(), max_bytes=self.endpoint.max_body_bytes
        )
        try:
            return await self._answer(
                route, request, caller, _ONCE_MORE, lambda answer: parse_hits(answer, query.limit)
            )
        except BadHits as failure:
            raise self._log_failure(route, f"broken answer: {failure}") from None
        except CallFailed as failure:
            raise self._unavailable(route, failure) from failure

    async def _answer(
        self, route: _Route, request: HttpRequest, caller: Caller, retries: Retries, parse: Callable[[bytes], T]
    ) -> T:
        """One call with its deadline, its verdict on the service, and its answer as `parse` makes it."""
        with guarded(route.breaker, _is_up, "" if self.endpoint.one_user else caller.user_id):
            with phase(route.name) if route.timed else nullcontext():
                answer = await self._client.call(
                    request, retries=retries, again=frozenset({"reset"}), deadline_s=self.endpoint.deadline_s
                )
                enter_timing(answer.headers.get("Server-Timing", ""), answer.began, answer.ended)
            return parse(answer.body)

    def _unavailable(self, route: _Route, failure: CallFailed) -> KfUnavailable:
        if _is_preparing(failure):
            return self._log_failure(route, "its model is being prepared", failure.wait_s, KfPreparing)
        return self._log_failure(route, cause_of(failure), failure.wait_s)

    def _log_failure(
        self, route: _Route, reason: str, wait_s: float | None = None, kind: type[KfUnavailable] = KfUnavailable
    ) -> KfUnavailable:
        """Log a failed call, at most once a second and cause, and return the error to raise for it."""
        cause = f"{route.name}: {reason}"
        self._log.warning(cause, "knowledge flow failed: %s", cause)
        return kind(reason, retry_after_s=None if wait_s is None else min(wait_s, _LONGEST_WAIT_S))


def cause_of(failure: CallFailed) -> str:
    """Why a call came to nothing, for the log: a few words, none of them from the answer."""
    if failure.kind == "late":
        return "late"
    if failure.kind == "broken":
        return "answer too large"
    return f"no connection: {failure.fault}" if failure.fault else str(failure)


def _is_preparing(failure: CallFailed) -> bool:
    return failure.headers.get("X-Cause") == "model_preparing"


def _is_up(failure: CallFailed) -> bool | None:
    """What a failed call says of the service: up, down, or neither (None).

    A refusal of this one request (401, 404, 422) comes from a service that is up; 429 may be both.
    """
    if failure.kind == "refused" or _is_preparing(failure):
        return bool(failure.status)
    return False if failure.down else None


_MAX_PARTS: Final = 32
_MAX_CHARS: Final = 4096
_MS: Final = r"(\d{1,7}(?:\.\d{1,6})?)"
_COUNTED_PHASES: Final = {"vector_rerank": ("vector_rerank", "kf_vector_rerank")}
"""Parts that are phases of docs/contract.md#phases here as well."""
_PART: Final = re.compile(
    rf"(?:^|, ?)([a-z][a-z0-9_]{{0,39}});dur={_MS}(?:;start={_MS})?(?:;depth=(\d{{1,2}}))?(?=,|$)"
)


def enter_timing(header: str, began: float, ended: float) -> None:
    """Enter the parts of a Server-Timing header, their names after `kf_`, as rows inside the current phase.

    `began` and `ended` are the call as we saw it, on the perf_counter clock. The other side's clock is another one, so
    its `total` is put into the middle of ours: what is left on either side is the way there and back. The rerank also
    feeds the metrics of its phases. A header that is no such list enters nothing.
    """
    ledger = current_ledger()
    if ledger is None or not header or len(header) > _MAX_CHARS:
        return
    parts = [
        (name, float(ms) / 1e3, None if start is None else float(start) / 1e3, int(depth or 0))
        for name, ms, start, depth in (part.groups() for part in islice(_PART.finditer(header), _MAX_PARTS))
    ]
    total_s = next((took_s for name, took_s, *_ in parts if name == "total"), 0.0)
    if not 0 < total_s <= ended - began:
        return
    first = began + (ended - began - total_s) / 2
    for name, took_s, start_s, depth in parts:
        if start_s is not None and start_s + took_s <= total_s + 1e-4:
            ledger.add(f"kf_{name}", first + start_s, first + start_s + took_s, ledger.open + depth)
            for counted in _COUNTED_PHASES.get(name, ()):
                ledger.kpi.record_phase(counted, took_s)
