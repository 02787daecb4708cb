"""How search grows: latency and CPU at 10,000, 100,000 and 300,000 chunks, and with an upload under way, by engine.

Hypothesis: a search costs what its query costs. On pgvector the service spends at most 5 ms of CPU on a hybrid one at
100,000 chunks, one after the other; twenty clients at once wait at most 1.5 times as long while 200 MB are ingested,
and the loop is never held.
Control: the smaller index before; the same twenty clients before the upload. The line `calibration` is the time of a
fixed piece of Python on this machine, and what an empty request costs the service there: one right after the other, and
after 20 ms of silence. No bound is changed by it. Of three runs of a policy the one of median CPU is told.
Command: `make bench-growth` (`--short`: 2,000 and 10,000 chunks, bounds five times as wide; `--engine`, `--chunks`;
`--parallel` is the service's `search.parallel`).

The service is a process that may use every core, asked over HTTP with questions that all differ; Postgres, OpenSearch,
the load and the mock model, which embeds at once, have all but the first. What Postgres and OpenSearch use stands
beside it. While OpenSearch is filled, which nobody measures, it has every core as well.
"""

import argparse
import asyncio
import io
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import psycopg
import uvloop
import yaml

from backend_kit.kpi.rollup import nearest_rank
from backend_kit.settings import load
from deploy.opensearch.node import OpenSearchNode
from knowledge_flow_backend.engines.opensearch.body import Place, Shape, bulk_lines, heading_of
from knowledge_flow_backend.engines.opensearch.cluster import Cluster, ClusterRules
from knowledge_flow_backend.engines.opensearch.shape import make_index
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.bench.bench import ROOT, Verdicts, pinned_to
from tests.bench.deployment import Deployment, cpu_s, deployed
from tests.bench.rico import knowledge_file
from tests.bench.search_cost import calibration, postgres_cpu
from tests.bench.seed_chunks import LIBRARY_ID, OWNER, question, seed, seed_chunk
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess
from ws_bench.fakes.embedding import DEFAULT_DIMENSIONS

BASE: Final = "/knowledge-flow/v1"
POLICIES: Final = ("hybrid", "semantic", "strict")
CPU_MS, CPU_AT, UPLOAD_RATIO = 5.0, 100_000, 1.5
HELD_S: Final = 0.025
"""The histogram's boundary above the 20 ms for which the loop may be held."""
_CLIENTS: Final = 20
_WARM_UP: Final = 30
_EMPTY: Final = 500
_BATCH: Final = 500
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much, how long, and how much wider than the full run's the bounds are."""

    chunks: tuple[int, ...]
    searches: int
    window_s: float
    upload_mb: int
    slack: float
    rounds: int


FULL = Size(chunks=(10_000, 100_000, 300_000), searches=300, window_s=30.0, upload_mb=200, slack=1.0, rounds=3)
SHORT = Size(chunks=(2_000, 10_000), searches=60, window_s=5.0, upload_mb=20, slack=5.0, rounds=1)


