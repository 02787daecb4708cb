"""Everything a scenario breaks: Postgres, the mock model, fault proxies before both, and services as processes."""

import asyncio
import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

import aiohttp
import psutil
import psycopg
import yaml
from psycopg import sql

from tests.chaos.control import ProxyProcess
from tests.chaos.ledger import Ledger, Message, Report, compare, message_of
from tests.chaos.load import BASE, Address, Crowd, Habits, create_session, crowd
from tests.chaos.until import until, until_it
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import TRACEBACK, ModuleProcess
from tests.support.rest import rest_client
from turnwise.postgres import USER, EmbeddedPostgres

P = ParamSpec("P")
T = TypeVar("T")
QUICK = "mock;ttft=150;gap=25;tokens=8"
"""A turn of about 0.35 s whose answer streams for half of it."""
_CLEAN = dict.fromkeys(("ENV_FILE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "FRED_POSTGRES_PASSWORD"), "")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything. `slack` widens the bounds of durations, never those of losses."""

    short: bool
    slack: float
    sessions: int
    rate: float

    def pick(self, short: int, full: int) -> int:
        """One of two numbers."""
        return short if self.short else full


SHORT = Size(short=True, slack=5.0, sessions=60, rate=60.0)
FULL = Size(short=False, slack=1.0, sessions=150, rate=60.0)


class Deployment:
    """A context manager. Processes are made by one thread that lives as long as it: they die with their maker."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.program: type[ModuleProcess] = ModuleProcess
        """What services are started as."""
        self.apart = False
        """Whether the instances of fleets are to be as if on machines of their own (`tests.chaos.paths`)."""
        self._stack = ExitStack()
        self._hands = ThreadPoolExecutor(1, "hands")

    def __enter__(self) -> "Deployment":
        with ExitStack() as stack:
            stack.callback(self._hands.shutdown)
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-chaos-")))
            place = public_directory("turnwise-chaos-pg-")
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            self.postgres = EmbeddedPostgres(place, free_port(), durable=True)
            self._now(self.postgres.start)
            stack.callback(lambda: self._now(self.postgres.stop))
            model_port = free_port()
            model = ModuleProcess("ws_bench", "mock-llm", "--host", "127.0.0.1", "--port", str(model_port))
            self.model_url = f"http://127.0.0.1:{model_port}"
            self._enter(stack, model)
            model.wait_for_http(f"{self.model_url}/healthz")
            self.to_postgres = self._proxy(stack, self.postgres.port)
            self.to_model = self._proxy(stack, model_port)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: TracebackType | BaseException | type[BaseException] | None) -> None:
        self._stack.close()

    def _now(self, work: Callable[[], T]) -> T:
        return self._hands.submit(work).result()

    def _enter(self, stack: ExitStack, process: "ModuleProcess | ProxyProcess") -> None:
        self._now(process.__enter__)
        stack.callback(lambda: process.__exit__(None, None, None))

    def _proxy(self, stack: ExitStack, target: int) -> ProxyProcess:
        proxy = ProxyProcess(target, seed=self.seed)
        self._enter(stack, proxy)
        proxy.start()
        return proxy

    def draw(self, name: str) -> random.Random:
        """A source of chance for one scenario, the same for the same seed."""
        return random.Random(f"{self.seed}:{name}")  # noqa: S311 - moments of faults

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work that starts or ends processes, in the thread that makes them."""
        return await asyncio.get_running_loop().run_in_executor(self._hands, lambda: work(*args, **kwargs))

    async def normal(self) -> None:
        """Undo every fault of the network, and see that Postgres runs."""
        await self.to_postgres.tell("normal")
        await self.to_model.tell("normal")
        if self.postgres.pid is None:
            await self.start_postgres()

    async def stop_postgres(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT is `-m fast`, SIGQUIT is `-m immediate`, a crash."""
        pid = self.postgres.pid
        if pid is not None:
            os.kill(pid, how)
            await asyncio.to_thread(_await_end, self.postgres)
        await self.do(self.postgres.stop)

    async def start_postgres(self) -> None:
        """Start it again on its data."""
        await self.do(self.postgres.start)

    async def model_stats(self) -> dict[str, Any]:
        """What the mock model counts."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.model_url}/stats") as response:
            stats: dict[str, Any] = await response.json()
            return stats

    async def database(self) -> "Database":
        """A new, empty database."""
        name = f"chaos_{secrets.token_hex(4)}"
        await asyncio.to_thread(self._execute, "CREATE DATABASE {}", name)
        return Database(name, self.postgres)

    async def drop(self, database: "Database") -> None:
        """Drop it, whoever is connected."""
        await asyncio.to_thread(self._execute, "DROP DATABASE {} WITH (FORCE)", database.name)

    def _execute(self, statement: str, name: str) -> None:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


def _await_end(server: EmbeddedPostgres) -> None:
    with contextlib.suppress(psutil.Error):
        pid = server.pid
        if pid is not None:
            psutil.Process(pid).wait(20)


class Server(Protocol):
    """A Postgres of which a scenario has a database."""

    def dsn_of(self, database: str) -> str:
        """The libpq URI of one of its databases."""


@dataclass(frozen=True, slots=True)
class Database:
    """One scenario's database, as the harness itself reaches it: past the proxy."""

    name: str
    server: Server

    @property
    def dsn(self) -> str:
        """As psycopg wants it."""
        return self.server.dsn_of(self.name)

    def stored(self) -> tuple[dict[str, list[Message]], dict[str, int]]:
        """The messages by session, ascending rank, and each session's next_rank. Blocks."""
        query = """SELECT session_id, rank, exchange_id, role, channel, parts_json, metadata_json
            FROM session_history ORDER BY session_id, rank"""
        rows: dict[str, list[Message]] = {}
        with psycopg.connect(self.dsn) as connection:
            for session_id, rank, exchange_id, role, channel, parts, metadata in connection.execute(query):
                names = {"rank": rank, "exchange_id": exchange_id, "role": role, "channel": channel}
                message = message_of({**names, "parts": parts, "metadata": metadata})
                rows.setdefault(session_id, []).append(message)
            found = connection.execute("SELECT session_id, session_data->>'next_rank' FROM session")
            return rows, {session_id: int(next_rank) for session_id, next_rank in found}


class Service:
    """One agentic service over all its starts: the same ports, database and spool directory."""

    def __init__(
        self,
        deployment: Deployment,
        database: Database,
        *,
        model: str = QUICK,
        direct: bool = False,
        env: Mapping[str, str] | None = None,
        token: str = "local",
        module: str = "agentic_backend",
        tree: Path | None = None,
        **sections: Any,
    ) -> None:
        self.deployment = deployment
        self._module = module
        self.tree = tree
        """The sources that the next start runs; None: these."""
        self.database = database
        self.address = Address(free_port(), token)
        self.metrics_port = free_port()
        self.spool = deployment.directory / f"spool-{secrets.token_hex(4)}"
        self.outputs: list[str] = []
        self.settings = merge(self._settings(model, direct=direct), sections)
        self.ack: str = self.settings["persistence"]["ack"]
        self.file = deployment.directory / f"{self.address.port}.yaml"
        self.change()
        self._env = {"CONFIG_FILE": str(self.file), **_CLEAN, **(env or {})}
        self._process: ModuleProcess | None = None

    def _settings(self, model: str, *, direct: bool) -> dict[str, Any]:
        deployment = self.deployment
        port = deployment.postgres.port if direct else deployment.to_postgres.port
        model_url = deployment.model_url if direct else f"http://127.0.0.1:{deployment.to_model.port}"
        return {
            "app": {
                "port": self.address.port,
                "metrics_port": self.metrics_port,
                "metrics_enabled": True,
                "kpi_log_summary_interval_sec": 0,
            },
            "security": {"user": {"enabled": False}, "allow_query_token": True},
            "ai": {
                "default_chat_model": {"name": model, "settings": {"base_url": f"{model_url}/v1"}},
                "agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}],
            },
            "storage": {
                "postgres": {"host": "127.0.0.1", "port": port, "database": self.database.name, "username": USER}
            },
            "persistence": {"ack": "spool", "spool_dir": str(self.spool)},
            "deadlines": {"drain_s": 5},
        }

    def change(self, **sections: Any) -> None:
        """Have its next start find these in its configuration."""
        self.settings = merge(self.settings, sections)
        self.file.write_text(yaml.safe_dump(self.settings))

    @property
    def process(self) -> ModuleProcess:
        """The one of the last start."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def log(self) -> str:
        """What all its processes have written."""
        return "".join([*self.outputs, self._process.output if self._process else ""])

    @property
    def tracebacks(self) -> int:
        """How many were logged."""
        return self.log.count(TRACEBACK)

    async def start(self, path: str | None = "/ready") -> None:
        """Start a process on the same state and wait until `path` answers 200."""
        if self._process is not None:
            self.outputs.append(self._process.output)
        if self.tree is None:
            process = self.deployment.program(self._module, env=self._env, traceback_allowed=True)
        else:  # forks have these sources
            process = ModuleProcess(self._module, env=self._env, cwd=self.tree, traceback_allowed=True)
        self._process = process
        await self.deployment.do(process.__enter__)
        if path is not None:
            await self.answers(path)

    async def answers(self, path: str) -> None:
        """Wait until `path` answers 200. Raises RuntimeError where the process ends, TimeoutError where it is late."""

        async def answers() -> bool:
            if not self.running:
                code = self.process.returncode
                raise RuntimeError(f"the service ended with {code}: {self.process.output[-2000:]}")
            return (await self.ask_status(path))[0] == 200

        await until_it(answers)

    async def ask_status(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of a GET without credentials; 0 where nobody answers."""
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(self.address.url + path) as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, TimeoutError):
            return 0, {}

    async def kill(self) -> None:
        """SIGKILL."""
        await asyncio.to_thread(self.process.kill)

    def send(self, what: signal.Signals) -> None:
        """Send a signal."""
        self.process.send(what)

    async def ended(self) -> int:
        """The exit code, once it has ended. Raises TimeoutError."""
        await until(lambda: not self.running)
        return int(self.process.returncode or 0)

    async def line(self, pattern: str) -> str:
        """What matches in the first such line of the running process's log."""
        return (await asyncio.to_thread(self.process.wait_for_line, pattern, HANGS_S))[0]

    async def close(self) -> None:
        """End it, however."""
        if self.running:
            await asyncio.to_thread(self.process.kill)
        shutil.rmtree(self.spool, ignore_errors=True)

    async def metrics_text(self) -> str:
        """What /metrics says."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            return await response.text()

    async def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name with labels."""
        text = await self.metrics_text()
        samples = re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in samples}

    async def pending(self) -> int:
        """Records that wait for Postgres, as /ready tells; -1 where it does not answer."""
        _, body = await self.ask_status("/ready")
        dependencies = body.get("dependencies", {})
        return int(dependencies["postgres"]["pending_records"]) if "postgres" in dependencies else -1

    async def drained(self) -> None:
        """Wait until nothing waits for Postgres. Raises TimeoutError."""

        async def nothing() -> bool:
            return await self.pending() == 0

        await until_it(nothing)

    async def idle(self) -> None:
        """Wait until no turn runs, those of the process before included: its spool is empty. Raises TimeoutError."""

        async def nothing() -> bool:
            return (await self.metrics())["app_spool_records"] == 0

        await until_it(nothing)

    async def tasks(self) -> int:
        """How many asyncio tasks it has; its module must be `tests.chaos.counted`."""
        before = self.log.count("tasks=")
        self.send(signal.SIGUSR1)
        await until(lambda: self.log.count("tasks=") > before)
        return int(self.log.rpartition("tasks=")[2].split()[0])

    def rss_mb(self) -> float:
        """Resident memory."""
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@dataclass(slots=True)
class Stage:
    """A running service with clients that ask, and their ledger."""

    service: Service
    crowd: Crowd
    ledger: Ledger
    http: aiohttp.ClientSession
    checked: list[Report] = field(default_factory=list)

    async def history(self, session_id: str, query: str = "") -> tuple[int, list[Message]]:
        """Status and messages of GET history."""
        url = f"{self.service.address.url}/chatbot/session/{session_id}/history{query}"
        async with self.http.get(url, headers=self.service.address.headers) as response:
            messages = await response.json() if response.status == 200 else []
            return response.status, [message_of(message) for message in messages]

    async def settle(self) -> Report:
        """Let the clients finish, wait until all is written, and compare the ledger with rows and history."""
        await self.crowd.pause()
        await self.service.drained()
        report = await self.compared(self.ledger)
        self.checked.append(report)
        return report

    async def compared(self, ledger: Ledger) -> Report:
        """A ledger with rows and history as they are."""
        rows, sessions = await asyncio.to_thread(self.service.database.stored)
        history = {}
        for session_id in ledger.sessions:
            status, messages = await self.history(session_id)
            if status == 200 or session_id in sessions:
                history[session_id] = messages
        return compare(ledger, rows, sessions, history)


@asynccontextmanager
async def stage(
    deployment: Deployment,
    name: str,
    habits: Habits,
    *,
    sessions: int,
    service: Service | None = None,
    on_frame: Callable[[str], None] | None = None,
    **sections: Any,
) -> AsyncIterator[Stage]:
    """A service on a database of its own, with clients; all of it is gone after the block, and faults are undone."""
    database = await deployment.database() if service is None else service.database
    running = service or Service(deployment, database, **sections)
    ledger = Ledger()
    draw = deployment.draw(name)
    try:
        if not running.running:
            await running.start()
        async with rest_client() as http:
            ids = [await create_session(http, running.address) for _ in range(sessions)]
            async with crowd(running.address, ledger, habits, draw, ids, on_frame) as clients:
                yield Stage(running, clients, ledger, http)
    finally:
        await deployment.normal()
        if service is None:
            await running.close()
            await deployment.drop(database)


def merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, key by key; a value None takes the key away."""
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


__all__ = ["BASE", "FULL", "QUICK", "SHORT", "Database", "Deployment", "Service", "Size", "Stage", "merge", "stage"]
