"""The parts of which `tests.bench.scale` computes: each measured alone, by the CPU of its processes and by counts.

CPU is that of each process' own clock in nanoseconds, so that seconds of load suffice, and a machine that does other
things as well changes little. All parts are measured in turn, round by round; a figure is the median of its rounds.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import aiohttp
import psutil
import psycopg
import uvloop
from sqlalchemy import TextClause

from agentic_backend.doctor.database import most_connections
from agentic_backend.fleet.membership import FleetRules
from agentic_backend.fleet.statements import BEAT, INSTANCES, TAKE_OVER
from agentic_backend.persist.database import migrate
from agentic_backend.settings import AgenticSettings
from backend_kit.auth.keys import IssuerKeys
from backend_kit.settings import Postgres, load
from knowledge_flow_backend.embed.local import LocalModel, is_made, model_file
from knowledge_flow_backend.settings import default_home
from tests.bench import bus, scale_steps
from tests.bench.deployment import Deployment, cpu_s
from tests.bench.driver import Load, run
from tests.bench.matrix import both, setting, start
from tests.bench.scale_steps import FEW, MANY, OPEN_TURNS, Parts
from tests.bench.turn import SATURATED_MODEL
from tests.support.issuer import issuer
from tests.support.redis_server import redis_server
from tests.support.weights import weights

RATE: Final = 40.0
"""Turns a second, at which the worker has some two fifths of its core: CPU a turn falls with the load."""
CLIENTS: Final = 200
"""Enough for turns that take some seconds where others have the machine."""
SMALL_POOLS: Final = 4 + 2 + 2
"""`pool_size`, `max_overflow` and `ai.graph_connections` where they are small."""
QUESTION: Final = "How does the service keep what it has acknowledged when its process is killed?"
PASSAGE: Final = "A finished turn is appended to the local spool before its end is told, and written to Postgres. " * 9
"""Some 190 tokens, as passages of documents have."""

_TOLD_S: Final = 12.0
"""Postgres tells what a connection has done up to ten seconds after its last statement."""

Found = defaultdict[str, list[float]]
"""What each round has found, by the name of the part."""
Way = AbstractAsyncContextManager[bus.Send]


@dataclass(frozen=True, slots=True)
class Times:
    """How long the parts are measured, in seconds; how often, and how many statements, fetches, texts."""

    rounds: int = 5
    turns_s: float = 8.0
    warm_s: float = 2.0
    settle_s: float = _TOLD_S
    """Before anything is counted."""
    idle_s: float = 40.0
    messages_s: float = 4.0
    many: int = 400


class Turns:
    """A worker of a fleet on its core, and what its turns take of it and of Postgres."""

    def __init__(self, deployment: Deployment) -> None:
        change = both(setting("persistence.replicas", "many"), setting("persistence.ack", "db"))
        self._server = start(deployment, "scale", change, SATURATED_MODEL)
        self._settings = load(AgenticSettings, deployment.work / "scale.yaml", {})
        self._postgres = postmaster(deployment)
        self._inside = deployment.postgres.dsn_of("scale")
        self._outside = psycopg.connect(deployment.postgres.dsn, autocommit=True)
        self._idle_per_s = 0.0
        self._before = 0.0
        self._begun = 0.0
        self._ended = 0.0
        self._turns = 0

    def close(self) -> None:
        """Close the connection from outside of its database."""
        self._outside.close()

    def count_connections(self, found: Found) -> None:
        """By its settings: what it may have open, as `turnwise doctor` counts; and with small pools."""
        pool, graphs = self._settings.storage.postgres, self._settings.ai.graph_connections
        most = most_connections(self._settings)
        found["connections"].append(most)
        found["connections_few"].append(most - pool.pool_size - pool.max_overflow - graphs + SMALL_POOLS)

    def idle(self, times: Times, found: Found) -> None:
        """What it does in Postgres where nobody asks anything."""
        time.sleep(times.settle_s)
        before, begun = self._committed(), time.monotonic()
        time.sleep(times.idle_s)
        self._idle_per_s = (self._committed() - before) / (time.monotonic() - begun)
        found["idle_commits_per_s"].append(self._idle_per_s)

    def turn(self, times: Times, found: Found) -> None:
        """One round of turns. Raises RuntimeError where one fails."""
        edges: list[tuple[float, float, float]] = []
        process = self._server.process.pid

        def at_edge() -> None:
            edges.append((sum(map(cpu_s, self._server.pids)), loop_s(process), tree_s(self._postgres)))

        with psycopg.connect(self._inside, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")  # as Postgres does by itself, at a moment of its own
        self._before, self._begun = self._committed(), time.monotonic()
        asked = Load(CLIENTS, times.turns_s, times.warm_s, rate=RATE)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            counted = runner.run(run(self._server.target, asked, at_edge=at_edge))
        if counted.failures:
            raise RuntimeError(f"turns failed, as {counted.failures[0]}")
        self._ended = time.monotonic()
        self._turns = counted.turns_in_all
        for name, first, last in zip(("turn_ms", "turn_loop_ms", "turn_postgres_ms"), *edges, strict=True):
            found[name].append((last - first) * 1e3 / counted.turns)

    def commits(self, found: Found) -> None:
        """Of the last round, once Postgres has told of all: measure something else before."""
        time.sleep(max(0.0, self._ended + _TOLD_S - time.monotonic()))
        idle = self._idle_per_s * (time.monotonic() - self._begun)
        found["turn_commits"].append((self._committed() - self._before - idle) / self._turns)

    def _committed(self) -> float:
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'scale'"
        ((count,),) = self._outside.execute(query).fetchall()
        return float(count)


class Upkeep:
    """The statements by which a fleet looks after itself, on tables as so many instances and turns fill them."""

    def __init__(self, deployment: Deployment) -> None:
        dsn = deployment.database("upkeep")
        migrate(Postgres.model_validate(deployment.storage("upkeep")))
        self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()

    def measure(self, times: Times, found: Found) -> None:
        """One round: what a heartbeat, a count of the instances and a look for turns of the dead cost Postgres."""
        for workers, name in ((FEW, "few"), (MANY, "many")):
            self._fill(workers, workers * OPEN_TURNS)
            found[f"look_{name}_us"].append(self._cost_us(TAKE_OVER, times.many // workers))
        found["beat_us"].append(self._cost_us(BEAT, times.many))
        for workers, name in ((FEW, "few"), (scale_steps.INSTANCES, "many")):
            self._fill(workers, 0)
            found[f"count_{name}_us"].append(self._cost_us(INSTANCES, times.many))

    def _fill(self, instances: int, turns: int) -> None:
        for statement in _FILL.split(";"):
            self._connection.execute(statement, {"instances": instances, "turns": turns})

    def _cost_us(self, statement: str | TextClause, times: int) -> float:
        """CPU of the connection's server process for one, the first few apart."""
        query = statement if isinstance(statement, str) else _for_psycopg(statement)
        pid = self._connection.info.backend_pid
        for _ in range(3):
            self._connection.execute(query, _VALUES)
        before = cpu_s(pid)
        for _ in range(times):
            self._connection.execute(query, _VALUES)
        return (cpu_s(pid) - before) * 1e6 / times