@dataclass(slots=True)
class Bench:
    """What runs: the deployment, and the node of OpenSearch where it is measured."""

    deployment: Deployment
    node: OpenSearchNode | None
    size: Size
    engines: Sequence[str]
    parallel: int | None = None
    """`search.parallel` of the service, where it is not the usual one."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    questions: Iterator[int] = field(default_factory=count)


def database_of(bench: Bench, chunks: int) -> tuple[Path, int, int]:
    """A configuration on a database with so many chunks, for pgvector: its path, port and metrics port."""
    name = f"chunks_{chunks}"
    bench.deployment.database(name)
    work = bench.deployment.work / name
    work.mkdir()
    path, port = knowledge_file(work, bench.deployment.storage(name), bench.deployment.model_url, workers=1)
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    metrics_port = free_port()
    config["app"] |= {"metrics_enabled": True, "metrics_port": metrics_port}
    config["storage"]["vector_store"]["index"] = f"turnwise-{chunks}"  # one node of OpenSearch has them all
    if bench.parallel is not None:
        config["search"] = {"parallel": bench.parallel}
    path.write_text(yaml.safe_dump(config))
    begun = time.perf_counter()
    seed(load(KnowledgeFlowSettings, path, {}), chunks, graph="pgvector" in bench.engines)
    print(f"\n== {chunks} chunks, in Postgres after {time.perf_counter() - begun:.0f} s")
    return path, port, metrics_port


def on_opensearch(bench: Bench, pgvector: Path) -> Path:
    """The same documents behind OpenSearch: its configuration. Postgres keeps what it has; its index is not asked."""
    assert bench.node is not None
    config: dict[str, Any] = yaml.safe_load(pgvector.read_text())
    config["storage"]["vector_store"]["type"] = "opensearch"
    config["storage"]["opensearch"] = {"host": bench.node.url, "secure": False}
    path = pgvector.with_name("opensearch.yaml")
    path.write_text(yaml.safe_dump(config))
    settings = load(KnowledgeFlowSettings, path, {})
    begun = time.perf_counter()
    whole = bench.deployment.service_cores | bench.deployment.other_cores
    move(bench.node, whole)
    with pinned_to(whole), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(fill(settings, bench.node.port))
    await_merges(bench.node.port)
    move(bench.node, bench.deployment.other_cores)
    print(f"in OpenSearch after {time.perf_counter() - begun:.0f} s more")
    return path


def move(node: OpenSearchNode, cores: set[int]) -> None:
    """Let every thread of the node run on these cores; a thread that it begins later inherits them."""
    assert node.pid is not None
    for thread in psutil.Process(node.pid).threads():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread.id, cores)


def asked(port: int, path: str, body: bytes | None = None) -> Any:
    """What the node answers to a GET, or to a PUT of a body."""
    how, head = ("GET" if body is None else "PUT"), {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, head, method=how), timeout=60
    ) as answer:
        return json.load(answer)


def await_merges(port: int) -> None:
    """Wait until the node has merged what was written: it would be measured as part of the searches."""
    while asked(port, "_stats/merge")["_all"]["total"]["merges"]["current"]:
        time.sleep(1.0)


async def fill(settings: KnowledgeFlowSettings, port: int) -> None:
    """Write every chunk of the database to its index in OpenSearch, which shows them to searches at the end."""
    assert settings.storage.opensearch is not None
    alias, postgres = settings.storage.vector_store.index, settings.storage.postgres
    cluster = Cluster(settings.storage.opensearch, ClusterRules(bulks=4))
    with psycopg.connect(
        host=postgres.host, port=postgres.port, dbname=postgres.database, user=postgres.username
    ) as connection:
        connection.execute(f'SET search_path TO "{alias}", public'.encode())
        connection.execute("UPDATE index_info SET engine = 'opensearch'")
        connection.execute("UPDATE documents SET generation = uid")
        token = connection.execute("SELECT token FROM index_identity").fetchone()
        assert token is not None
        shape = Shape(settings.embedding_model.name, DEFAULT_DIMENSIONS, str(token[0]))
        await make_index(cluster, alias, shape)
        asked(port, f"{alias}/_settings", b'{"index": {"refresh_interval": "-1"}}')
        with connection.cursor(name="chunks") as rows:
            rows.itersize = 4 * _BATCH
            rows.execute("SELECT document_uid, ordinal, title, section, content, embedding::text FROM chunks")
            await cluster.write(alias, (partial(lines, part) for part in parts(rows)))
        asked(port, f"{alias}/_settings", b'{"index": {"refresh_interval": null}}')
        await cluster.refresh(alias)
        connection.execute("DELETE FROM index_pending")
    await cluster.aclose()


def parts(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """The rows of one bulk request after the other."""
    rest = iter(rows)
    while part := list(islice(rest, _BATCH)):
        yield part


def lines(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows of chunks as a bulk request."""
    return b"".join(
        bulk_lines(Place(uid, uid, OWNER, None, True, (LIBRARY_ID,)), ordinal, heading_of(title, section), text, vector)
        for uid, ordinal, title, section, text, vector in rows
    )


async def searched(http: aiohttp.ClientSession, policy: str, text: str) -> float:
    """Milliseconds of one search that found something. Raises where it did not."""
    begun = time.perf_counter()
    async with http.post(f"{BASE}/vector/search", json={"question": text, "search_policy": policy}) as answer:
        hits = await answer.json()
    if answer.status != 200 or not hits:
        raise SystemExit(f"a search found nothing: {answer.status}")
    return (time.perf_counter() - begun) * 1e3


async def one_after_the_other(bench: Bench, port: int, chunks: int, policy: str, pid: int) -> tuple[float, str]:
    """CPU of the service a search, in ms, and the line of the table."""
    took: list[float] = []
    own = theirs = node = 0.0
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for number in range(bench.size.searches + _WARM_UP):
            if number == _WARM_UP:
                own, theirs, node = cpu_s(pid), postgres_cpu(), node_cpu(bench)
            took.append(await searched(http, policy, question(next(bench.questions), chunks)))
    own, theirs, node = (
        (now - then) * 1e3 / bench.size.searches
        for now, then in ((cpu_s(pid), own), (postgres_cpu(), theirs), (node_cpu(bench), node))
    )
    ordered = sorted(took[_WARM_UP:])
    p50, p95 = nearest_rank(ordered, 0.5), nearest_rank(ordered, 0.95)
    return own, f"{policy:9} {p50:8.2f} {p95:8.2f} {own:9.2f} {theirs:9.2f} {node:9.2f}"


