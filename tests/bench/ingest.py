"""What an upload costs and how much memory it takes: a real service process, real Postgres, an instant model.

    make bench-ingest                    200 MB of text in files of 50 MB, the largest allowed: a quarter of an hour
    make bench-ingest ARGS=--short       20 MB in files of 5 MB

Hypothesis: however much is uploaded, the service holds pieces of it: the received bytes on disk and in Postgres, chunks
and vectors on disk, and the text and bytes of one large file in memory while it is written (twice its size, and once
more as the driver sends them). Bound: 300 MB above the start for the service; a parsing child stays within its limit
(`processing.worker_memory_mb`), which the kernel keeps. Control: the same process before the upload. `store` is the
writing of the received bytes to Postgres; the files of one upload are worked on one after the other.
"""

import argparse
import asyncio
import base64
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import yaml
from aiohttp import web

from backend_kit.wire import dumps, loads
from tests.bench.bench import Verdicts, cores, pinned_to
from tests.bench.search_cost import calibration
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from turnwise.postgres import USER, EmbeddedPostgres

BASE = "/knowledge-flow/v1"
MIB = 1024 * 1024
DIMENSION = 384
GROWTH_MB = 300.0
"""Of the service. A file of 50 MB is in memory as text, as bytes and in the driver's buffers; the rest is small."""
SAMPLE_S = 0.1
VECTORS = 4096


def words(seed: int) -> Iterator[bytes]:
    """Paragraphs of made-up words without end, the same for the same seed."""
    source = random.Random(seed)  # noqa: S311 - text
    known = ["".join(source.choices("abcdefghilmnoprstu", k=source.randint(2, 10))) for _ in range(20_000)]
    while True:
        yield (" ".join(source.choices(known, k=source.randint(40, 120))) + ".\n\n").encode()


def write_files(directory: Path, count: int, size: int) -> list[Path]:
    """Files of about so many bytes."""
    made = []
    for number in range(count):
        file = directory / f"file{number}.txt"
        with file.open("wb") as text:
            written = 0
            for paragraph in words(number):
                if written + len(paragraph) > size:
                    break
                written += text.write(paragraph)
        made.append(file)
    return made


def serve_model(port: int) -> None:
    """An embedding endpoint that has its answers ready: random unit vectors, in turn."""
    rows = np.random.default_rng(1).standard_normal((VECTORS, DIMENSION)).astype("<f4")
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ready = [base64.b64encode(row.tobytes()).decode() for row in rows]
    given = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal given
        texts = len(loads(await request.read())["input"])
        data = [{"index": at, "embedding": ready[(given + at) % VECTORS]} for at in range(texts)]
        given += texts
        return web.Response(body=dumps({"data": data}), content_type="application/json")

    app = web.Application(client_max_size=64 * MIB)
    app.router.add_post("/v1/embeddings", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=lambda *_: print("listening", flush=True))


