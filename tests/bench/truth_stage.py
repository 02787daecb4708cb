"""The deployment of `tests.bench.truth`: each program a process of its own, recording relays between all of them."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from backend_kit.settings import load
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.bench.bench import CONFIG
from tests.bench.deployment import BASE, Deployment, cpu_s
from tests.bench.rico import NO_OVERRIDES, ROOT, written
from tests.bench.seed_chunks import question, seed
from tests.support.odd_agent import odd
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

KNOWLEDGE = "/knowledge-flow/v1"
ANSWERS = "mock;ttft=1500;gap=20;tokens=21;pause=10:500"
TOOLED = "mock;ttft=600;gap=10;tokens=21;tool=current_time;pause=10:400"
TITLES = "mock;ttft=500;tokens=4"
DELAYS_MS = {
    "knowledge": 50.0, "tools": 200.0, "embed": 100.0, "rerank": 150.0, "agentic_sql": 100.0, "knowledge_sql": 100.0
}  # fmt: skip
"""By how much the relays put answers off: 2 % of it is more than a loop is late on a loaded core."""
FLUSH_S = 0.1
CHUNKS = 300
PRICES = [{"model": ANSWERS, "input_per_million": 3.0, "output_per_million": 15.0}]
_CONTROL = re.compile(r"^taps (.*) control (\d+)$")


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
        await self.tell(*(f"delay {name} {ms}" for name, ms in DELAYS_MS.items()))

    def records(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        """All that was recorded, by tap."""
        asyncio.run(self.tell(f"dump {path}"))
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.ports}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found[record["tap"]].append(record)
        return found


@dataclass(slots=True)
class Watched:
    """One service: its process, when that was started, where it listens, and its CPU when it was ready."""

    process: ModuleProcess
    started_at: float
    port: int
    metrics_port: int
    ready_at: float
    ready_cpu_s: float
    ready_loop_s: float

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
        self.questions: list[str] = []
        self.spool = self.work / "spool"
        self.strace = self.work / "flushes.strace"

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
        environment = {**NO_OVERRIDES, "TURNWISE_HOME": str(self.work), "CONFIG_FILE": str(file)}
        started_at = time.perf_counter()
        process = self.deployment.start_beside("knowledge_flow_backend", ready=ready, environment=environment)
        return _ready(process, started_at, self.knowledge_port, metrics_port)

    def agentic(
        self, interval_s: float, *, under: Sequence[str] = (), model: str = ANSWERS, most_turns: int = 2000
    ) -> Watched:
        """The agentic service, with all that it asks behind relays."""
        port, metrics_port = free_port(), free_port()
        config = self._agentic_config(model)
        config["limits"] |= {"max_turns": most_turns, "queue_deadline_s": 30}
        config["app"] |= {"port": port, "metrics_port": metrics_port, **_summary(interval_s)}
        file = written(self.work / "agentic.yaml", config)
        environment = {**NO_OVERRIDES, "TURNWISE_HOME": str(self.work), "CONFIG_FILE": str(file)}
        ready = f"http://127.0.0.1:{port}{BASE}/ready"
        started_at = time.perf_counter()
        process = self.deployment.start("agentic_backend", ready=ready, environment=environment, under=under)
        return _ready(process, started_at, port, metrics_port)

    def slow_flushes(self) -> list[str]:
        """The command under which each flush takes longer and is written down, by the kernel's word."""
        inject = f"inject=fdatasync,fsync:delay_exit={FLUSH_S * 1e6:.0f}"
        options = ["-D", "-f", "-qq", "-y", "-T", "-ttt", "-o", str(self.strace), "--seccomp-bpf"]
        return ["/usr/bin/strace", *options, "-e", "trace=fdatasync,fsync", "-e", inject]

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
        config["deadlines"] = {"rerank_s": 3.0}
        config["limits"] = {"max_question_chars": 600}
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
        config["mcp"] = {"servers": [tools]}
        storage = self.deployment.storage("agentic") | {"port": self.taps.ports["agentic_sql"]}
        config["storage"]["postgres"] |= storage | {"pool_pre_ping": True}
        config["persistence"] = {"ack": "spool", "spool_dir": str(self.spool)}
        return config


def _further_agents() -> Iterator[dict[str, Any]]:
    yield {"id": "Carla", "name": "Carla", "class_path": "agentic_backend.agent.plain"}
    rag = "agentic_backend.agent.rag"
    yield {"id": "Rita", "name": "Rita", "class_path": rag, "tuning": {"fields": []}}
    tuning = {"mcp_servers": [{"id": "samples"}]}
    yield {"id": "Sammy", "name": "Sammy", "class_path": "agentic_backend.agent.tools", "model": "tooled",
           "tuning": tuning}  # fmt: skip
    yield odd("block")


def thread_cpu_s(pid: int) -> float:
    """Seconds that the first thread of a process, its loop's, has had of a core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _summary(interval_s: float) -> dict[str, Any]:
    return {"kpi_log_summary_interval_sec": interval_s, "kpi_log_summary_top_n": 0}


def _ready(process: ModuleProcess, started_at: float, port: int, metrics_port: int) -> Watched:
    return Watched(
        process, started_at, port, metrics_port, time.perf_counter(), cpu_s(process.pid), thread_cpu_s(process.pid)
    )
