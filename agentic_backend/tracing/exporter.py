"""Sends encoded traces to an OTLP endpoint: in the background, bounded, again where that may help, never waited for."""

import asyncio
import gzip
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal, Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from agentic_backend.metrics import AgenticMetrics
from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import QuietLog, Retries, try_within
from backend_kit.client.json_client import CallFailed, HttpAnswer, HttpRequest

logger = logging.getLogger(__name__)

DropReason = Literal["queue_full", "refused", "unreachable", "rejected", "shutdown"]
"""`queue_full`: as many wait as may. `refused`: an answer that another try would not change. `unreachable`: no answer,
or a passing one, for as long as it is tried. `rejected`: by an answer that took the rest. `shutdown`: the end of the
process did not wait for them."""
_PASSING: Final = frozenset({429, 502, 503, 504})
"""The statuses after which OTLP/HTTP lets a request be sent again."""
_TRIES: Final = Retries(max_retries=5, budget_s=60.0, base_s=1.0, cap_s=16.0)
_LOG_S: Final = 60.0
_LONGEST_REST_S: Final = 300.0
_ENCODED_AT_ONCE: Final = 8
"""Turns that are encoded between two looks of the loop, which takes a millisecond."""


class Sends(Protocol):
    """The client that calls the endpoint: `JsonClient`."""

    async def call(self, request: HttpRequest, *, deadline_s: float | None = None) -> HttpAnswer:
        """The answer. Raises `CallFailed`."""

    async def aclose(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class ExportRules:
    """Where traces go and in which portions. `headers` hold secrets. Spans are counted, since a turn has any number."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    gzip: bool = False
    timeout_s: float = 10.0
    max_queue: int = 2048
    max_batch: int = 512
    delay_s: float = 5.0
    """How long spans wait for others, where they are less than a batch."""
    last_s: float = 1.0
    """What the end of the process waits for what is left."""


@dataclass(slots=True)
class _Waiting:
    """A turn whose spans are still to be sent; `body` once it is encoded."""

    encode: Callable[[], bytes]
    spans: int
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    body: bytes
    spans: int


class TraceExporter:
    """A bounded queue and the one task that empties it. On the event loop's thread.

    `wrap` makes an export request of the spans of turns, one after the other. `clock` (monotonic, seconds) and `sleep`
    are those of its retries.
    """

    def __init__(
        self,
        rules: ExportRules,
        client: Sends,
        metrics: AgenticMetrics,
        *,
        wrap: Callable[[bytes], bytes],
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rules = rules
        self._client = client
        self._metrics = metrics
        self._wrap = wrap
        self._clock = clock
        self._sleep = sleep
        self._queue: deque[_Waiting] = deque()
        self._spans = 0
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._log = QuietLog(logger, interval_s=_LOG_S)

    def start(self, tasks: TaskRegistry) -> None:
        """Begin to send, until `tasks` closes."""
        tasks.spawn("trace-export", self._run, restart=True)

    def has_room(self, spans: int) -> bool:
        """Whether this many spans may wait; else they count as dropped, and need not be encoded."""
        if self._spans + spans <= self._rules.max_queue:
            return True
        self._drop("queue_full", spans)
        return False

    def offer(self, encode: Callable[[], bytes], spans: int) -> None:
        """Queue a turn with `spans` spans, for which there is room. `encode` is called once, when they are about to be
        sent."""
        self._queue.append(_Waiting(encode, spans))
        self._spans += spans
        self._arrived.set()
        self._emptied.clear()
        if self._spans >= self._rules.max_batch:
            self._enough.set()

    async def flush(self) -> None:
        """Return once nothing waits or is being sent. While the task runs."""
        await self._emptied.wait()

    async def aclose(self) -> None:
        """Send what is left, once and briefly, and close the connections; what cannot be sent is dropped."""
        try:
            async with asyncio.timeout(self._rules.last_s):
                while self._queue:
                    await self._send(await self._first(), last=True)
        except TimeoutError:
            pass
        finally:
            if self._spans:
                self._drop("shutdown", self._spans)
            self._queue.clear()
            self._spans = 0
            await self._client.aclose()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self._spans < self._rules.max_batch:
                await self._gather()
            while self._queue:
                await self._send(await self._first(), last=False)
                if 0 < self._spans < self._rules.max_batch:
                    break
            self._enough.clear()
            if not self._queue:
                self._arrived.clear()

    async def _gather(self) -> None:
        try:
            async with asyncio.timeout(self._rules.delay_s):
                await self._enough.wait()
        except TimeoutError:
            return

    async def _first(self) -> _Batch:
        """As much of the queue as one request takes; it stays there until it is dealt with."""
        first: list[_Waiting] = []
        spans = 0
        for one in self._queue:
            if first and spans + one.spans > self._rules.max_batch:
                break
            first.append(one)
            spans += one.spans
        bodies: list[bytes] = []
        for number, one in enumerate(first, 1):
            if one.body is None:
                one.body = b""  # one that cannot be encoded must not be tried endlessly
                one.body = one.encode()
                if number % _ENCODED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            bodies.append(one.body)
        return _Batch(self._wrap(b"".join(bodies)), spans)

    def _take(self, spans: int) -> None:
        """Take the first `spans` spans out of the queue."""
        left = spans
        while left > 0:
            left -= self._queue.popleft().spans
        self._spans -= spans
        if not self._queue:
            self._emptied.set()

    async def _send(self, batch: _Batch, *, last: bool) -> None:
        """Send a batch, with all tries that it has, and take it out of the queue."""
        request = self._request(batch.body)
        retries = Retries(max_retries=0) if last else _TRIES
        rest_s = 0.0
        try:
            answer = await try_within(
                retries,
                lambda: self._client.call(request, deadline_s=self._rules.timeout_s),
                CallFailed,
                _asked_s,
                clock=self._clock,
                sleep=self._sleep,
            )
        except CallFailed as failure:
            reason: DropReason = "refused" if _asked_s(failure) is None else "unreachable"
            self._log.warning(reason, "traces not sent: %s", _cause(failure))
            self._drop(reason, batch.spans)
            rest_s = min(_asked_s(failure) or 0.0, _LONGEST_REST_S)
        else:
            rejected = min(_rejected(answer.body), batch.spans)
            if rejected:
                self._log.warning("rejected", "traces: the endpoint rejected %d spans", rejected)
                self._drop("rejected", rejected)
            self._metrics.trace_spans_sent.inc(batch.spans - rejected)
        self._take(batch.spans)
        if rest_s and not last:  # the next ones must not come sooner than it asked for, either
            await self._sleep(rest_s)

    def _request(self, body: bytes) -> HttpRequest:
        headers = {"Content-Type": "application/x-protobuf", **self._rules.headers}
        if self._rules.gzip:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, 1)
        return HttpRequest(self._rules.url, data=body, headers=headers, good=range(200, 300))

    def _drop(self, reason: DropReason, spans: int) -> None:
        self._metrics.trace_spans_dropped(reason).inc(spans)


def _asked_s(failure: CallFailed) -> float | None:
    """How long the endpoint wants to be left alone; None where another try would not help."""
    if failure.status not in _PASSING and not (failure.down and not failure.status):
        return None
    return failure.wait_s or 0.0


def _cause(failure: CallFailed) -> str:
    """For the log: nothing of an answer, and no header."""
    return failure.fault or str(failure)


def _rejected(body: bytes) -> int:
    """How many spans the answer of a partial success rejects."""
    try:
        return max(int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans), 0)
    except DecodeError:
        return 0  # 2xx all the same: JSON, or a text of some proxy
