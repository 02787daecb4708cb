"""The pieces of a turn that `make bench-micro` times beside the measurements: frames, tokens, sockets, spool, rows.

Bounds are in microseconds, about three times the least that was seen (docs/perf-log.md): they find a change of kind.
The spool's are wider, since disks differ by more.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jwt
import psycopg
import uvloop
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from agentic_backend.chat import relay
from agentic_backend.chat.hub import SocketHub
from agentic_backend.events import ChatMessage, Role, text_part
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import batch_pool, migrate, request_pool
from agentic_backend.session.models import Session, TurnRecord
from agentic_backend.session.stream import Ask, Final, TextDelta, Turn, TurnEvent
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.statements import GET_SESSION, WRITE_TURNS, JsonBytes
from agentic_backend.surfaces import agui, langgraph, openai
from backend_kit.auth import ANY, HmacVerifier, NoAuth, RouteScopes
from backend_kit.http import Admitted, Cost, RequestLimits, RouteAdmission
from backend_kit.settings import Postgres
from tests.agentic_backend.chat.told_hub import RULES, Peer, ToldTurns, until
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from turnwise.postgres import USER, EmbeddedPostgres
from ws_bench.record.timing import Run

Case = tuple[str, Run, float]
"""Name, function over a range of repetitions, bound in µs."""

BATCH = 64
IDLE = 1000
_SECRET = "a secret of a bench that is long enough for HS256"
_ANSWER = "Each turn is timed phase by phase, so that the log can say where the time went. " * 3


@contextmanager
def service_cases(metrics: AgenticMetrics) -> Iterator[list[Case]]:
    """The cases; a Postgres and a spool of their own last as long as the block."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        frames, hub, storage = FrameCases(), HubCases(metrics, runner, stack), StorageCases(metrics, runner, stack)
        requests = [*token_cases(), *admission_cases(runner), *route_cases()]
        yield [*frames.listed(), *requests, *hub.listed(), *storage.listed()]


_ADMITTED = 100


def record_of(number: int) -> TurnRecord:
    """A finished turn with a ledger of nine phases, as a streamed answer of fifty tokens leaves it."""
    session = Session(f"bench{number:06d}", "admin", "Georges", "Bench", "2026-01-01T00:00:00.000000Z").advanced(2, "B")
    rows = [{"phase": "llm_invoke", "start_ms": 1.25, "ms": 250.5, "depth": 1, "status": "ok"}] * 9
    usage = {"input_tokens": 20, "output_tokens": 50, "total_tokens": 70}
    metadata = {"model": "mock", "token_usage": usage, "finish_reason": "stop", "extras": {"ledger": rows}}
    exchange_id = f"exchange-{number}"

    def message(rank: int, role: Role, text: str, extra: dict[str, Any]) -> ChatMessage:
        return ChatMessage.build(
            session_id=session.id,
            exchange_id=exchange_id,
            rank=rank,
            role=role,
            channel="final",
            parts=[text_part(text)],
            metadata=extra,
        )

    messages = (message(0, "user", "Hello", {}), message(1, "assistant", _ANSWER, metadata))
    return TurnRecord(session, exchange_id, messages)


class FrameCases:
    """Events to frames, and a record to a row of the spool."""

    def __init__(self) -> None:
        self._record = record_of(0)
        session = self._record.session
        ask = Ask(session.id, "Georges", "Hello", self._record.exchange_id, "admin", time.perf_counter())
        self._turn = Turn(ask)
        final = Final(self._record.messages, session, b"[]", 0.1, "spool")
        self._delta = TurnEvent(7, TextDelta(1, "final", " phase"))
        self._final = TurnEvent(60, final)

    def listed(self) -> list[Case]:
        """The cases."""
        return [
            ("event encode: a delta, turnwise.v1", self.delta, 1.0),
            ("event encode: final, turnwise.v1", self.final, 6.0),
            ("event encode: the answer and final, compatible", self.compatible, 6.0),
            ("message encode: an answer with its ledger", self.message, 10.0),
            ("row encode: a finished turn", self.row, 4.0),
        ]

    def delta(self, times: range) -> None:
        turn, event = self._turn, self._delta
        for _ in times:
            relay.native(turn, event)

    def final(self, times: range) -> None:
        turn, event = self._turn, self._final
        for _ in times:
            relay.native(turn, event)

    def compatible(self, times: range) -> None:
        turn, event = self._turn, self._final
        for _ in times:
            relay.compatible(turn, event)

    def message(self, times: range) -> None:
        answer = self._record.messages[1]
        for _ in times:
            ChatMessage.build(
                session_id=answer.session_id,
                exchange_id=answer.exchange_id,
                rank=answer.rank,
                role=answer.role,
                channel=answer.channel,
                parts=answer.parts,
                metadata=answer.metadata,
            )

    def row(self, times: range) -> None:
        record = self._record
        for _ in times:
            record.encode()


