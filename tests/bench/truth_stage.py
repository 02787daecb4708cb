"""The deployment of `tests.bench.truth`: each program a process of its own, recording relays between all of them."""

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from backend_kit.settings import load
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.bench.bench import CONFIG
from tests.bench.deployment import BASE, Deployment, cpu_s
from tests.bench.rico import NO_OVERRIDES, ROOT, written
from tests.bench.seed_chunks import question, seed
from tests.bench.truth_table import line_at
from tests.support.issuer import CLIENT, DISCOVERY, Issuer
from tests.support.odd_agent import odd
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

KNOWLEDGE = "/knowledge-flow/v1"
ANSWERS = "mock;ttft=6000;gap=20;tokens=21;pause=10:500"
TOOLED = "mock;ttft=2500;gap=10;tokens=21;tool=current_time;pause=10:400;floor=3150"
"""Its call of the tool and its answer take as long: the median of two groups of the same size says nothing."""
TITLES = "mock;ttft=3000;tokens=4"
DELAYS_MS = {
    "tools": 2500.0, "embed": 1500.0, "rerank": 500.0, "agentic_sql": 800.0, "knowledge_sql": 300.0
}  # fmt: skip
"""By how much the relays put answers off: 2 % of it is more than a loop is late on a loaded core."""
REFUSED_MS = 4000.0
"""By how much longer those of refused searches, which take nothing else."""
FLUSH_S = 0.9
BLOCKED_S = 5.0
_NOTICES_COLLECTIONS = """
import gc, sys, time

began = 0.0

def notice(phase, info):
    global began
    now = time.perf_counter()
    if phase == "start":
        began = now
    else:
        print(f"collected in {now - began:.6f} s", file=sys.stderr)

gc.callbacks.append(notice)
"""
"""A sitecustomize.py that writes down each collection. The interpreter's own account (`gc.DEBUG_STATS`) leaves out what
it takes itself to count the objects: 70 ms each."""
CHUNKS = 300
PRICES = [{"model": ANSWERS, "input_per_million": 3.0, "output_per_million": 15.0}]
_CONTROL = re.compile(r"^taps (.*) control (\d+)$")


