"""One user floods a route, a door or a frame; what others wait for turns and reads must not show it (fairness)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

import aiohttp
import jwt
import psycopg

from agentic_backend.rest.scopes import ROUTE_COSTS
from backend_kit.http import Cost
from backend_kit.wire import dumps
from tests.chaos.deployment import Deployment, Service, Size
from tests.chaos.flooder import ANEW, Flood
from tests.chaos.ledger import Ledger
from tests.chaos.load import BASE, Address, ask_text, create_session, hear_end
from tests.chaos.rows import Row, at_least, at_most, exactly
from tests.support.rest import rest_client

ID = "fairness"
_SECRET = "a secret of the chaos run, long enough"
_FLOODER = "mallory"
_OTHERS = 6
_MODEL = "mock;ttft=100;gap=20;tokens=5"
_LIMITS = {"per_user": {"sockets": 10, "turns": 4, "asks_per_min": 1200, "burst": 100}}
"""As in production, but for the rate of asks: who measures asks more often than a person."""
_SHOWN = 20
"""Messages of the history that others read: a window, as the page asks for, since their conversations grow."""
_JSON = {"Content-Type": "application/json"}
_GRACE_MS = 50.0
_FACTOR = 2.0


@dataclass(slots=True)
class _Waits:
    """How long others waited, in milliseconds."""

    turns: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    refused: int = 0


async def floods(deployment: Deployment, size: Size) -> list[Row]:
    """Each flood for some seconds beside the same few users, whose waits before it are the measure."""
    seconds = size.pick(3, 8)
    async with _service(deployment) as service:
        await asyncio.to_thread(_write_much, service.database.dsn)
        async with _others(service) as others:
            await others.waits(2.0)
            rows: list[Row] = []
            calm = await others.waits(seconds)
            for flood in _floods(service, short=size.short):
                with _flooding(deployment, flood) as process:
                    await asyncio.sleep(0.5)
                    beside = await others.waits(seconds)
                got = process.output.strip().rpartition("\n")[2]
                rows += _judge(flood, calm, beside, got, size)
                print(*(row.line() for row in rows[-5:]), sep="\n", flush=True)
                calm = _calmer(calm, await others.waits(1.5))
    return rows


def _judge(flood: Flood, calm: _Waits, beside: _Waits, got: str, size: Size) -> list[Row]:
    rows = [at_least(ID, f"{flood.name}: turns of others meanwhile; it got {got}"[:160], len(beside.turns), 5, "turns")]
    rows.append(exactly(ID, f"{flood.name}: requests of others that failed", beside.refused, 0))
    turns, reads = _p95(calm.turns), _p95(calm.reads)
    for what, before, after in (("turn", turns, beside.turns), ("GET", reads, beside.reads)):
        bound = max(_FACTOR * before, before + _GRACE_MS * size.slack)
        rows.append(at_most(ID, f"{flood.name}: p95 of others' {what}, {before:.0f} before", _p95(after), bound, "ms"))
    rows.append(at_most(ID, f"{flood.name}: slowest /healthz", max(beside.health), 250.0 * size.slack, "ms"))
    return rows


def _calmer(one: _Waits, other: _Waits) -> _Waits:
    """The quieter of two measures without a flood: what a flood left behind is no excuse for the next one."""
    return min(one, other, key=lambda waits: _p95(waits.turns) if waits.turns else float("inf"))


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else float("inf")


@asynccontextmanager
async def _service(deployment: Deployment) -> AsyncIterator[Service]:
    database = await deployment.database()
    security = {"user": {"enabled": True}, "hs256_secret": _SECRET}
    service = Service(
        deployment, database, model=_MODEL, direct=True, token=_token("operator"), security=security, limits=_LIMITS
    )
    try:
        await service.start()
        yield service
    finally:
        await service.close()
        await deployment.drop(database)


def _token(user: str) -> str:
    now = int(time.time())
    return jwt.encode({"sub": user, "preferred_username": user, "iat": now, "exp": now + 3600}, _SECRET, "HS256")


class _Others:
    """Users who talk, one turn after the other, and read their sessions meanwhile."""

    def __init__(self, addresses: Sequence[Address], sessions: Sequence[str], http: aiohttp.ClientSession) -> None:
        self._addresses = addresses
        self._sessions = sessions
        self._http = http
        self._ledger = Ledger()

    async def waits(self, seconds: float) -> _Waits:
        """What they wait for in so many seconds; each at least once."""
        waits, until = _Waits(), time.perf_counter() + seconds
        async with asyncio.TaskGroup() as group:
            for address, session_id in zip(self._addresses, self._sessions, strict=True):
                group.create_task(self._talk(address, session_id, until, waits))
            group.create_task(self._read(until, waits))
        return waits

    async def _talk(self, address: Address, session_id: str, until: float, waits: _Waits) -> None:
        async with address.dial() as socket:
            while True:
                name = f"{session_id}-{time.monotonic_ns()}"
                asked = self._ledger.ask(name, session_id, "How is everybody?")
                begun = time.perf_counter()
                await socket.send(ask_text(asked))
                end = await hear_end(socket, name)
                waits.refused += end["type"] != "final"
                waits.turns.append((time.perf_counter() - begun) * 1e3)
                if time.perf_counter() > until:
                    return
                await asyncio.sleep(0.1)

    async def _read(self, until: float, waits: _Waits) -> None:
        number = 0
        while time.perf_counter() < until:
            address = self._addresses[number % _OTHERS]
            history = f"/chatbot/session/{self._sessions[number % _OTHERS]}/history?limit={_SHOWN}"
            path = ("/chatbot/sessions", history, "/healthz")[number % 3]
            into = waits.health if path == "/healthz" else waits.reads
            begun = time.perf_counter()
            async with self._http.get(f"{address.url}{path}", headers=address.headers) as response:
                await response.read()
                waits.refused += response.status != 200
            into.append((time.perf_counter() - begun) * 1e3)
            number += 1
            await asyncio.sleep(0.03)


@asynccontextmanager
async def _others(service: Service) -> AsyncIterator[_Others]:
    addresses = [Address(service.address.port, _token(f"user-{number}")) for number in range(_OTHERS)]
    async with rest_client() as http:
        sessions = [await create_session(http, address) for address in addresses]
        yield _Others(addresses, sessions, http)


@contextmanager
def _flooding(deployment: Deployment, flood: Flood) -> Iterator[Any]:
    with deployment.program("tests.chaos.flooder", flood.encode(), traceback_allowed=True) as process:
        yield process


def _write_much(dsn: str) -> None:
    """300 conversations of the flooder, of 20 messages with 2 KB each, and one of 4,000."""
    words = "'alpha beta gamma delta of turns and their phases, '"
    parts = f"jsonb_build_array(jsonb_build_object('type', 'text', 'text', rank || repeat({words}, 40)))"
    with psycopg.connect(dsn) as connection:
        connection.execute(
            """INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)
            SELECT 's' || number, %s, 'Georges', '{"title": "Much", "next_rank": 20, "preferences": {}}', now()
            FROM generate_series(0, 300) AS number""",
            (_FLOODER,),
        )
        connection.execute(
            f"""INSERT INTO session_history
            SELECT 's' || number, %s, rank, now(), 'assistant', 'final', 'e' || rank, {parts}, '{{}}'
            FROM generate_series(0, 300) AS number,
                generate_series(0, CASE WHEN number = 0 THEN 3999 ELSE 19 END) AS rank""",  # noqa: S608 - our own words
            (_FLOODER,),
        )
        connection.execute("ANALYZE")  # as Postgres does by itself a minute later


def _floods(service: Service, *, short: bool) -> list[Flood]:
    """Those of the issue, and one for each route, door and frame; in the short form the first of each kind."""
    url, token = service.address.url, _token(_FLOODER)
    root = f"http://127.0.0.1:{service.address.port}"
    socket = f"ws://127.0.0.1:{service.address.port}{BASE}/chatbot/query/ws"

    def http(name: str, method: str, path: str, body: Any = None, connections: int = 64, given: str = token) -> Flood:
        text = "" if body is None else body if isinstance(body, str) else dumps(body).decode()
        return Flood(name, method, path, connections, given, text, _JSON if text and not text.isdigit() else {})

    def frames(name: str, body: Any, connections: int = 9) -> Flood:
        return Flood(name, "WS", socket, connections, token, "" if body is None else dumps(body).decode())

    resume = {"type": "resume", "session_id": ANEW, "exchange_id": ANEW, "after_seq": 0}
    ask = {"type": "ask", "session_id": ANEW, "agent_id": "Georges", "message": "More!", "exchange_id": ANEW}
    chat = {"model": "Georges", "messages": [{"role": "user", "content": "More!"}]}
    listed = [
        http("searches of conversations", "GET", f"{url}/chatbot/sessions?q=alpha+gamma"),
        frames("resume of unknown ids", resume),
        http("exports of 8 MB", "GET", f"{url}/chatbot/session/s0/export", connections=32),
        http("strangers", "GET", f"{url}/chatbot/sessions", given="no token"),
        http("files of the page", "GET", f"{root}/", given=""),
        http("asks as streams", "POST", f"{url}/chatbot/query/stream", ask),
        http("chat completions", "POST", f"{root}/v1/chat/completions", chat),
    ]
    if short:
        return listed
    listed += [
        frames("asks", ask),
        frames("pings", {"type": "ping"}),
        frames("cancels of unknown ids", {"type": "cancel", "exchange_id": ANEW}),
        frames("renewals", {"type": "auth", "access_token": token}),
        frames("handshakes", None, connections=32),
        replace(frames("handshakes of strangers", None, connections=32), token="no token"),
    ]
    done = {
        "GET //",
        "GET /chatbot/session/{session_id}/export",
        "POST /chatbot/query/stream",
        "POST //v1/chat/completions",
    }
    for row, cost in ROUTE_COSTS.items():
        method, path = row.split()
        if method == "WS" or cost is Cost.FREE or row in done:
            continue
        whole = root + path[1:] if path.startswith("//") else url + path
        for name in (
            "{session_id}",
            "{uid}",
            "{chunk_uid}",
            "{agent_id}",
            "{key_id}",
            "{feedback_id}",
            "{attachment_id}",
        ):
            whole = whole.replace(name, "s0" if name == "{session_id}" and method == "GET" else ANEW)
        for name in ("{rank}", "{name}", "{model:path}", "{response_id}", "{exchange_id:path}"):
            whole = whole.replace(name, "1")
        body: Any = None if method in ("GET", "DELETE") else "1000" if cost is Cost.UPLOAD else {}
        listed.append(http(row, method, whole, body))
    return listed
