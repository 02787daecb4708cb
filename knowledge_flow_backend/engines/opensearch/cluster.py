"""The OpenSearch cluster as this service knows it: every request to it, with its deadline, retries and failures."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

from opensearchpy import AsyncOpenSearch, OpenSearchException, TransportError
from opensearchpy.exceptions import ConnectionError as NotConnected
from opensearchpy.exceptions import ConnectionTimeout

from backend_kit.aio.retry import NO_RETRY, Retries, try_within
from backend_kit.wire import dumps
from knowledge_flow_backend.engines.scheduling import WriteThrottle
from knowledge_flow_backend.errors import IndexUnavailable
from knowledge_flow_backend.settings import OpenSearch

logger = logging.getLogger(__name__)

_REPEATED: Final = Retries(max_retries=1, budget_s=inf, base_s=0.15, jitter=2 / 3)
"""Retries of requests that may be repeated: with one, a cluster in trouble gets at most twice the requests."""
_PASSING: Final = frozenset({429, 502, 503, 504})
_BULK_RETRIES: Final = 5
_NONSENSE: Final = "opensearch: its answer cannot be read"
_BUSY: Final = "opensearch: too busy to write, status=429"


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """`connections`: open at once; more requests wait for one within their deadline. Seconds for a request of each
    kind.

    `bulks`: bulk requests of one document in flight. `longest_backoff_s`: longest wait before what the cluster was too
    busy to take is sent again.
    """

    connections: int = 32
    search_s: float = 3.0
    write_s: float = 60.0
    sweep_s: float = 120.0
    bulks: int = 2
    longest_backoff_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What a cluster says of itself: its version, and `green`, `yellow` or `red`."""

    version: str
    health: str


class Cluster:
    """A client of one cluster. Every method raises `IndexUnavailable` where it is away, red, busy or too slow, with the
    status in its text and nothing of the cluster's answer, which may quote the question."""

    def __init__(
        self, settings: OpenSearch, rules: ClusterRules | None = None, throttle: WriteThrottle | None = None
    ) -> None:
        """`throttle`: of writes beside searches."""
        self._rules = rules or ClusterRules()
        where = urlsplit(settings.host)
        self._refreshing = _Shared()
        self.throttle = throttle or WriteThrottle()
        # The library logs each failure, and whole bodies at debug: failures are logged here instead.
        for name in ("opensearch", "opensearchpy.trace"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        user = settings.username
        secret = settings.password.get_secret_value() if settings.password else ""
        self._client = AsyncOpenSearch(
            hosts=[{"host": where.hostname, "port": where.port or (443 if settings.secure else 80)}],
            url_prefix=where.path.strip("/"),
            use_ssl=settings.secure,
            verify_certs=settings.verify_certs,
            ssl_show_warn=False,
            http_auth=(user, secret) if user is not None else None,
            pool_maxsize=self._rules.connections,
            # Retries are below: the library's have no jitter, and repeat what must not be repeated.
            max_retries=0,
            timeout=self._rules.write_s,
        )

    async def search(self, index: str, body: Mapping[str, Any]) -> list[tuple[str, float]]:
        """(`_id`, score) of each hit, best first. An answer that lacks a shard is a failure, not a shorter list."""
        self.throttle.searched()
        request = dumps(body)
        answer = await self._ask(
            lambda: self._client.search(
                index=index,
                body=request,
                params={"allow_partial_search_results": "false", "request_timeout": self._rules.search_s},
            ),
            repeat=True,
        )
        if answer.get("timed_out"):
            raise IndexUnavailable("opensearch: the search timed out there")
        with _understood():
            return [(str(hit["_id"]), float(hit["_score"])) for hit in answer["hits"]["hits"]]

    async def write(self, index: str, batches: Iterable[Callable[[], bytes]], *, alias: bool = True) -> None:
        """Write chunks: a thread encodes each batch when its turn comes, and few are in flight.

        `alias`: the name must be an alias, or the cluster would make an index of that name by guessing its mapping.

        What the cluster was too busy to take is sent again, with growing waits. A refused document is a failure.
        """
        waiting = iter(batches)

        async def send() -> None:
            for batch in waiting:
                lines = await asyncio.to_thread(_split, batch)
                while lines:
                    end = 2 * self.throttle.piece(len(lines))
                    piece, lines = b"".join(lines[:end]), lines[end:]
                    async with self.throttle.write():
                        await self._write_batch(index, piece, alias)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._rules.bulks):
                    tasks.create_task(send())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def refresh(self, index: str) -> None:
        """Let searches see what was written before this call. Calls that come while one runs share the next one."""
        await self._refreshing.run(
            lambda: self._ask(
                lambda: self._client.indices.refresh(index=index, params={"request_timeout": self._rules.write_s}),
                repeat=True,
            )
        )

    async def delete_where(self, index: str, query: Mapping[str, Any]) -> None:
        """Delete the chunks that a query finds; gone for searches when it returns."""
        await self._sweep(self._client.delete_by_query, index, query)

    async def update_where(self, index: str, update: Mapping[str, Any]) -> None:
        """Run an update's script on the chunks that its query finds; seen by searches when it returns."""
        await self._sweep(self._client.update_by_query, index, update)

    async def create(self, name: str, alias: str | None, body: Mapping[str, Any]) -> None:
        """Make an index, under an alias where one is named."""
        whole = {**body, **({"aliases": {alias: {"is_write_index": True}}} if alias else {})}
        await self._ask(lambda: self._client.indices.create(index=name, body=whole), repeat=False)

    async def drop(self, name: str) -> None:
        """Delete an index; nothing where there is none."""
        await self._ask(
            lambda: self._client.indices.delete(index=name, params={"ignore_unavailable": "true"}), repeat=True
        )

    async def mappings(self, name: str) -> dict[str, Any]:
        """The mapping of each index that a name, an alias or a pattern stands for, by the index's own name."""
        answer = await self._ask(
            lambda: self._client.indices.get_mapping(index=name, params={"ignore_unavailable": "true"}), repeat=True
        )
        with _understood():
            return {found: parts["mappings"] for found, parts in answer.items()}

    async def exchange(self, alias: str, old: Sequence[str], new: str) -> None:
        """Let an alias stand for another index, in one step."""
        actions: list[dict[str, Any]] = [{"remove": {"index": name, "alias": alias}} for name in old]
        actions.append({"add": {"index": new, "alias": alias, "is_write_index": True}})
        await self._ask(lambda: self._client.indices.update_aliases(body={"actions": actions}), repeat=False)

    async def about(self) -> ClusterState:
        """Its version and its health."""
        info = await self._ask(self._client.info, repeat=True)
        health = await self._ask(self._client.cluster.health, repeat=True)
        with _understood():
            return ClusterState(str(info["version"]["number"]), str(health["status"]))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _write_batch(self, index: str, lines: bytes, alias: bool) -> None:
        async def write_left() -> None:
            nonlocal lines
            answer = await self._bulk(index, lines, alias)
            with _understood():
                lines = _left(lines, answer["items"]) if answer["errors"] else b""
            if lines:
                raise _TooBusy(_BUSY)

        retries = Retries(_BULK_RETRIES, inf, base_s=0.2, cap_s=self._rules.longest_backoff_s, jitter=0.5)
        await try_within(retries, write_left, _TooBusy, lambda _busy: 0.0)

    async def _bulk(self, index: str, lines: bytes, alias: bool) -> Any:
        """The answer. A chunk's id makes repeating harmless."""
        try:
            return await self._client.bulk(
                index=index,
                body=lines,
                params={"require_alias": str(alias).lower(), "request_timeout": self._rules.write_s},
            )
        except TransportError as error:
            if error.status_code == 429:
                raise _TooBusy(_BUSY) from error
            raise _failure(error) from error
        except OpenSearchException as error:
            raise IndexUnavailable(_NONSENSE) from error

    async def _sweep(self, request: Callable[..., Awaitable[Any]], index: str, body: Mapping[str, Any]) -> None:
        parameters = {"conflicts": "proceed", "refresh": "true", "request_timeout": self._rules.sweep_s}
        answer = await self._ask(lambda: request(index=index, body=body, params=parameters), repeat=False)
        if answer.get("version_conflicts") or answer.get("failures") or answer.get("timed_out"):
            raise IndexUnavailable("opensearch: some chunks could not be changed now")

    async def _ask(self, request: Callable[[], Awaitable[Any]], *, repeat: bool) -> Any:
        """The answer. `repeat`: a refused connection and a busy or red cluster are tried again, a time-out is not."""
        try:
            answer = await try_within(
                _REPEATED if repeat else NO_RETRY,
                request,
                TransportError,
                lambda error: 0.0 if _passes(error) else None,
            )
        except TransportError as error:
            raise _failure(error) from error
        except OpenSearchException as error:
            raise IndexUnavailable(_NONSENSE) from error
        if not isinstance(answer, dict):
            raise IndexUnavailable(_NONSENSE)
        return answer


