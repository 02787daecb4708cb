"""The deployment of the comparing benches: who runs on which core, what a process has used, and the servers themselves.

The service under test has the first core to itself; model, Postgres and the load share the others. Everything listens
on free loopback ports and is stopped by the process in hand.
"""

import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import yaml
from psycopg import sql

from tests.bench.bench import CONFIG, cores, pinned_to
from tests.bench.comparators.options import READY_PATH, SOCKET_PATH, TABLES
from tests.bench.driver import Target
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from turnwise.postgres import USER, EmbeddedPostgres

BASE = "/agentic/v1"
COMPARATORS = Path(__file__).parent / "comparators"
_NO_OVERRIDES = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "OPENAI_MODEL": "", "FRED_POSTGRES_PASSWORD": ""}
_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_OF_ALL_THREADS = 2

Change = Callable[[dict[str, Any]], None]
"""Alters a configuration before it is written."""


@dataclass(frozen=True, slots=True)
class Server:
    """A service under test: how to reach it, its process, and the database it stores in."""

    target: Target
    process: ModuleProcess
    dsn: str

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.target.name

    @property
    def pids(self) -> list[int]:
        """The process and its children, which are the workers of several."""
        return [self.process.pid, *(child.pid for child in psutil.Process(self.process.pid).children())]

    @property
    def whole(self) -> "Server":
        """The same service spoken to in the compatible protocol, where an answer is one frame."""
        return replace(self, target=replace(self.target, native=False))

    def answering(self, answer: str) -> "Server":
        """The same service, each of whose turns must say this."""
        return replace(self, target=replace(self.target, answer=answer))


class Deployment:
    """Postgres, the mock model, and servers beside them. Closed with the `ExitStack` it is given."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.service_cores, self.other_cores = cores()
        directory = public_directory("turnwise-bench-")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        self.work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-bench-")))
        with pinned_to(self.other_cores):
            self.postgres = EmbeddedPostgres(directory, free_port(), durable=True)
            self.postgres.start()
            stack.callback(self.postgres.stop)
            port = free_port()
            self.model = stack.enter_context(
                ModuleProcess("ws_bench", "mock-llm", "--port", str(port), "--embed-latency", "10ms")
            )
            self.model.wait_for_line("listening")
        self.model_url = f"http://127.0.0.1:{port}/v1"

    def database(self, name: str) -> str:
        """A new, empty database; its DSN."""
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.postgres.dsn_of(name)

    def start(
        self, module: str, *arguments: str, ready: str, environment: dict[str, str], under: Sequence[str] = ()
    ) -> ModuleProcess:
        """A server on the core of services, once it answers at `ready`; stopped with the deployment."""
        with pinned_to(self.service_cores):
            return self.start_beside(module, *arguments, ready=ready, environment=environment, under=under)

    def start_beside(
        self, module: str, *arguments: str, ready: str, environment: dict[str, str], under: Sequence[str] = ()
    ) -> ModuleProcess:
        """The same on the cores of this process: model, Postgres and load have them too."""
        process = self._stack.enter_context(ModuleProcess(module, *arguments, env=environment, under=under))
        process.wait_for_http(ready, HANGS_S)
        return process

    def comparator(self, name: str, model: str, database: str) -> Server:
        """One of tests/bench/comparators, on a new database of that name."""
        dsn = self.database(database)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLES)
        port = free_port()
        process = self.start(
            f"tests.bench.comparators.{name}",
            *("--port", str(port), "--model-url", self.model_url, "--model", model, "--dsn", dsn),
            ready=f"http://127.0.0.1:{port}{READY_PATH}",
            environment={},
        )
        return Server(Target(name, port, SOCKET_PATH), process, dsn)

    def service(
        self,
        name: str,
        model: str,
        *,
        module: str = "agentic_backend",
        arguments: Sequence[str] = (),
        change: Change | None = None,
        under: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Server:
        """The agentic service by its bench configuration, which `change` may alter, on a database of its own.

        `under` is a command that runs it, as `ModuleProcess` has it.
        """
        dsn = self.database(name)
        config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
        port = free_port()
        config["app"] |= {"port": port, "metrics_port": free_port()}
        chat_model = config["ai"]["default_chat_model"]
        chat_model["name"] = model
        chat_model["settings"]["base_url"] = self.model_url
        config["storage"]["postgres"] |= self.storage(name)
        if change is not None:
            change(config)
        path = self.work / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        environment = {**_NO_OVERRIDES, "CONFIG_FILE": str(path), "TURNWISE_HOME": str(self.work / name)}
        environment |= variables or {}
        ready = f"http://127.0.0.1:{port}{BASE}/ready"
        process = self.start(module, *arguments, ready=ready, environment=environment, under=under)
        url = f"http://127.0.0.1:{port}{BASE}/chatbot/session"
        return Server(Target(name, port, SOCKET_PATH, native=True, session_url=url), process, dsn)

    def model_late_ms(self) -> Counter[int]:
        """The mock model's answers so far, by how many ms later than their schedule the last token left."""
        url = self.model_url.removesuffix("/v1") + "/stats"
        with urllib.request.urlopen(url, timeout=HANGS_S) as answer:  # noqa: S310 - our own mock model on loopback
            told: dict[str, int] = json.load(answer)["late_ms"]
        return Counter({int(late): count for late, count in told.items()})

    def storage(self, database: str) -> dict[str, Any]:
        """Where a database is, as `storage.postgres` says it."""
        return {"host": self.postgres.host, "port": self.postgres.port, "username": USER, "database": database}


@contextmanager
def deployed() -> Iterator[Deployment]:
    """A deployment, whose bench runs beside the model; everything ends with the block."""
    with ExitStack() as stack:
        deployment = Deployment(stack)
        with pinned_to(deployment.other_cores):
            yield deployment


def cpu_s(pid: int) -> float:
    """User and system seconds of all threads of a process so far. Raises OSError once it is gone."""
    # The number of the clock as clock_getcpuclockid(3) makes it, which Python does not have.
    return time.clock_gettime((~pid << 3) | _CPU_OF_ALL_THREADS)


def rss_mb(pid: int) -> float:
    """The memory that a process has in RAM, in MiB, as the KPI summary tells it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def busy_s(of: set[int]) -> float:
    """Seconds that these cores have been busy so far, with whatever of anybody."""
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in {f"cpu{core}" for core in of}:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            busy += user + nice + system + irq + softirq + steal
    return busy / _TICKS