class Memory:
    """RSS of a process and of its children, looked at ten times a second from a thread."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self.start_mb = self.service_mb = self._process.memory_info().rss / MIB
        self.children_mb = self.child_mb = 0.0

    @contextmanager
    def watched(self) -> Iterator["Memory"]:
        """Look for as long as the block runs."""
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _look(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.service_mb = max(self.service_mb, self._process.memory_info().rss / MIB)
            children = []
            for child in self._process.children(recursive=True):
                try:
                    children.append(child.memory_info().rss / MIB)
                except psutil.NoSuchProcess:
                    continue
            self.child_mb = max([self.child_mb, *children])
            self.children_mb = max(self.children_mb, sum(children))


def started(stack: ExitStack) -> tuple[ModuleProcess, str, str]:
    """The service on its own core; its address below the base path, and that of its metrics."""
    directory = public_directory("turnwise-ingest-bench-")
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-ingest-bench-")))
    mine, others = cores()
    with pinned_to(others):
        postgres = EmbeddedPostgres(directory, free_port())
        postgres.start()
        stack.callback(postgres.stop)
        model_port = free_port()
        model = ModuleProcess("tests.bench.ingest", "--serve-model", str(model_port))
        stack.enter_context(model).wait_for_line("listening")
    port, metrics_port = free_port(), free_port()
    file = work / "configuration.yaml"
    settings = {
        "app": {"port": port, "metrics_port": metrics_port, "kpi_log_summary_interval_sec": 0},
        "security": {"user": {"enabled": False}},
        "embedding_model": {
            "provider": "openai",
            "name": "instant",
            "settings": {"base_url": f"http://127.0.0.1:{model_port}/v1", "batch_max_texts": 64},
        },
        "storage": {
            "postgres": {
                "host": "127.0.0.1",
                "port": postgres.port,
                "username": USER,
                "database": postgres.database,
            }
        },
    }
    file.write_text(yaml.safe_dump(settings))
    with pinned_to(mine):
        process = ModuleProcess("knowledge_flow_backend", env={"CONFIG_FILE": str(file), "TMPDIR": str(work)})
        stack.enter_context(process)
    process.wait_for_http(f"http://127.0.0.1:{port}{BASE}/ready", 60.0)
    return process, f"http://127.0.0.1:{port}{BASE}", f"http://127.0.0.1:{metrics_port}/metrics"


async def upload(url: str, files: list[Path], name: str) -> dict[str, Any]:
    """Send files in one request; its last line."""
    form = aiohttp.FormData()
    with ExitStack() as stack:
        for file in files:
            form.add_field("files", stack.enter_context(file.open("rb")), filename=f"{name}/{file.name}")
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
            http.post(f"{url}/upload-process-documents", data=form) as response,
        ):
            last: dict[str, Any] = {}
            async for line in response.content:
                last = loads(line)
    if last.get("status") != "success":
        raise RuntimeError(f"the upload did not succeed: {last}")
    return last


async def lags(metrics_url: str) -> dict[float, float]:
    """How many samples of the loop's lag were at most so many seconds, since the start."""
    async with aiohttp.ClientSession() as http, http.get(metrics_url) as response:
        lines = (await response.text()).splitlines()
    buckets = [line for line in lines if line.startswith("app_event_loop_lag_seconds_bucket")]
    return {float(line.split('le="')[1].split('"')[0]): float(line.split()[-1]) for line in buckets}


def late(before: dict[float, float], after: dict[float, float], limit_s: float) -> tuple[float, float]:
    """Of the samples between two looks: the share above `limit_s`, and the bound of the highest filled bucket."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    total = counts[float("inf")]
    within = max(bound for bound in counts if bound <= limit_s)
    highest = min(bound for bound, count in counts.items() if count == total)
    return (total - counts[within]) / total, highest


def report(done: dict[str, Any], memory: Memory, lag: tuple[float, float], verdicts: Verdicts) -> None:
    """Print the figures."""
    print(f"{done['bytes'] / MIB:.0f} MB, {done['chunks']} chunks in {done['seconds']:.1f} s", end=": ")
    print(f"{done['bytes'] / MIB / done['seconds']:.2f} MB/s, {done['chunks_per_s']:.0f} chunks/s")
    for stage, seconds in done["stages"].items():
        rate = done["chunks"] / seconds if seconds else 0.0
        print(f"  {stage:6} {seconds:8.1f} s {rate:10.0f} chunks/s {done['bytes'] / MIB / seconds:8.1f} MB/s")
    print(f"rss at start {memory.start_mb:.0f} MB, peak {memory.service_mb:.0f} MB", end="; ")
    print(f"children {memory.children_mb:.0f} MB at most")
    share, highest = lag
    print(f"the loop was late by > 20 ms in {share:.2%} of samples, at most {highest * 1e3:.0f} ms")
    verdicts.hold("growth of the service", memory.service_mb - memory.start_mb, GROWTH_MB, "MB")
    verdicts.hold("largest child", memory.child_mb, 1024.0, "MB")


def main() -> int:
    """Measure and print; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What an upload costs and how much memory it takes.")
    parser.add_argument("--short", action="store_true", help="20 MB in files of 5 MB")
    parser.add_argument("--mb", type=int, default=200, help="in all (default: %(default)s)")
    parser.add_argument("--file-mb", type=int, default=50, help="of each file (default: %(default)s)")
    parser.add_argument("--serve-model", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_model:
        serve_model(options.serve_model)
        return 0
    total, size = (20, 5) if options.short else (options.mb, options.file_mb)
    verdicts = Verdicts()
    with ExitStack() as stack:
        process, url, metrics_url = started(stack)
        texts = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-ingest-bench-")))
        print(f"calibration {calibration():.1f} ms")
        # A first small one: the index gets its shape, the child its modules.
        asyncio.run(upload(url, write_files(texts, 1, 10_000), "first"))
        files = write_files(texts, max(1, total // size), size * MIB)
        with Memory(process.pid).watched() as memory:
            before = asyncio.run(lags(metrics_url))
            done = asyncio.run(upload(url, files, "measured"))
            after = asyncio.run(lags(metrics_url))
        report(done, memory, late(before, after, 0.02), verdicts)
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