class _TooBusy(IndexUnavailable):
    """The cluster has not taken all of a bulk request: the rest may be sent again."""


class _Shared:
    """An action that serves everybody who asked before it began."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked = 0
        self._served = 0

    async def run(self, action: Callable[[], Awaitable[object]]) -> None:
        self._asked += 1
        mine = self._asked
        async with self._lock:
            if self._served >= mine:
                return
            upto = self._asked
            await action()
            self._served = upto


@contextmanager
def _understood() -> Iterator[None]:
    """Parse an answer: a proxy in front of a cluster may answer anything, even with a 200."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise IndexUnavailable(_NONSENSE) from error


def _passes(error: TransportError) -> bool:
    """Whether the next attempt may succeed. What has just taken its whole time will not be quicker the second time."""
    if isinstance(error, NotConnected):
        return not isinstance(error, ConnectionTimeout)
    return error.status_code in _PASSING


def _failure(error: TransportError) -> IndexUnavailable:
    if isinstance(error, ConnectionTimeout):
        return IndexUnavailable("opensearch: no answer in time")
    if isinstance(error, NotConnected):
        return IndexUnavailable("opensearch: no connection")
    if error.status_code in (401, 403):
        return IndexUnavailable(f"opensearch: the credentials are refused, status={error.status_code}")
    return IndexUnavailable(f"opensearch: status={error.status_code}")


def _split(batch: Callable[[], bytes]) -> list[bytes]:
    """Two lines for each chunk."""
    return batch().splitlines(keepends=True)


def _left(lines: bytes, items: Sequence[Mapping[str, Any]]) -> bytes:
    """The lines of what the cluster was too busy to take. Raises `IndexUnavailable` for what it will never take."""
    rows = lines.split(b"\n")
    left = []
    for place, item in enumerate(items):
        status = item["index"]["status"]
        if status == 429:
            left += rows[2 * place : 2 * place + 2]
        elif status >= 300:
            raise IndexUnavailable(f"opensearch: a chunk was refused, status={status}")
    return b"\n".join([*left, b""]) if left else b""
