"""Calls to knowledge flow: a bulkhead of connections, one deadline over all of a call, a breaker for each route."""

import asyncio
import errno
import io
import logging
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeVar

import aiohttp
from yarl import URL

from agentic_backend.errors import KfPreparing, KfUnavailable
from agentic_backend.knowledge.hits import BadHits, Hit, parse_hits
from agentic_backend.knowledge.observer import KnowledgeObserver, Unobserved
from agentic_backend.knowledge.query import MAX_QUESTION_CHARS, SearchQuery
from agentic_backend.knowledge.timing import enter_timing
from backend_kit.aio import Breaker
from backend_kit.auth import Credentials
from backend_kit.kpi import current_ledger, phase
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MIB: Final = 1 << 20
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_RETRIES: Final = 1
_RETRY_WAIT_S: Final = 0.05
_GONE: Final = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})
_SAID_EVERY_S: Final = 1.0


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
    keepalive_s: float = 30.0
    max_body_bytes: int = 4 * _MIB
    """An answer above this is refused: reading it would hold the loop for the turns of everybody."""

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

    def headers(self) -> dict[str, str]:
        """The headers that say so. A token that no header can carry is left out."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.credentials is not None and _TOKEN.fullmatch(token := self.credentials.reveal()):
            headers["Authorization"] = f"Bearer {token}"
        if self.request_id:
            headers["X-Request-ID"] = self.request_id
        if self.traceparent is not None:
            headers["traceparent"] = self.traceparent
        if _ID.fullmatch(self.exchange_id):
            headers["X-Exchange-ID"] = self.exchange_id
        return headers


class _Unserved(Exception):  # not an error of a turn yet: the client decides what it means
    """A call without a usable answer, and what that says of the service: up, down, or neither (None)."""

    def __init__(
        self, cause: str, *, up: bool | None, retry_after_s: float | None = None, preparing: bool = False
    ) -> None:
        super().__init__(cause)
        self.up = up
        self.preparing = preparing
        self.retry_after_s = retry_after_s


class _Missing(Exception):
    """What is read is not there for this caller: an answer, and no failure of the service."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What is sent; `data` None: nothing but the address."""

    url: URL
    data: bytes | None
    headers: dict[str, str]


class _Route:
    """One route: its address, the phase it is timed as, and whether it may be called at all."""

    def __init__(self, base: str, path: str, phase_name: str, method: Literal["GET", "POST"] = "POST") -> None:
        self.url = URL(base.rstrip("/") + path)
        self.method = method
        self.phase = phase_name
        self.breaker = Breaker(perf_counter, lambda wait_s: KfUnavailable("circuit open", retry_after_s=wait_s))


