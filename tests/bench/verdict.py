"""Does the service know who bounds it? Real processes make each cause the bottleneck in its turn, and it is asked.

    make bench-verdict                every cause, two at once, and three runs in which nothing but the model is slow
    make bench-verdict ARGS=--short   seven of them

Control: the same services, load and window with nothing made slow. Each case prints what the service said over its
steady window (`GET /kpi/verdict`), what was expected, and where the time of a turn went.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from tests.bench.crowd import BASE, Crowd
from tests.bench.rico import NO_OVERRIDES, ROOT, seed, written
from tests.bench.starve import CannotStarve, crowded, quota_of
from tests.chaos.control import ProxyProcess
from tests.support.odd_agent import odd
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from turnwise.postgres import USER, EmbeddedPostgres

QUICK: Final = "mock;floor=60;tokens=10"
_WARM_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way to be slow. `expected` are the answers that are right; the sections go into the agentic configuration."""

    name: str
    expected: tuple[str, ...]
    clients: int = 8
    agent: str = "Georges"
    model: str = QUICK
    sections: dict[str, Any] = field(default_factory=dict)
    agentic: tuple[str, ...] = ()
    knowledge: tuple[str, ...] = ()
    embed_ms: float = 5.0
    postgres_delay_ms: float = 0.0
    flood: int = 0
    bytes_per_s: float = 0.0
    hogs: int = 0
    """Programs that compute on the one core that the service may use, each with far more weight."""
    quota: float = 0.0
    """Cores that its control group may use; 0 = all."""
    culprit: str = ""
    """Place and phase that the worst stall must have."""
    short: bool = False


def _pool(size: int) -> dict[str, Any]:
    # Without the cache each turn reads its history: what a restart, or a session that comes back, costs.
    postgres = {"pool_size": size, "max_overflow": 0, "pool_timeout": 10}
    return {"storage": {"postgres": postgres}, "history": {"cache_mb": 0}}


CASES: Final = (
    Case("nothing slow, one client, model 0 s", ("nobody",), clients=1, model="mock;tokens=10", short=True),
    Case("one client, model 1 s", ("llm_floor",), clients=1, model="mock;floor=1000;tokens=10"),
    Case("twenty clients, model 1 s", ("llm_floor",), clients=20, model="mock;floor=1000;tokens=10"),
    Case("slow model", ("llm_floor",), model="mock;floor=2500;tokens=10", short=True),
    Case(
        "200 ms blocking call",
        ("loop_cpu",),
        agent="block",
        sections={"ai": {"agents": [odd("block")]}},
        culprit="support/odd_agent.py:misbehave in stream_agent_response",
        short=True,
    ),
    Case("full loop, model 0 s", ("loop_cpu",), clients=100, model="mock;tokens=50"),
    Case("pool of 1, Postgres at 60 ms", ("pool_wait",), clients=10, sections=_pool(1), postgres_delay_ms=60),
    Case("Postgres at 300 ms", ("sql",), sections=_pool(20), postgres_delay_ms=300),
    Case("slow disk", ("disk",), agentic=("--disk-ms", "500"), short=True),
    Case("overloaded search", ("search",), clients=4, agent="Rico", flood=80),
    Case("slow embedder", ("embedding",), clients=4, agent="Rico", embed_ms=800, short=True),
    Case("slow reranker", ("rerank",), clients=4, agent="Rico", knowledge=("--rerank-ms", "600")),
    Case(
        "admission limit",
        ("admission",),
        clients=12,
        model="mock;floor=300;tokens=10",
        sections={"limits": {"max_turns": 2, "queue_deadline_s": 10}},
        short=True,
    ),
    Case("others on its core", ("starved",), clients=1, hogs=4, short=True),
    Case("a quota of a twentieth of a core", ("starved",), clients=1, quota=0.05),
    Case("slow readers", ("slow_clients",), clients=3, model="mock;tokens=25000", bytes_per_s=30_000),
    Case(
        "slow embedder, less slow reranker",
        ("embedding",),
        clients=4,
        agent="Rico",
        embed_ms=900,
        knowledge=("--rerank-ms", "300"),
    ),
    Case(
        "slow disk, less slow model",
        ("disk",),
        model="mock;floor=350;tokens=10",
        agentic=("--disk-ms", "700"),
    ),
)