def token_cases() -> list[Case]:
    """A token that was seen before, and one that was not."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "sub": "1f0c7e52-6a2b-4d55-9a0e-0f4a3c0b7d11",
        "iat": now,
        "exp": now + 3600,
        "typ": "Bearer",
        "preferred_username": "ann",
        "email": "ann@example.org",
        "groups": ["/a", "/b"],
        "resource_access": {"app": {"roles": ["user", "admin"]}},
    }
    token = jwt.encode(claims, _SECRET, algorithm="HS256")
    known = HmacVerifier(_SECRET, client_id="app")

    def again(times: range) -> None:
        for _ in times:
            _at_once(known.verify(token))

    def first(times: range) -> None:
        for _ in times:
            _at_once(HmacVerifier(_SECRET, client_id="app").verify(token))

    return [("jwt: verified before", again, 2.5), ("jwt: HS256, not seen before", first, 110.0)]


def admission_cases(runner: asyncio.Runner) -> list[Case]:
    """Requests of a known user through a route's admission, which an ask of an event stream pays, and what a frame of
    a socket does. A hundred at a time, since they need a loop, and to enter one costs as much as several."""
    now = int(time.time())
    token = jwt.encode({"sub": "ann", "iat": now, "exp": now + 3600}, _SECRET, algorithm="HS256")
    limits = RequestLimits(per_s=1e6, burst=10**9, at_once=4, waiting=100)
    admission = RouteAdmission(HmacVerifier(_SECRET), limits, CollectorRegistry())
    scopes = RouteScopes({"POST /ask": ANY})

    async def route(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Any) -> None: ...

    admitted = Admitted(route, admission, "/ask", {"POST": Cost.TURN}, scopes)
    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": "POST", "headers": headers, "client": ("127.0.0.1", 1), "state": {}}

    def requests(times: range) -> None:
        async def repeat() -> None:
            for _ in range(len(times) * _ADMITTED):
                await admitted(scope, receive, send)

        runner.run(repeat())

    def frames(times: range) -> None:
        for _ in times:
            _at_once(admission.pace("ann", Cost.TURN))

    return [
        (f"admission: {_ADMITTED} asks, their token verified before", requests, 20.0 * _ADMITTED),
        ("admission: a frame", frames, 2.0),
    ]


def route_cases() -> list[Case]:
    """The routes of the doors, which a request for any other route is compared with one after the other."""

    async def nobody(request: Request) -> None: ...

    routes = [*openai.add_routes(lambda: None, nobody), *agui.add_routes(lambda: None, nobody)]
    routes += langgraph.add_routes(lambda: None, nobody)
    path = "/agentic/v1/chatbot/query/stream"
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "path_params": {}, "headers": []}

    def passed_over(times: range) -> None:
        for _ in times:
            for route in routes:
                route.matches(scope)

    return [(f"routes: {len(routes)} of the doors passed over", passed_over, 35.0)]


def _at_once(awaited: Coroutine[Any, Any, object]) -> None:
    """Run what waits for nothing, without a loop: entering one costs 70 µs, more than most of what is timed here."""
    try:
        awaited.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


class HubCases:
    """The clock that looks at every socket once a second, where none of them says anything."""

    def __init__(self, metrics: AgenticMetrics, runner: asyncio.Runner, stack: ExitStack) -> None:
        self._runner = runner
        self._hub = SocketHub(
            admission=RouteAdmission(NoAuth(), RequestLimits(), CollectorRegistry()),
            rules=RULES,
            metrics=metrics,
            delivered=metrics.delivery.observe,
        )
        self._peers = [Peer() for _ in range(IDLE)]
        self._turns = ToldTurns()
        loop = runner.get_loop()
        served = [loop.create_task(self._hub.serve(peer.websocket(), self._turns)) for peer in self._peers]
        runner.run(until(lambda: len(self._hub) == IDLE))
        stack.callback(lambda: runner.run(self._leave(served)))

    def listed(self) -> list[Case]:
        """The cases."""
        return [(f"tick: {IDLE} idle sockets", self._ticks, 1000.0)]

    def _ticks(self, times: range) -> None:
        async def repeat() -> None:
            for _ in times:
                await self._hub.tick(time.monotonic())

        self._runner.run(repeat())

    async def _leave(self, served: list[asyncio.Task[None]]) -> None:
        for peer in self._peers:
            peer.leave()
        await asyncio.gather(*served)


class StorageCases:
    """The spool on the disk of this machine's temporary directory, and statements on a Postgres beside it.

    These wait for a disk or another process: their figures are elapsed time, not work of ours alone.
    """

    def __init__(self, metrics: AgenticMetrics, runner: asyncio.Runner, stack: ExitStack) -> None:
        self._runner = runner
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-bench-")))
        self._spool = runner.run(_opened(Spool(directory / "spool", metrics.spool_commit.observe)))
        stack.callback(lambda: runner.run(self._spool.aclose()))
        records = [record_of(number) for number in range(BATCH)]
        self._body = records[0].encode()
        self._key = (records[0].session.id, records[0].session.user_id)
        settings = _postgres(stack)
        migrate(settings)
        with psycopg.connect(f"postgresql://{USER}@127.0.0.1:{settings.port}/{settings.database}") as connection:
            for record in records:
                session = record.session
                connection.execute(
                    "INSERT INTO session VALUES (%s, %s, %s, '{}', now(), 0)",
                    (session.id, session.user_id, session.agent_id),
                )
        self._records = {"records": JsonBytes(b"[" + b",".join(record.encode() for record in records) + b"]")}
        self._reads = request_pool(settings, metrics)
        self._batches = batch_pool(settings, metrics)
        stack.callback(lambda: runner.run(self._batches.aclose()))
        stack.callback(lambda: runner.run(self._reads.aclose()))

    def listed(self) -> list[Case]:
        """The cases."""
        return [
            ("spool append: alone, until it is on disk", self._each(self._append), 3000.0),
            (f"spool append: {BATCH} at once, until all are", self._each(self._append_many), 8000.0),
            ("statement: read one session", self._each(self._read), 1000.0),
            (f"statement: a batch of {BATCH} turns, rolled back", self._each(self._write), 13_000.0),
        ]

    def _each(self, operation: Callable[[], Awaitable[None]]) -> Run:
        """One after the other."""

        async def repeat(times: range) -> None:
            for _ in times:
                await operation()

        return lambda times: self._runner.run(repeat(times))

    async def _append_many(self) -> None:
        await asyncio.gather(*(self._append() for _ in range(BATCH)))

    async def _append(self) -> None:
        id_, landed = self._spool.put("turn", self._key, "exchange", self._body)
        await landed
        self._spool.done([id_])

    async def _read(self) -> None:
        async with self._reads.connection() as connection:
            session_id, user_id = self._key
            await connection.execute("get_session", GET_SESSION, {"session_id": session_id, "user_id": user_id})

    async def _write(self) -> None:
        async with self._batches.connection() as connection:
            rows = await connection.execute("write_turns", WRITE_TURNS, self._records)
        assert list(rows) == [], "a turn of the bench was not taken"


async def _opened(spool: Spool) -> Spool:
    spool.start()
    return spool


def _postgres(stack: ExitStack) -> Postgres:
    """A durable server of its own, as the service would have."""
    directory = public_directory("turnwise-bench-")
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    server = EmbeddedPostgres(directory, free_port(), durable=True)
    server.start()
    stack.callback(server.stop)
    return Postgres(host=server.host, port=server.port, database=server.database, username=USER)
