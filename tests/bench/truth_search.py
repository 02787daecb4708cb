"""The lines of the summary that the deployment of `tests.bench.truth` never feeds: `os_query` and `rerank_queue`.

    python -m tests.bench.truth_search      this part alone, with its table

A second knowledge flow on an OpenSearch node, behind a relay that puts the node's answers off, and with the local
reranker, whose only thread has so much to do for each call that those of a burst wait for one another. It ends before
the load of the others begins, and its last summary covers all that it did.
"""

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop
import yaml

from deploy.java.server import JavaServerFailed
from deploy.opensearch.node import OpenSearchNode
from tests.bench.deployment import Deployment, deployed
from tests.bench.rico import NO_OVERRIDES, ROOT, written
from tests.bench.truth_load import Call
from tests.bench.truth_stage import KNOWLEDGE, Taps
from tests.bench.truth_table import Figures, Row, printed, summary_of, timer
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

OS_QUERY, RERANK_QUEUE = "app.phase_latency_ms|phase=os_query", "rerank_queue"
DELAY_MS = 500.0
_DOCUMENTS = 3
_SEARCHES, _AT_ONCE = 48, 8
_POLICIES = ("hybrid", "strict", "semantic")
_BURSTS = 2
"""Of `_AT_ONCE` reranks, over the connections that the searches opened."""
_APART_S = 0.1
"""Between the calls of a burst: each is read before the next one comes, beside a thread that computes."""
_WORDS, _PASSAGES = 12_000, 800
"""A word of the question is looked up in each passage: a second of a core, by a body of 120 KB."""
_NEVER_S = 3600.0
_QUERY = re.compile(r"/_search(\?|$)")


@dataclass(frozen=True, slots=True)
class SearchEvidence:
    """What the second knowledge flow told, the requests to its OpenSearch, and the reranks of its client. `missing`
    says why there is none of it."""

    told: dict[str, Figures]
    queries: Sequence[dict[str, Any]]
    reranks: Sequence[Call]
    missing: str = ""


def searched(deployment: Deployment) -> SearchEvidence:
    """Start it, ask it and end it. Where OpenSearch cannot be started there is no evidence."""
    node = OpenSearchNode(ROOT, deployment.work / "opensearch", free_port(), short_lived=True)
    try:
        node.start(print)
    except JavaServerFailed as failure:
        return SearchEvidence({}, (), (), missing=str(failure))
    with ExitStack() as stack:
        stack.callback(node.stop)
        taps = Taps(stack, {"opensearch": ("http", node.port)})
        deployment.database("search")
        port = free_port()
        service = _started(deployment, port, taps.ports["opensearch"])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            reranks = runner.run(_asked(port, taps))
        service.stop()
        records = taps.records(deployment.work / "search.jsonl")["opensearch"]
    queries = [one for one in records if _QUERY.search(one["path"])]
    return SearchEvidence(summary_of(service.output), queries, reranks)


def rows(evidence: SearchEvidence) -> Iterator[Row]:
    """Both lines beside what others saw."""
    told = evidence.told
    if evidence.missing:
        for line in (OS_QUERY, RERANK_QUEUE):
            yield Row(line, "count", None, None, f"nobody: {evidence.missing}")
        return
    queries = [one["ended"] - one["begun"] for one in evidence.queries]
    yield from timer(OS_QUERY, told.get(OS_QUERY), queries, "relay before OpenSearch")
    source = "client: from its call to the end of the one before"
    yield from timer(RERANK_QUEUE, told.get(RERANK_QUEUE), waits(evidence.reranks), source)


def waits(calls: Sequence[Call]) -> list[float]:
    """How long each call waited, where one thread works on one after the other in the order in which they came."""
    ordered = sorted(calls, key=lambda call: call.begun)
    pairs = itertools.pairwise(ordered)
    return [0.0 for _ in ordered[:1]] + [max(before.ended - call.begun, 0.0) for before, call in pairs]