_RULES: Final = FleetRules()
_VALUES: Final[dict[str, Any]] = {
    "id": "i0",
    "me": "i0",
    "url": "http://i0:8000",
    "token": "x" * 32,
    "keeps_spool": False,
    "draining": False,
    "gap_s": _RULES.gap_s,
    "dead_s": _RULES.dead_s,
    "most": _RULES.taken_at_once,
}
_FILL: Final = """
TRUNCATE instance, session CASCADE;
INSERT INTO instance (id, token, heartbeat_at, steady_since)
    SELECT 'i' || n, repeat('x', 32), clock_timestamp() + interval '1 hour', clock_timestamp() - interval '1 hour'
    FROM generate_series(0, %(instances)s::int - 1) AS n;
INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)
    SELECT 's' || n, 'u' || n, 'Georges', '{}', clock_timestamp() FROM generate_series(1, %(turns)s::int) AS n;
INSERT INTO session_lease (session_id, holder, fence, exchange_id, ask)
    SELECT 's' || n, 'i' || n %% %(instances)s::int, 1, gen_random_uuid()::text, repeat('question ', 70)
    FROM generate_series(1, %(turns)s::int) AS n;
VACUUM (ANALYZE) instance;
VACUUM (ANALYZE) session_lease
"""


def _for_psycopg(statement: TextClause) -> str:
    """The statement with the placeholders of the driver."""
    return re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", statement.text)