async def empty_request(port: int, pid: int, silence_s: float) -> float:
    """CPU of the service, in ms, for a request that asks for nothing, each so long after the last one."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for number in range(_EMPTY + _WARM_UP):
            if number == _WARM_UP:
                before = cpu_s(pid)
            async with http.get(f"{BASE}/healthz") as answer:
                await answer.read()
            await asyncio.sleep(silence_s)
    return (cpu_s(pid) - before) * 1e3 / _EMPTY


def node_cpu(bench: Bench) -> float:
    """CPU seconds of OpenSearch so far."""
    if bench.node is None or bench.node.pid is None:
        return 0.0
    times = psutil.Process(bench.node.pid).cpu_times()
    return float(times.user + times.system)


async def crowd(bench: Bench, port: int, chunks: int) -> list[float]:
    """What twenty clients wait for hybrid searches, in a window, ascending, ms."""
    took: list[float] = []
    until = time.perf_counter() + bench.size.window_s

    async def client(http: aiohttp.ClientSession) -> None:
        while time.perf_counter() < until:
            took.append(await searched(http, "hybrid", question(next(bench.questions), chunks)))

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client(http))
    return sorted(took)


def form(megabytes: int) -> aiohttp.FormData:
    """So much text as an upload of 2 MB files, each with words of its own."""
    data = aiohttp.FormData(quote_fields=False)
    data.add_field("metadata_json", '{"tags": [], "source_tag": "bench"}')
    for number in range(megabytes // 2):
        text = "\n\n".join(seed_chunk(10_000_000 + number * 200 + part).text for part in range(200))
        body = (text + "\n\n") * (2 * _MB // len(text))
        # Paragraphs repeat within a file, so that making them is no work; each file is another one.
        data.add_field("files", io.BytesIO(body.encode()), filename=f"upload-{number}.txt", content_type="text/plain")
    return data


async def while_ingesting(bench: Bench, port: int, chunks: int) -> tuple[list[float], int]:
    """The same crowd while an upload is worked on, and how many files were done or under way when it ended."""
    begun, seen = asyncio.Event(), 0

    async def upload(http: aiohttp.ClientSession) -> None:
        nonlocal seen
        async with http.post(f"{BASE}/upload-process-documents", data=form(bench.size.upload_mb)) as answer:
            if answer.status != 200:
                raise SystemExit(f"the upload was refused: {answer.status}")
            async for line in answer.content:
                begun.set()
                seen += b'"finished"' in line or b'"embed"' in line

    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20
    ) as http:
        uploading = asyncio.ensure_future(upload(http))
        await asyncio.wait({uploading, asyncio.ensure_future(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if uploading.done():
            uploading.result()
        took = await crowd(bench, port, chunks)
        uploading.cancel()
        await asyncio.wait({uploading})
    return took, seen


def held(metrics_port: int) -> float:
    """Samples so far in which the loop was late by more than `HELD_S`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    within = re.search(rf'^app_event_loop_lag_seconds_bucket{{le="{HELD_S}"}} (\S+)$', text, re.MULTILINE)
    whole = re.search(r"^app_event_loop_lag_seconds_count (\S+)$", text, re.MULTILINE)
    assert within is not None
    assert whole is not None
    return float(whole[1]) - float(within[1])


def scheduled_s(pid: int) -> tuple[float, float]:
    """Seconds that the loop's thread of a service, its first one, has run, and has waited for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def told(pid: int, ran: float, waited: float) -> str:
    """The line of what the loop's thread has run and waited since."""
    now = scheduled_s(pid)
    return f"the loop's thread ran {now[0] - ran:.1f} s, and was ready and waited for a core {now[1] - waited:.1f} s"