class IssuingThread:
    """An issuer of tokens for one user; its thread publishes the key."""

    def __init__(self, stack: ExitStack) -> None:
        self._issuer = issuer = Issuer()

        class Published(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                discovery = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/certs"}
                body = json.dumps(discovery if self.path == DISCOVERY else {"keys": issuer.keys}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Published)
        issuer.url = f"http://127.0.0.1:{server.server_port}/realms/test"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        self.url = issuer.url
        self.issued = 0

    def token(self) -> str:
        """A token that nobody has shown yet, good for an hour."""
        self.issued += 1
        return self._issuer.token(jti=str(self.issued), exp=int(time.time()) + 3600)


class Taps:
    """The relays, in one process of their own."""

    def __init__(self, stack: ExitStack, specs: dict[str, tuple[str, int]]) -> None:
        options = [part for name, (kind, port) in specs.items() for part in ("--tap", f"{name}:{kind}:{port}")]
        process = stack.enter_context(ModuleProcess("tests.bench.wiretap", *options))
        said = process.wait_for_line(_CONTROL.pattern)
        words = said.group(1).split()
        self.ports = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        self._control = int(said.group(2))

    async def tell(self, *commands: str) -> None:
        """Give commands, in order; each is in force when this returns."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._control)
        for command in commands:
            writer.write(f"{command}\n".encode())
            async with asyncio.timeout(HANGS_S):
                await reader.readline()
        writer.close()

    async def slow_down(self) -> None:
        """Put answers off from now on."""
        delays = [f"delay {name} {ms}" for name, ms in DELAYS_MS.items()]
        await self.tell(*delays, f"delay-refused knowledge {REFUSED_MS}")

    def records(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        """All that was recorded, by tap."""
        asyncio.run(self.tell(f"dump {path}"))
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.ports}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found[record["tap"]].append(record)
        return found


class Used(NamedTuple):
    """What a process, and its loop's thread, had had of a core at a time."""

    at: float
    cpu_s: float
    loop_s: float

    @classmethod
    def now(cls, pid: int) -> "Used":
        """Up to now."""
        return cls(time.perf_counter(), cpu_s(pid), thread_cpu_s(pid))

    @classmethod
    @contextmanager
    def watched(cls, pid: int) -> Iterator[list["Used"]]:
        """Fifty a second in the block, the last five seconds of them."""
        used, done = [cls.now(pid)], threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                used.append(cls.now(pid))
                del used[:-250]

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield used
        finally:
            done.set()
            watching.join()


@dataclass(slots=True)
class Watched:
    """One service: its process, where it listens, and what it had used when its first window began, at its start's line
    in the log."""

    process: ModuleProcess
    port: int
    metrics_port: int
    began: Used

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid


class Stage:
    """Postgres, the mock model, Sammy's tools, the relays; services are started beside them."""

    def __init__(self, stack: ExitStack, deployment: Deployment) -> None:
        self.deployment = deployment
        self.work = deployment.work
        tools_port = free_port()
        arguments = ("--port", str(tools_port), "--notes", str(self.work / "notes.json"))
        stack.enter_context(ModuleProcess("turnwise.sample_tools", *arguments))
        self.knowledge_port = free_port()
        model_port = int(deployment.model_url.rsplit(":", 1)[1].split("/")[0])
        postgres = deployment.postgres.port
        self.taps = Taps(
            stack,
            {
                "model": ("http", model_port),
                "knowledge": ("http", self.knowledge_port),
                "tools": ("http", tools_port),
                "embed": ("http", model_port),
                "rerank": ("http", model_port),
                "agentic_sql": ("postgres", postgres),
                "knowledge_sql": ("postgres", postgres),
            },
        )
        deployment.database("agentic")
        deployment.database("knowledge")
        self._stack = stack
        self.questions: list[str] = []
        self.spool = self.work / "spool"
        self.issuer = IssuingThread(stack)
        self._noticing = self.work / "noticing"
        self._noticing.mkdir()
        (self._noticing / "sitecustomize.py").write_text(_NOTICES_COLLECTIONS)

    def fill(self) -> None:
        """Seed the index, and make the questions that it answers."""
        file = written(self.work / "seed.yaml", self._knowledge_config())
        seed(load(KnowledgeFlowSettings, file, os.environ), CHUNKS)
        self.questions = [question(number, CHUNKS) for number in range(CHUNKS)]

    def knowledge(self, interval_s: float) -> Watched:
        """Knowledge flow over the seeded chunks, with the mock's embedder and reranker."""
        config = self._knowledge_config()
        metrics_port = free_port()
        config["app"] |= {"port": self.knowledge_port, "metrics_port": metrics_port, **_summary(interval_s)}
        config["storage"]["postgres"] |= {"port": self.taps.ports["knowledge_sql"], "pool_pre_ping": True}
        file = written(self.work / "knowledge.yaml", config)
        ready = f"http://127.0.0.1:{self.knowledge_port}{KNOWLEDGE}/ready"
        environment = self._environment(file)
        return self._started("knowledge_flow_backend", ready, environment, (), self.knowledge_port, metrics_port)

    def agentic(
        self, interval_s: float, *, under: Sequence[str] = (), model: str = ANSWERS, most_turns: int = 2000
    ) -> Watched:
        """The agentic service, with all that it asks behind relays."""
        port, metrics_port = free_port(), free_port()
        config = self._agentic_config(model)
        config["limits"] |= {"max_turns": most_turns, "model_share": 1, "queue_deadline_s": 30}
        config["app"] |= {"port": port, "metrics_port": metrics_port, **_summary(interval_s)}
        file = written(self.work / "agentic.yaml", config)
        environment = self._environment(file)
        ready = f"http://127.0.0.1:{port}{BASE}/ready"
        # The service alone, and not strace, is on its core.
        core = ["/usr/bin/taskset", "--cpu-list", ",".join(map(str, sorted(self.deployment.service_cores)))]
        return self._started("agentic_backend", ready, environment, [*under, *core], port, metrics_port)

    def slow_flushes(self) -> list[str]:
        """The command under which each flush takes longer and is written down, by the kernel's word, a file a thread:
        in one for all a call that another interrupts stands in two lines."""
        inject = f"inject=fdatasync,fsync:delay_exit={FLUSH_S * 1e6:.0f}"
        options = ["-D", "-ff", "-qq", "-y", "-T", "-ttt", "-s", "0", "-o", str(self.work / "flushes"), "--seccomp-bpf"]
        return ["/usr/bin/strace", *options, "-e", "trace=fdatasync,fsync,pwrite64", "-e", inject]

    def flushes(self) -> dict[int, str]:
        """What strace wrote, by thread."""
        return {int(file.suffix[1:]): file.read_text() for file in self.work.glob("flushes.*")}

    def _started(
        self, module: str, ready: str, environment: dict[str, str], under: Sequence[str], port: int, metrics_port: int
    ) -> Watched:
        process = self._stack.enter_context(ModuleProcess(module, env=environment, under=under))
        with Used.watched(process.pid) as used:
            process.wait_for_http(ready, HANGS_S)
            process.wait_for_line(r"\[KPI\]\[START\]", HANGS_S)
        began_at = line_at(process.output, "[KPI][START]", time.time() - time.perf_counter())
        began = min(used, key=lambda one: abs(one.at - (began_at or 0.0)))
        return Watched(process, port, metrics_port, began)

    def _environment(self, file: Path) -> dict[str, str]:
        home = {"TURNWISE_HOME": str(self.work), "CONFIG_FILE": str(file)}
        return {**NO_OVERRIDES, **home, "PYTHONPATH": str(self._noticing)}

    @property
    def rerank_url(self) -> str:
        """Knowledge flow's own route, through its relay."""
        return self._through("knowledge", f"{KNOWLEDGE}/vector/rerank")

    def _through(self, tap: str, path: str) -> str:
        return f"http://127.0.0.1:{self.taps.ports[tap]}{path}"

    def _knowledge_config(self) -> dict[str, Any]:
        file = ROOT / "config/knowledge_flow/configuration_bench.yaml"
        config: dict[str, Any] = yaml.safe_load(file.read_text())
        # One request at a time, so that questions wait for one another.
        config["embedding_model"]["settings"] |= {"base_url": self._through("embed", "/v1"), "requests_at_once": 1}
        config["crossencoder_model"] = {
            "provider": "http",
            "name": "mock",
            "settings": {"base_url": self._through("rerank", "/v1")},
        }
        config["deadlines"] = {"search_s": 4.9, "rerank_s": 3.0}
        config["limits"] = {"max_question_chars": 600}
        # A relay hands an answer on late, so a connection has been idle here for longer than its client knows.
        config["connections"] = {"idle_s": 15}
        config["storage"]["postgres"] |= self.deployment.storage("knowledge")
        return config

    def _agentic_config(self, model: str) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
        ai = config["ai"]
        ai["knowledge_flow_url"] = self._through("knowledge", KNOWLEDGE)
        ai["attachments_dir"] = str(self.work)
        ai["prices"] = PRICES
        settings = ai["default_chat_model"]["settings"] | {"base_url": self._through("model", "/v1")}
        ai["default_chat_model"] |= {"name": model, "settings": settings}
        ai["chat_models"] = [{"id": "tooled", "name": TOOLED, "settings": settings}]
        ai["default_language_model"] = {"name": TITLES, "settings": settings}
        ai["agents"] = [*ai["agents"], *_further_agents()]
        for agent in ai["agents"]:
            if agent["class_path"].endswith(".rag"):
                agent["tuning"]["fields"].append({"key": "rag.follow_up", "default": "off"})
        tools = {"id": "samples", "name": "Samples", "url": self._through("tools", "/mcp")}
        config["mcp"] = {"servers": [tools], "discover_s": 60}
        storage = self.deployment.storage("agentic") | {"port": self.taps.ports["agentic_sql"]}
        config["storage"]["postgres"] |= storage | {"pool_pre_ping": True, "pool_size": 60, "pool_timeout": 10}
        config["security"]["user"] = {"enabled": True, "client_id": CLIENT, "realm_url": self.issuer.url}
        config["persistence"] = {"ack": "spool", "spool_dir": str(self.spool)}
        return config


def _further_agents() -> Iterator[dict[str, Any]]:
    yield {"id": "Carla", "name": "Carla", "class_path": "agentic_backend.agent.plain"}
    rag = "agentic_backend.agent.rag"
    yield {"id": "Rita", "name": "Rita", "class_path": rag, "tuning": {"fields": []}}
    tuning = {"mcp_servers": [{"id": "samples"}]}
    yield {"id": "Sammy", "name": "Sammy", "class_path": "agentic_backend.agent.tools", "model": "tooled",
           "tuning": tuning}  # fmt: skip
    yield odd("block", block_s=BLOCKED_S)
    yield odd("talk")


def thread_cpu_s(pid: int) -> float:
    """Seconds that the first thread of a process, its loop's, has had of a core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _summary(interval_s: float) -> dict[str, Any]:
    return {
        "kpi_log_summary_interval_sec": interval_s,
        "kpi_log_summary_top_n": 0,
        "kpi_process_metrics_interval_sec": interval_s,
    }