def _started(deployment: Deployment, port: int, opensearch_port: int) -> ModuleProcess:
    file = ROOT / "config/knowledge_flow/configuration_bench.yaml"
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    # The only summary is that of its end.
    summary = {"kpi_log_summary_interval_sec": _NEVER_S, "kpi_log_summary_top_n": 0}
    config["app"] |= {"port": port, "metrics_port": free_port(), **summary}
    config["embedding_model"]["settings"]["base_url"] = deployment.model_url
    config["crossencoder_model"] = {"provider": "local", "settings": {"threads": 1}}
    config["storage"]["postgres"] |= deployment.storage("search")
    config["storage"]["vector_store"]["type"] = "opensearch"
    config["storage"]["opensearch"] = {"host": f"http://127.0.0.1:{opensearch_port}", "secure": False}
    config["processing"] = {"workers": 1}
    config["limits"] = {"max_question_chars": 100_000}
    config["deadlines"] = {"search_s": HANGS_S, "rerank_s": HANGS_S}
    path = written(deployment.work / "search.yaml", config)
    environment = {**NO_OVERRIDES, "TURNWISE_HOME": str(deployment.work), "CONFIG_FILE": str(path)}
    ready = f"http://127.0.0.1:{port}{KNOWLEDGE}/ready"
    return deployment.start("knowledge_flow_backend", ready=ready, environment=environment)


async def _asked(port: int, taps: Taps) -> list[Call]:
    timeout = aiohttp.ClientTimeout(HANGS_S)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as http:
        await _upload(http)
        await taps.tell(f"delay opensearch {DELAY_MS}")
        cited = await _search_all(http)
        body = heavy(cited)
        calls: list[Call] = []
        for _ in range(_BURSTS):
            async with asyncio.TaskGroup() as group:
                for place in range(_AT_ONCE):
                    group.create_task(_rerank(http, body, place * _APART_S, calls))
        return calls


async def _upload(http: aiohttp.ClientSession) -> None:
    form = aiohttp.FormData()
    for number in range(_DOCUMENTS):
        text = f"# Well {number}\n\nThe well of village {number} is {number + 7} metres deep.\n"
        form.add_field("files", text.encode(), filename=f"well{number}.md")
    async with http.post(f"{KNOWLEDGE}/upload-process-documents", data=form) as answer:
        said = await answer.text()
    if said.count('"status":"success"') < _DOCUMENTS:
        raise RuntimeError(f"the documents were not taken: {answer.status} {said[:500]}")


async def _search_all(http: aiohttp.ClientSession) -> str:
    """Searches, so many at a time; the citation of a passage that they found."""
    numbers = iter(range(_SEARCHES))
    cited: list[str] = []

    async def one_after_another() -> None:
        for number in numbers:
            village = number % _DOCUMENTS
            policy = _POLICIES[number // _DOCUMENTS % len(_POLICIES)]
            ask = {"question": f"How deep is the well of village {village}?", "search_policy": policy}
            async with http.post(f"{KNOWLEDGE}/vector/search", json=ask) as answer:
                hits = await answer.json()
                if answer.status != 200 or not hits:
                    raise RuntimeError(f"a search found nothing: {answer.status} {hits}")
            cited.append(hits[0]["citation_url"])

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(one_after_another())
    return cited[0]


def heavy(cited: str, *, words: int = _WORDS, passages: int = _PASSAGES) -> bytes:
    """The body of a rerank that takes long by words alone: its passages claim to be one of the index, whose vector is
    known, so that none is embedded."""
    question = " ".join(f"{number:x}" for number in range(words))
    passage = {"content": "well", "uid": "d", "title": "t", "score": 0.5, "citation_url": cited}
    return json.dumps({"question": question, "documents": [passage] * passages, "top_r": 1}).encode()


async def _rerank(http: aiohttp.ClientSession, body: bytes, after_s: float, calls: list[Call]) -> None:
    await asyncio.sleep(after_s)
    begun = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    async with http.post(f"{KNOWLEDGE}/vector/rerank", data=body, headers=headers) as answer:
        said = await answer.text()
        calls.append(Call("rerank", answer.status, begun, time.perf_counter()))
    if answer.headers.get("X-Turnwise-Rerank") != "done":
        raise RuntimeError(f"a rerank was not done: {answer.status} {said[:500]}")


def main() -> int:
    """This part alone and its table; 1 where a figure is off or missing."""
    with deployed() as deployment:
        found = list(rows(searched(deployment)))
    print("\n".join(printed(found)))
    return 1 if any(row.verdict in ("MISS", "MISSING") for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