def measure(bench: Bench, engine: str, config: Path, ports: tuple[int, int], chunks: int, *, crowded: bool) -> None:
    """One engine at one size."""
    port, metrics_port = ports
    environment = {
        "OPENAI_API_KEY": "",
        "CONFIG_FILE": str(config),
        "TURNWISE_HOME": str(bench.deployment.work / "home"),
    }
    process = ModuleProcess("knowledge_flow_backend", env=environment)
    with pinned_to(bench.deployment.service_cores | bench.deployment.other_cores):
        process.__enter__()
    try:
        process.wait_for_http(f"http://127.0.0.1:{port}{BASE}/ready", 90.0)
        print(f"{engine:9} {'p50 ms':>8} {'p95 ms':>8} {'service':>9} {'postgres':>9} {'node':>9}  ms of CPU a search")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            empty, late = (runner.run(empty_request(port, process.pid, silence_s)) for silence_s in (0.0, 0.02))
            print(
                f"calibration {calibration():.1f} ms; an empty request {empty:.2f} ms of CPU, {late:.2f} after silence"
            )
            for policy in POLICIES:
                runs = [
                    runner.run(one_after_the_other(bench, port, chunks, policy, process.pid))
                    for _ in range(bench.size.rounds)
                ]
                own, line = sorted(runs)[len(runs) // 2]
                print(line)
                if engine == "pgvector" and policy == "hybrid" and chunks == min(CPU_AT, bench.size.chunks[-1]):
                    bench.verdicts.hold("service CPU a search", own, CPU_MS * bench.size.slack, "ms")
            if crowded:
                with_upload(bench, runner, engine, (port, metrics_port, process.pid), chunks)
    finally:
        process.kill()  # the rest of an upload is nobody's


def with_upload(bench: Bench, runner: asyncio.Runner, engine: str, where: tuple[int, int, int], chunks: int) -> None:
    """Twenty clients, without and with an upload, at a service of this port, port of metrics and process."""
    port, metrics_port, pid = where
    before, used, first = held(metrics_port), cpu_s(pid), calibration()
    ran, waited = scheduled_s(pid)
    alone = runner.run(crowd(bench, port, chunks))
    print(f"{_CLIENTS} clients alone: {held(metrics_port) - before:.0f} samples of lag above {HELD_S * 1e3:.0f} ms")
    print(told(pid, ran, waited))
    own = (cpu_s(pid) - used) * 1e3 / len(alone)
    print(f"service CPU a search {own:.2f} ms; calibration {first:.1f} before and {calibration():.1f} ms after")
    before, (ran, waited) = held(metrics_port), scheduled_s(pid)
    beside, seen = runner.run(while_ingesting(bench, port, chunks))
    late = held(metrics_port) - before
    print(told(pid, ran, waited))
    for what, took in (("alone", alone), ("while ingesting", beside)):
        rate = len(took) / bench.size.window_s
        p50, p95 = nearest_rank(took, 0.5), nearest_rank(took, 0.95)
        print(f"{_CLIENTS} clients {what:16} p50 {p50:7.1f} p95 {p95:7.1f} ms, {rate:6.1f} searches/s")
    if not seen:
        raise SystemExit("nothing was ingested meanwhile: the window was too short")
    ratio = nearest_rank(beside, 0.95) / nearest_rank(alone, 0.95)
    bench.verdicts.hold(f"{engine}: p95 while ingesting / alone", ratio, UPLOAD_RATIO * bench.size.slack, "x")
    bench.verdicts.hold(f"{engine}: samples of lag above {HELD_S * 1e3:.0f} ms", late, 0, "")


def run(size: Size, engines: Sequence[str], parallel: int | None) -> int:
    """Every size on every engine; how many bounds were missed."""
    with deployed() as deployment, ExitStack() as stack:
        node = None
        if "opensearch" in engines:
            node = OpenSearchNode(ROOT, deployment.work / "opensearch", free_port(), heap_mb=1024)
            # It makes as many threads as it sees cores.
            with pinned_to(deployment.service_cores | deployment.other_cores):
                node.start(print)
            stack.callback(node.stop)
            move(node, deployment.other_cores)
        bench = Bench(deployment, node, size, engines, parallel)
        for chunks in size.chunks:
            config, *ports = database_of(bench, chunks)
            crowded = chunks == size.chunks[min(1, len(size.chunks) - 1)]
            if "pgvector" in engines:
                measure(bench, "pgvector", config, (ports[0], ports[1]), chunks, crowded=crowded)
            if node is not None:
                path = on_opensearch(bench, config)
                measure(bench, "opensearch", path, (ports[0], ports[1]), chunks, crowded=crowded)
        return bench.verdicts.failed


def main() -> int:
    """Run it; the exit code is 1 where a bound was missed."""
    parser = argparse.ArgumentParser(prog="make bench-growth", description="How search grows.")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--engine", choices=("both", "pgvector", "opensearch"), default="both")
    parser.add_argument("--chunks", type=int, nargs="*", help="sizes instead of the usual ones")
    parser.add_argument("--parallel", type=int, help="search.parallel of the service")
    chosen = parser.parse_args()
    size = SHORT if chosen.short else FULL
    if chosen.chunks:
        size = replace(size, chunks=tuple(chosen.chunks))
    missed = run(size, ("pgvector", "opensearch") if chosen.engine == "both" else (chosen.engine,), chosen.parallel)
    print(f"\n{missed} bound(s) missed" if missed else "\nall bounds hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
