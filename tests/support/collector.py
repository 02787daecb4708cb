"""An OTLP/HTTP endpoint that keeps what it is sent, and answers as the test says.

python -m tests.support.collector --port PORT    takes everything and keeps nothing, for benches
"""

import argparse
import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.patience import PATIENCE_S


@dataclass(slots=True)
class Collector:
    """What arrived. `statuses` are the answers of the next requests, then each is 200; `rejects` of how many spans the
    answers say that they were rejected."""

    port: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    rejects: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        """All spans that were taken."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    async def wait_spans(self, count: int) -> list[Span]:
        """The spans, once there are so many."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: len(self.spans) >= count)
        return self.spans

    async def handle(self, request: web.Request) -> web.Response:
        """Take an export."""
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        status = self.statuses.pop(0) if self.statuses else 200
        async with self.changed:
            self.headers.append(dict(request.headers))
            if status == 200:
                self.requests.append(ExportTraceServiceRequest.FromString(body))
            self.changed.notify_all()
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self.rejects
        return web.Response(status=status, body=answer.SerializeToString(), content_type="application/x-protobuf")


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """A collector on a free port."""
    running = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", running.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        running.port = runner.addresses[0][1]
        yield running
    finally:
        await runner.cleanup()


def about(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


async def _take(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(content_type="application/x-protobuf")


async def _listening(_app: web.Application) -> None:
    print("listening", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    taking = web.Application()
    taking.router.add_post("/v1/traces", _take)
    taking.on_startup.append(_listening)
    web.run_app(taking, host="127.0.0.1", port=parser.parse_args().port, print=None)