class Messages:
    """What a message between instances costs the server that carries it, few or many of them hear it."""

    def __init__(self, deployment: Deployment, redis: psutil.Process, redis_port: int) -> None:
        dsn = deployment.postgres.dsn
        self._ways = {
            "notify": (postmaster(deployment), partial(bus.by_postgres, dsn)),
            "redis": (redis, partial(bus.by_redis, redis_port)),
        }

    def measure(self, times: Times, found: Found) -> None:
        """One round of both ways."""
        for name, (server, way) in self._ways.items():
            for hearers, which in ((FEW, "few"), (MANY, "many")):
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    cost = runner.run(self._cost_us(server, way(hearers, bus.Ears()), times.messages_s))
                found[f"{name}_{which}_us"].append(cost)

    async def _cost_us(self, server: psutil.Process, way: Way, seconds: float) -> float:
        async with way as send:
            await bus.send_for(0.3, send)
            before = tree_s(server)
            sent = await bus.send_for(seconds, send)
            await asyncio.sleep(0.1)
            return (tree_s(server) - before) * 1e6 / sent


class Texts:
    """The embedding model, alone in this process."""

    def __init__(self, home: Path) -> None:
        file = model_file(home)
        if not is_made(file):
            build = [sys.executable, "-m", "knowledge_flow_backend.embed.build", str(file), str(weights())]
            subprocess.run(build, check=True)
        self._model = LocalModel(file)

    def measure(self, times: Times, found: Found) -> None:
        """One round of questions and of passages."""
        for name, text, count in (("question", QUESTION, times.many // 2), ("passage", PASSAGE, times.many // 16)):
            self._model.encode([text])
            before = time.process_time()
            for number in range(count):
                self._model.encode([f"{text} {number}"])
            found[f"{name}_ms"].append((time.process_time() - before) * 1e3 / count)


async def fetch_keys(times: Times, found: Found) -> None:
    """One round of fetches of an issuer's keys, its own part included: both are this process."""
    async with issuer() as published, aiohttp.ClientSession(auto_decompress=False) as http:
        keys = IssuerKeys(published.url)
        await keys.fetch(http)
        before = time.process_time()
        for _ in range(3 * times.many):
            await keys.fetch(http)
        found["jwks_ms"].append((time.process_time() - before) * 1e3 / (3 * times.many))


class Bench:
    """All parts, each ready to be measured."""

    def __init__(self, turns: Turns, upkeep: Upkeep, messages: Messages, texts: Texts) -> None:
        self._turns = turns
        self._upkeep = upkeep
        self._messages = messages
        self._texts = texts

    def measure(self, times: Times) -> tuple[Parts, Found]:
        """All rounds: the medians, and what each round has found."""
        found: Found = defaultdict(list)
        self._turns.count_connections(found)
        self._turns.idle(times, found)
        for _ in range(times.rounds):
            self._turns.turn(times, found)
            self._upkeep.measure(times, found)
            self._messages.measure(times, found)
            self._texts.measure(times, found)
            asyncio.run(fetch_keys(times, found))
            self._turns.commits(found)
        return Parts(**{name: median(found[name]) for name in Parts.__slots__}), found


@contextmanager
def standing(deployment: Deployment) -> Iterator[Bench]:
    """Everything that is measured, until the end of the block."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        assert redis.process is not None
        messages = Messages(deployment, psutil.Process(redis.process.pid), redis.port)
        turns, upkeep = Turns(deployment), Upkeep(deployment)
        stack.callback(turns.close)
        stack.callback(upkeep.close)
        yield Bench(turns, upkeep, messages, Texts(default_home(os.environ)))


def postmaster(deployment: Deployment) -> psutil.Process:
    """Postgres, whose children do its work."""
    assert deployment.postgres.pid is not None
    return psutil.Process(deployment.postgres.pid)


def tree_s(root: psutil.Process) -> float:
    """CPU seconds of a process and its children by now."""
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(OSError):  # it has ended
            total += cpu_s(process.pid)
    return total


def loop_s(pid: int) -> float:
    """CPU seconds of a process' first thread, which has its event loop, as Linux counts them for the scheduler."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
