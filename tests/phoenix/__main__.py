"""A turn of Rico in Phoenix, unmodified: what it shows of each phase is what the turn's ledger says.

    python -m tests.phoenix

Installs Phoenix into an environment of its own, .tools/phoenix, as `phoenix.txt` beside this file pins it, runs it and
the whole of Turnwise on loopback (Postgres with 10,000 chunks, the mock model, both services), asks Rico, reads the
spans back over Phoenix' REST API, and compares their times with the ledger that came with `final`, to 1 us. Exits with
1 where they differ. Its first run downloads about 500 MB.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.bench import rico
from tests.doors.clients.__main__ import ClientFailed, expect, install_pinned, running
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ROOT

HERE = Path(__file__).parent
HOME = ROOT / ".tools/phoenix"
BASE = "/agentic/v1"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LEAST_US = 1.001
"""How far a time may be off: Phoenix keeps microseconds."""


async def asked(port: int, question: str) -> dict[str, Any]:
    """The `final` of one turn of Rico, in a trace whose id we know."""
    made = {"agent_id": "Rico", "title": "Phoenix"}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        http.post(f"{BASE}/chatbot/session", json=made) as response,
    ):
        session_id = (await response.json())["id"]
    headers = {"Authorization": "Bearer local", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    url = f"ws://127.0.0.1:{port}{BASE}/chatbot/query/ws"
    protocols = [Subprotocol("turnwise.v1")]
    async with connect(url, additional_headers=headers, subprotocols=protocols) as socket:
        ask = {"type": "ask", "session_id": session_id, "agent_id": "Rico", "message": question}
        await socket.send(json.dumps(ask))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame: dict[str, Any] = json.loads(await socket.recv())
                expect(frame["type"] != "error", f"the turn failed: {frame.get('code')}")
                if frame["type"] == "final":
                    return frame


async def shown(port: int, count: int) -> list[dict[str, Any]]:
    """The spans of the trace, once Phoenix has them all."""
    until = time.monotonic() + PATIENCE_S
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        while True:
            async with http.get("/v1/projects/default/spans", params={"limit": 1000}) as response:
                found = (await response.json())["data"] if response.status == 200 else []
            spans = [span for span in found if span["context"]["trace_id"] == TRACE]
            if len(spans) >= count:
                return spans
            expect(time.monotonic() < until, f"Phoenix shows {len(spans)} of {count} spans")
            await asyncio.sleep(0.5)


def compare(final: dict[str, Any], spans: list[dict[str, Any]]) -> None:
    """Print each span beside its row. Raises ClientFailed where one differs or has no row."""
    (root,) = [span for span in spans if span["name"] == "invoke_agent Rico"]
    began = moment(root["start_time"])
    by_id = {span["context"]["span_id"]: span for span in spans}
    rows = sorted(((row["phase"], row["start_ms"], row["ms"]) for row in final["ledger"]), key=lambda row: row[:2])
    found = sorted(
        (
            (
                str(phase_of(span)),
                (moment(span["start_time"]) - began) / 1e3,
                (moment(span["end_time"]) - moment(span["start_time"])) / 1e3,
                span,
            )
            for span in spans
            if span is not root
        ),
        key=lambda one: one[:2],
    )
    expect(len(rows) == len(found), f"{len(found)} spans for {len(rows)} rows")
    print(f"{'phase':24} {'kind':10} {'under':24} {'ledger ms':>10} {'Phoenix ms':>11} {'off by us':>10}")
    for (phase, start_ms, ms), (name, shown_start_ms, shown_ms, span) in zip(rows, found, strict=True):
        off_us = max(abs(start_ms - shown_start_ms), abs(ms - shown_ms)) * 1e3
        above = by_id.get(span.get("parent_id") or "", {})
        print(
            f"{name:24} {span['span_kind']:10} {phase_of(above) or above.get('name', '-'):24} {ms:10.3f} "
            f"{shown_ms:11.3f} {off_us:10.3f}"
        )
        expect(phase == name and off_us <= LEAST_US, f"{name} is {off_us:.3f} us off")
    kinds = {str(phase_of(span)): span["span_kind"] for span in spans}
    expect(root["span_kind"] == "AGENT", f"the turn is a {root['span_kind']}")
    expect(kinds["llm_invoke"] == "LLM", f"the model's call is a {kinds['llm_invoke']}")
    expect(kinds["vector_search"] == "RETRIEVER", f"the search is a {kinds['vector_search']}")


def phase_of(span: dict[str, Any]) -> str | None:
    """The row of the ledger that a span was, None for the turn."""
    phase = span.get("attributes", {}).get("turnwise.phase")
    return None if phase is None else str(phase)


def moment(text: str) -> int:
    """A time of Phoenix in microseconds."""
    at = datetime.fromisoformat(text)
    return int(at.timestamp()) * 1_000_000 + at.microsecond


def main() -> int:
    """Ask and compare."""
    try:
        install_pinned(HOME, HERE / "phoenix.txt")
        with ExitStack() as stack:
            port, grpc = free_port(), free_port()
            variables = {
                "PHOENIX_HOST": "127.0.0.1",
                "PHOENIX_PORT": str(port),
                "PHOENIX_GRPC_PORT": str(grpc),
                "PHOENIX_WORKING_DIR": str(HOME / "data"),
                "PHOENIX_SQL_DATABASE_URL": "sqlite:///:memory:",
                "PHOENIX_TELEMETRY_ENABLED": "false",
                "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            }
            (HOME / "data").mkdir(exist_ok=True)
            stack.enter_context(running([str(HOME / "bin/phoenix"), "serve"], variables, port, HOME / "phoenix.log"))
            os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
            started = rico.start(stack, 1)
            question = started.questions.read_text().splitlines()[0]
            final = asyncio.run(asked(started.port, question))
            compare(final, asyncio.run(shown(port, len(final["ledger"]) + 1)))
    except ClientFailed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    print("Phoenix shows what the ledger says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