class Stage:
    """What all cases share: Postgres with an index of documents, and where files go."""

    def __init__(self, stack: ExitStack) -> None:
        directory = public_directory("turnwise-verdict-")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        self.work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-verdict-")))
        self.postgres = EmbeddedPostgres(directory, free_port(), durable=False)
        self.postgres.start()
        stack.callback(self.postgres.stop)
        self.questions: tuple[str, ...] = ()

    def where(self, port: int | None = None) -> dict[str, Any]:
        """The database in a configuration."""
        port = port or self.postgres.port
        return {"host": "127.0.0.1", "port": port, "username": USER, "database": "turnwise"}

    @contextmanager
    def model(self, embed_ms: float) -> Iterator[str]:
        """A mock model; its base URL."""
        port = free_port()
        arguments = ("mock-llm", "--port", str(port), "--embed-latency", f"{embed_ms:g}ms")
        with ModuleProcess("ws_bench", *arguments) as process:
            process.wait_for_line("listening")
            yield f"http://127.0.0.1:{port}/v1"

    @contextmanager
    def knowledge(self, case: Case, model_url: str) -> Iterator[int]:
        """Knowledge flow over seeded documents; its port."""
        config = yaml.safe_load((ROOT / "config/knowledge_flow/configuration_bench.yaml").read_text())
        port = free_port()
        config["app"] |= {"port": port, "metrics_enabled": False}
        config["embedding_model"]["settings"]["base_url"] = model_url
        config["crossencoder_model"] = {"provider": "local", "settings": {"threads": 8}}
        config["storage"]["postgres"] |= self.where()
        config["deadlines"] = {"rerank_s": 3.0}
        file = written(self.work / "knowledge.yaml", config)
        if not self.questions:
            seed(file, self.work / "questions.txt")
            self.questions = tuple((self.work / "questions.txt").read_text().splitlines())
        environment = {**NO_OVERRIDES, "TURNWISE_HOME": str(self.work), "CONFIG_FILE": str(file)}
        arguments = ("knowledge", *case.knowledge)
        with ModuleProcess("tests.bench.hampered", *arguments, env=environment) as process:
            process.wait_for_http(f"http://127.0.0.1:{port}/knowledge-flow/v1/ready", 90.0)
            yield port

    @contextmanager
    def agentic(self, case: Case, model_url: str, knowledge_port: int, postgres_port: int) -> Iterator[int]:
        """The agentic service as the case wants it; its port."""
        config = yaml.safe_load((ROOT / "config/agentic/configuration_bench.yaml").read_text())
        port = free_port()
        config["app"] |= {"port": port, "metrics_enabled": False}
        config["ai"]["knowledge_flow_url"] = f"http://127.0.0.1:{knowledge_port}/knowledge-flow/v1"
        config["ai"]["default_chat_model"]["name"] = case.model
        config["ai"]["default_chat_model"]["settings"]["base_url"] = model_url
        config["storage"]["postgres"] |= self.where(postgres_port)
        config["persistence"] = {"ack": "spool", "spool_dir": tempfile.mkdtemp(dir=self.work)}
        for section, values in case.sections.items():
            for key, value in values.items():
                mine = config.setdefault(section, {})
                mine[key] = {**mine[key], **value} if isinstance(value, dict) and key in mine else value
        file = written(self.work / "agentic.yaml", config)
        environment = {**NO_OVERRIDES, "CONFIG_FILE": str(file)}
        with ExitStack() as stack:
            join = stack.enter_context(quota_of(case.quota)) if case.quota else None
            service = ModuleProcess("tests.bench.hampered", "agentic", *case.agentic, env=environment)
            process = stack.enter_context(service)
            process.wait_for_http(f"http://127.0.0.1:{port}{BASE}/ready", 60.0)
            if join is not None:
                join(process.pid)
            if case.hogs:
                stack.enter_context(crowded(process.pid, case.hogs))
            yield port


def run_case(stage: Stage, case: Case, seconds: float) -> tuple[dict[str, Any], Crowd]:
    """One case from start to end: what the service said over the last of its steady window, and what clients saw."""
    with ExitStack() as stack:
        model_url = stack.enter_context(stage.model(case.embed_ms))
        knowledge_port = stack.enter_context(stage.knowledge(case, model_url)) if case.agent == "Rico" else free_port()
        proxy = None
        if case.postgres_delay_ms:
            proxy = stack.enter_context(ProxyProcess(stage.postgres.port))
            proxy.start()
        postgres_port = proxy.port if proxy is not None else stage.postgres.port
        port = stack.enter_context(stage.agentic(case, model_url, knowledge_port, postgres_port))
        questions = stage.questions if case.agent == "Rico" else ("Hello",)
        crowd = Crowd(case.clients, seconds, case.agent, questions, case.bytes_per_s)
        return asyncio.run(observed(case, crowd, port, knowledge_port, proxy)), crowd


