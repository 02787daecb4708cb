"""The way of traces to an endpoint: bounded, in portions, again where OTLP says so, and never waited for."""

import asyncio
import gzip
import logging
from functools import partial

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from prometheus_client import CollectorRegistry

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.tracing.exporter import ExportRules, TraceExporter
from backend_kit.aio import TaskRegistry
from backend_kit.client.json_client import CallFailed, HttpAnswer, HttpRequest
from backend_kit.kpi import Kpi
from tests.support.clock import Clock
from tests.support.patience import PATIENCE_S

SECRET = "Basic c2VjcmV0"
OK = b""


class Endpoint:
    """Answers as it is told to, then with 200; `gate` holds the answers while it is not set."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.answers: list[CallFailed | bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self.asked = asyncio.Condition()

    async def call(self, request: HttpRequest, *, deadline_s: float | None = None) -> HttpAnswer:  # noqa: ARG002 - of the port
        async with self.asked:
            self.requests.append(request)
            self.asked.notify_all()
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else OK
        if isinstance(answer, CallFailed):
            raise answer
        return HttpAnswer(200, {}, answer, 0.0, 0.0)

    async def aclose(self) -> None:
        self.closed = True

    async def wait_requests(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.asked:
            await self.asked.wait_for(lambda: len(self.requests) >= count)


class Bench:
    """An exporter over that endpoint."""

    def __init__(self, **rules: object) -> None:
        self.clock = Clock()
        self.endpoint = Endpoint()
        self.registry = CollectorRegistry()
        self.metrics = AgenticMetrics(self.registry, Kpi(self.registry, service="agentic"))
        given = {"headers": {"Authorization": SECRET}, "max_queue": 10, "max_batch": 4, "delay_s": 0.001} | rules
        self.exporter = TraceExporter(
            ExportRules("http://collector/v1/traces", **given),  # type: ignore[arg-type] # by name
            self.endpoint,
            self.metrics,
            wrap=lambda spans: spans,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def offer(self, body: bytes, spans: int = 1) -> bool:
        room = self.exporter.has_room(spans)
        if room:
            self.exporter.offer(lambda: body, spans)
        return room

    def dropped(self, reason: str) -> float:
        return self.registry.get_sample_value("app_trace_spans_dropped_total", {"reason": reason}) or 0.0

    @property
    def sent(self) -> float:
        return self.registry.get_sample_value("app_trace_spans_sent_total") or 0.0

    async def settle(self) -> None:
        """Until nothing waits."""
        async with asyncio.timeout(PATIENCE_S):
            await self.exporter.flush()


def refused(status: int, **headers: str) -> CallFailed:
    kind = "busy" if status == 429 else "failed" if status >= 500 else "refused"
    return CallFailed(
        f"HTTP {status}", kind, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )  # type: ignore[arg-type] # one of three


@pytest.fixture
async def bench(tasks: TaskRegistry) -> Bench:
    made = Bench()
    made.exporter.start(tasks)
    return made


async def test_what_waits_goes_out_together_in_portions_that_part_no_turn(bench: Bench) -> None:
    for body, spans in ((b"a", 2), (b"b", 1), (b"c", 3), (b"d", 4)):
        assert bench.offer(body, spans)
    await bench.settle()
    assert [request.data for request in bench.endpoint.requests] == [b"ab", b"c", b"d"]
    assert bench.sent == 10
    first = bench.endpoint.requests[0]
    assert first.headers == {"Content-Type": "application/x-protobuf", "Authorization": SECRET}


async def test_a_full_queue_takes_no_more_and_counts_it(bench: Bench) -> None:
    bench.endpoint.gate.clear()
    assert [bench.offer(b"x", 4) for _ in range(4)] == [True, True, False, False]
    assert bench.dropped("queue_full") == 8
    bench.endpoint.gate.set()
    await bench.settle()
    assert bench.offer(b"y", 10)
    await bench.settle()
    assert bench.sent == 18


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_passing_refusal_is_tried_again_after_a_pause_that_grows(bench: Bench, status: int) -> None:
    bench.endpoint.answers = [refused(status)] * 3
    bench.offer(b"a")
    await bench.settle()
    assert [request.data for request in bench.endpoint.requests] == [b"a"] * 4
    assert len(bench.clock.slept) == 3
    assert all(0 <= slept <= bound for slept, bound in zip(bench.clock.slept, (1.0, 2.0, 4.0), strict=True))
    assert bench.sent == 1


async def test_a_turn_is_encoded_once_however_often_it_is_sent(bench: Bench) -> None:
    bench.endpoint.answers = [refused(503)] * 2
    encoded: list[int] = []

    def encode(number: int) -> bytes:
        encoded.append(number)
        return b"%d" % number

    for number in range(3):
        bench.exporter.offer(partial(encode, number), 1)
    await bench.settle()
    assert encoded == [0, 1, 2]
    assert [request.data for request in bench.endpoint.requests] == [b"012"] * 3


async def test_a_turn_that_cannot_be_encoded_loses_only_itself(bench: Bench) -> None:
    tried: list[int] = []

    def fail() -> bytes:
        tried.append(1)
        raise ZeroDivisionError

    bench.offer(b"a")
    bench.exporter.offer(fail, 1)
    bench.offer(b"b")
    await bench.settle()
    assert len(tried) == 1
    assert [request.data for request in bench.endpoint.requests] == [b"ab"]


async def test_it_waits_for_as_long_as_the_endpoint_asks(bench: Bench) -> None:
    bench.endpoint.answers = [refused(503, Retry_After="17")]
    bench.offer(b"a")
    await bench.settle()
    (slept,) = bench.clock.slept
    assert 17 <= slept <= 18
    assert bench.sent == 1


async def test_where_it_asks_for_longer_than_a_batch_is_kept_the_next_one_waits(bench: Bench) -> None:
    bench.endpoint.answers = [refused(429, Retry_After="120")]
    bench.offer(b"a", 4)
    bench.offer(b"b", 4)
    await bench.settle()
    assert [request.data for request in bench.endpoint.requests] == [b"a", b"b"]
    assert bench.clock.slept == [120.0]
    assert (bench.dropped("unreachable"), bench.sent) == (4, 4)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 501])
async def test_a_refusal_that_another_try_would_not_change_is_not_repeated(bench: Bench, status: int) -> None:
    bench.endpoint.answers = [refused(status)]
    bench.offer(b"a", 3)
    await bench.settle()
    assert len(bench.endpoint.requests) == 1
    assert bench.dropped("refused") == 3


async def test_an_endpoint_that_is_not_there_is_given_up_in_time(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    gone = CallFailed("no answer: ClientConnectorError", "reset", fault="ClientConnectorError")
    bench.endpoint.answers = [gone] * 6
    bench.offer(b"a", 3)
    await bench.settle()
    assert len(bench.endpoint.requests) == 6
    assert sum(bench.clock.slept) <= 60
    assert bench.dropped("unreachable") == 3
    assert "traces not sent: ClientConnectorError" in caplog.text
    assert SECRET not in caplog.text


async def test_spans_that_the_endpoint_rejects_are_counted(bench: Bench) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "no"
    bench.endpoint.answers = [answer.SerializeToString(), b"{}not protobuf"]
    bench.offer(b"a", 4)
    await bench.settle()
    bench.offer(b"b", 4)
    await bench.settle()
    assert (bench.sent, bench.dropped("rejected")) == (6, 2)


async def test_a_body_is_compressed_where_asked_for(tasks: TaskRegistry) -> None:
    bench = Bench(gzip=True)
    bench.exporter.start(tasks)
    bench.offer(b"a" * 1000)
    await bench.settle()
    (request,) = bench.endpoint.requests
    assert request.headers["Content-Encoding"] == "gzip"
    assert isinstance(request.data, bytes)
    assert gzip.decompress(request.data) == b"a" * 1000


async def test_the_end_sends_what_is_left_once() -> None:
    tasks = TaskRegistry()
    bench = Bench(delay_s=3600.0)
    bench.exporter.start(tasks)
    bench.offer(b"a", 2)
    bench.offer(b"b", 1)
    await tasks.aclose()
    await bench.exporter.aclose()
    assert [request.data for request in bench.endpoint.requests] == [b"ab"]
    assert bench.sent == 3
    assert bench.endpoint.closed


async def test_the_end_waits_for_no_endpoint_that_does_not_answer() -> None:
    tasks = TaskRegistry()
    bench = Bench(last_s=0.01)
    bench.exporter.start(tasks)
    bench.endpoint.gate.clear()
    for body in (b"a", b"b", b"c"):
        bench.offer(body, 3)
    await bench.endpoint.wait_requests(1)
    await tasks.aclose()
    await bench.exporter.aclose()
    assert bench.dropped("shutdown") == 9
    assert bench.endpoint.closed


def test_headers_are_in_no_text_of_the_rules() -> None:
    assert SECRET not in repr(ExportRules("http://collector", {"Authorization": SECRET}))