class KnowledgeClient:
    """The process's one client of knowledge flow. Built on the running loop, closed by `aclose`.

    Every call raises `KfUnavailable` and nothing else, at the deadline at the latest. The caller's token goes into
    the request's header and nowhere else.
    """

    def __init__(self, endpoint: KnowledgeEndpoint, observer: KnowledgeObserver | None = None) -> None:
        self.endpoint = endpoint
        self._observer = observer or Unobserved()
        # A breaker each: a reranker that fails must not keep the search from being asked.
        self._search = _Route(endpoint.base_url, "/vector/search", "kf_vector_search")
        self._rerank = _Route(endpoint.base_url, "/vector/rerank", "kf_vector_rerank")
        self._markdown = _Route(endpoint.base_url, "/markdown", "kf_markdown", "GET")
        self._passage = _Route(endpoint.base_url, "/documents", "kf_passage", "GET")
        self._said: dict[str, float] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=endpoint.max_connections, keepalive_timeout=endpoint.keepalive_s, ttl_dns_cache=60
            ),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=min(endpoint.connect_s, endpoint.deadline_s),
                sock_read=min(endpoint.read_s, endpoint.deadline_s),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "turnwise"},
            trace_configs=[_pool_wait(self._observer)],
        )

    @property
    def reachable(self) -> bool:
        """Whether the next search is sent at all, for /ready."""
        return self._search.breaker.closed

    async def search(self, query: SearchQuery, caller: Caller) -> list[Hit]:
        """The best hits, best first, at most `query.top_k`. Phase `kf_vector_search`. Raises `KfUnavailable`."""
        hits = await self._call(self._search, query.body(), caller, self.endpoint.deadline_s, query.top_k)
        self._observer.kf_searched(len(hits))
        return hits

    async def rerank(
        self, question: str, hits: Sequence[Hit], top_r: int, caller: Caller, *, within_s: float | None = None
    ) -> list[Hit]:
        """The best of `hits` in their new order, at most `top_r`, scored anew. Phase `kf_vector_rerank`.

        `within_s` shortens the deadline. Raises `KfUnavailable`; the caller then has the order of retrieval.
        """
        limit_s = self.endpoint.deadline_s if within_s is None else min(within_s, self.endpoint.deadline_s)
        body = {"question": question[:MAX_QUESTION_CHARS], "documents": list(hits), "top_r": top_r}
        best = await self._call(self._rerank, body, caller, limit_s, top_r)
        if hits and not best:
            raise self._say(self._rerank, _Unserved("no hits left", up=None))
        return best

    async def markdown(self, document_uid: str, caller: Caller) -> bytes | None:
        """`{"content": …}`: the text that the offsets of passages count in, as JSON. None: not there, or not for this
        caller. Raises `KfUnavailable`, also for a document above `endpoint.max_body_bytes`."""
        return await self._read(self._markdown, self._markdown.url / document_uid, caller)

    async def passage(self, document_uid: str, chunk_uid: str, caller: Caller) -> bytes | None:
        """One chunk as JSON: its text, offsets, section, page and document. None as with `markdown`."""
        return await self._read(self._passage, self._passage.url / document_uid / "chunks" / chunk_uid, caller)

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._session.close()

    async def _read(self, route: _Route, url: URL, caller: Caller) -> bytes | None:
        try:
            return await self._answer(route, _Request(url, None, caller.headers()), self.endpoint.deadline_s, _as_it_is)
        except _Missing:
            return None

    async def _call(self, route: _Route, body: dict[str, Any], caller: Caller, limit_s: float, limit: int) -> list[Hit]:
        """The answer to a search as at most `limit` hits."""
        request = _Request(route.url, dumps(body), caller.headers())
        return await self._answer(route, request, limit_s, lambda answer: parse_hits(answer, limit))

    async def _answer(self, route: _Route, request: _Request, limit_s: float, parse: Callable[[bytes], T]) -> T:
        """One call with its deadline, its verdict on the service, and its answer as `parse` makes it."""
        route.breaker.admit()
        verdict = route.breaker.undecided
        try:
            with phase(route.phase):
                # Inside the phase, so that being late is counted as that.
                async with asyncio.timeout(limit_s):
                    answer = await self._attempts(route.method, request)
            parsed = parse(answer)
            verdict = route.breaker.succeeded
            return parsed
        except TimeoutError:
            verdict = route.breaker.failed
            raise self._say(route, _Unserved("late", up=False)) from None
        except _Missing:
            verdict = route.breaker.succeeded
            raise
        except BadHits as failure:
            raise self._say(route, _Unserved(f"broken answer: {failure}", up=None)) from None
        except _Unserved as failure:
            if failure.up is not None:
                verdict = route.breaker.succeeded if failure.up else route.breaker.failed
            raise self._say(route, failure) from failure
        finally:
            verdict()

    async def _attempts(self, method: str, request: _Request) -> bytes:
        """The body of a good answer. Tried twice where the first connection was refused or reset: a search changes
        nothing, and a kept connection may have been closed just now. Nothing else is tried again.

        A GET whose connection is lost has been tried again by aiohttp, whose contract that is: two layers would make
        four of it."""
        retries = _RETRIES if method == "POST" else 0
        tries = 0
        while True:
            tries += 1
            try:
                return await self._attempt(method, request)
            except TimeoutError:
                raise
            except (aiohttp.ClientError, OSError) as failure:
                if tries > retries or not _refused_or_reset(failure):
                    raise _Unserved(f"no connection: {type(failure).__name__}", up=False) from failure
            # Jitter spreads the turns that lost their connection at one moment.
            await asyncio.sleep(_RETRY_WAIT_S * random.uniform(0.5, 1.5))  # noqa: S311 # spreads load, guards nothing

    async def _attempt(self, method: str, request: _Request) -> bytes:
        # aiohttp warns of large bytes because it writes them in one go; a file-like body is written in pieces.
        data = request.data
        payload = data if data is None or len(data) < _MIB else io.BytesIO(data)
        began = perf_counter()
        # Redirects are not followed: they would carry the token to an address that nobody configured.
        async with self._session.request(
            method, request.url, data=payload, headers=request.headers, allow_redirects=False
        ) as response:
            if response.status == 404 and method == "GET":
                raise _Missing
            if response.status != 200:
                raise _of_status(response)
            answer = bytearray()
            while piece := await response.content.readany():
                answer += piece
                if len(answer) > self.endpoint.max_body_bytes:
                    response.close()
                    raise _Unserved("answer too large", up=None)
            enter_timing(response.headers.get("Server-Timing", ""), began, perf_counter())
            return bytes(answer)

    def _say(self, route: _Route, failure: _Unserved) -> KfUnavailable:
        """Log a failed call, at most once a second and cause, and return the error to raise for it."""
        now = perf_counter()
        cause = f"{route.phase}: {failure}"
        if now - self._said.get(cause, -_SAID_EVERY_S) >= _SAID_EVERY_S:
            self._said[cause] = now
            logger.warning("knowledge flow failed: %s", cause)
        kind = KfPreparing if failure.preparing else KfUnavailable
        return kind(str(failure), retry_after_s=failure.retry_after_s)


def _as_it_is(answer: bytes) -> bytes:
    return answer


def _refused_or_reset(failure: aiohttp.ClientError | OSError) -> bool:
    if isinstance(failure, aiohttp.ServerDisconnectedError | aiohttp.ClientConnectionResetError):
        return True
    return isinstance(failure, OSError) and failure.errno in _GONE


def _of_status(response: aiohttp.ClientResponse) -> _Unserved:
    """What a status other than 200 means. The body is never looked at: it may repeat the question.

    A refusal of this one request (401, 404, 422) comes from a service that is up; 429 may be both.
    """
    after = response.headers.get("Retry-After", "")
    retry_after_s = min(float(after), 60.0) if after.isascii() and after.isdecimal() and len(after) < 6 else None
    if response.headers.get("X-Cause") == "model_preparing":
        return _Unserved("its model is being prepared", up=True, retry_after_s=retry_after_s, preparing=True)
    up = None if response.status == 429 else response.status < 500
    return _Unserved(f"HTTP {response.status}", up=up, retry_after_s=retry_after_s)


def _pool_wait(observer: KnowledgeObserver) -> aiohttp.TraceConfig:
    """Reports how long a call waited for a connection; says nothing of calls that did not wait."""

    async def queued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        context.queued_at = perf_counter()

    async def unqueued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        now = perf_counter()
        observer.kf_pool_wait(now - context.queued_at)
        ledger = current_ledger()
        if ledger is not None:
            ledger.add("kf_pool_wait", context.queued_at, now)

    config = aiohttp.TraceConfig()
    config.on_connection_queued_start.append(queued)
    config.on_connection_queued_end.append(unqueued)
    return config