async def observed(
    case: Case, crowd: Crowd, port: int, knowledge_port: int, proxy: ProxyProcess | None
) -> dict[str, Any]:
    """The verdict over the last seconds of the load, asked while it still runs."""
    if proxy is not None:
        half = case.postgres_delay_ms / 2
        await proxy.tell(f"delay both {half:g} {half / 5:g}")
    async with asyncio.TaskGroup() as group:
        flood = group.create_task(flooded(knowledge_port, case.flood, crowd.questions))
        load = group.create_task(crowd.run(port))
        await asyncio.sleep(crowd.seconds)
        window_s = crowd.seconds - _WARM_S
        verdict: dict[str, Any] = await asked(port, f"/kpi/verdict?window_s={window_s:g}")
        verdict["culprit"] = ""
        for stall in (await asked(port, "/kpi/stalls"))[:1]:
            verdict["culprit"] = f"{stall['place']} in {stall['phase']}"
        load.cancel()
        flood.cancel()
    return verdict


async def flooded(port: int, at_once: int, questions: Any) -> None:
    """Searches of others, so many at once, for ever: by words alone, so that they leave the embedder to the turns."""

    async def searcher(http: aiohttp.ClientSession, number: int) -> None:
        asked = number
        while True:
            body = {"question": questions[asked % len(questions)], "top_k": 10, "search_policy": "strict"}
            async with http.post("/knowledge-flow/v1/vector/search", json=body) as response:
                await response.read()
            asked += at_once

    if not at_once:
        return
    connector = aiohttp.TCPConnector(limit=0)
    session = aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector)
    async with session as http, asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(searcher(http, number))


async def asked(port: int, path: str) -> Any:
    """One GET with a token; its decoded body."""
    headers = {"Authorization": "Bearer local"}
    session = aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers)
    async with session as http, http.get(BASE + path, raise_for_status=True) as response:
        return await response.json()


def told(case: Case, verdict: dict[str, Any], crowd: Crowd) -> bool:
    """Print one line a case, and whether the answer is one that was expected."""
    right = verdict["bound_by"] in case.expected and verdict["culprit"].startswith(case.culprit)
    largest = sorted(verdict["causes"].items(), key=lambda item: -item[1])[:4]
    spent = "  ".join(f"{cause} {ms:.0f}" for cause, ms in largest if ms >= 0.5)
    print(
        f"{case.name:36} {'|'.join(case.expected):12} {verdict['bound_by']:12} {verdict['share']:5.2f} "
        f"{verdict['next']:12} {verdict['next_share']:5.2f} {verdict['turns']:6} {verdict['loop']:5.2f}  "
        f"{'ok' if right else 'WRONG':5}  ms a turn: {spent}"
        + (f"  held by {verdict['culprit']}" if case.culprit else "")
        + (
            f"  (clients: {len(crowd.latencies_s)} answers, {crowd.refused} refused, {dict(crowd.failures)})"
            if not right
            else ""
        ),
        flush=True,
    )
    return right


def main() -> int:
    """Run the cases; 1 where a verdict is wrong."""
    parser = argparse.ArgumentParser(description="Who bounds the service, by its own word.")
    parser.add_argument("--short", action="store_true", help="seven cases, shorter windows")
    parser.add_argument("--seconds", type=float, help="length of a case (default 14, short 9)")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    seconds = options.seconds or (9.0 if options.short else 14.0)
    cases = [case for case in CASES if options.only in case.name and (case.short or not options.short)]
    wrong = left_out = 0
    print(
        f"{seconds:g} s a case\n{'made slow':36} {'expected':12} {'bound_by':12} share {'next':12} share  turns  loop"
    )
    with ExitStack() as stack:
        stage = Stage(stack)
        for case in cases:
            try:
                wrong += not told(case, *run_case(stage, case, seconds))
            except CannotStarve as reason:
                left_out += 1
                print(f"{case.name:36} {'|'.join(case.expected):12} not run: {reason}", flush=True)
    print(f"{len(cases) - wrong - left_out} of {len(cases)} verdicts are right, {left_out} not run")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
