"""One run: prepares sessions, lets the clients take their turns, cleans up, and hands over the report."""

import asyncio
import signal
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from ws_bench.client import Engine, WebsocketsEngine, Wire
from ws_bench.dialects import CompatibleTurn, NativeTurn, TurnReader, ask_frame, clock, parse_event
from ws_bench.errors import PreparationFailed, SessionCallFailed, TurnBroken
from ws_bench.flags import NATIVE_SUBPROTOCOL, RunConfig
from ws_bench.pacing import ClosedLoop, Interrupt, Pacer, SharedTotal
from ws_bench.report import RunReport, SessionCounts, build_report
from ws_bench.results import TurnResult
from ws_bench.sessions import SessionApi

_CLIENT_STOP = 4000


async def run(config: RunConfig) -> RunReport:
    """Carry out a run. SIGINT or SIGTERM ends it early with a full report; a second one cancels this call.

    Raises `PreparationFailed` when `-prepare-sessions` could not create them all.
    """
    interrupt = Interrupt(config.grace_s)
    with _Signals(interrupt):
        async with SessionApi(config) as sessions:
            return await _Run(config, interrupt, sessions).execute()


class _Signals:
    """SIGINT and SIGTERM while a run lasts: the first asks for an end, the second cancels the run."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._interrupt.requested:
            if self._task is not None:
                self._task.cancel()
            return
        print("interrupted: no new turns; running ones may end (again: stop at once)", file=sys.stderr, flush=True)
        self._interrupt.request()


class _Run:
    """The state of one run: what was measured so far and which sessions are the run's own."""

    def __init__(self, config: RunConfig, interrupt: Interrupt, sessions: SessionApi) -> None:
        self._config = config
        self._interrupt = interrupt
        self._sessions = sessions
        self._engine: Engine = WebsocketsEngine(
            config.dial_url,
            {} if config.token_in_query else config.auth_headers,
            subprotocol=NATIVE_SUBPROTOCOL if config.native else "",
            max_size=config.read_limit_bytes,
            insecure=config.insecure,
        )
        self._results: list[TurnResult] = []
        self._connect_ms: list[float] = []
        self._session_ms: list[float] = []
        self._prepared: list[str] = []
        self._asked = 0
        self._begin = clock()

    async def execute(self) -> RunReport:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        config = self._config
        if config.owns_sessions and config.per_client and config.prepare_sessions:
            await self._prepare()
        pacer = self._pacer()
        try:
            async with asyncio.TaskGroup() as clients:
                for client in range(config.clients):
                    clients.create_task(self._client(client, pacer), name=f"client-{client}")
        finally:
            await self._delete_prepared()
        self._say_delete_failures()
        return build_report(
            config,
            self._results,
            started_at=started_at,
            elapsed_s=clock() - self._begin,
            connect_ms=self._connect_ms,
            session_create_ms=self._session_ms,
            sessions=SessionCounts(self._sessions.created, self._sessions.deleted, len(self._sessions.delete_failures)),
            interrupted=self._interrupt.requested,
        )

    def _pacer(self) -> Pacer:
        config = self._config
        if config.per_client:
            return ClosedLoop(
                self._interrupt, clients=config.clients, turns_each=config.requests_per_client, ramp_s=config.ramp_s
            )
        return SharedTotal(self._interrupt, total=config.requests)

    async def _prepare(self) -> None:
        """Create one session a client. On a failure those already created are deleted again."""
        todo = iter(range(self._config.clients))
        failures: list[TurnBroken] = []

        async def worker() -> None:
            for _ in todo:
                if failures or self._interrupt.requested:
                    return
                try:
                    self._prepared.append(await self._create_session())
                except TurnBroken as broken:
                    failures.append(broken)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._config.prepare_concurrency, self._config.clients)):
                workers.create_task(worker())
        if failures and not self._interrupt.requested:
            await self._delete_prepared()
            raise PreparationFailed(f"prepare sessions failed: {failures[0]}")

    async def _delete_prepared(self) -> None:
        if not self._config.delete_session:
            return
        todo = iter(self._prepared)

        async def worker() -> None:
            for session_id in todo:
                await self._sessions.delete(session_id)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._config.prepare_concurrency, len(self._prepared))):
                workers.create_task(worker())

    async def _client(self, client: int, pacer: Pacer) -> None:
        """The life of one client, from its ramp slot until the pacer has no more turns for it."""
        admitted = await pacer.admit(client) is not None
        while admitted:
            healthy = await self._conversation(client, pacer)
            # A broken socket ends a client that owns one; in total mode the next request has a new one anyway.
            admitted = (healthy or not self._config.per_client) and await pacer.admit(client) is not None

    async def _conversation(self, client: int, pacer: Pacer) -> bool:
        """A session and a socket, and the turns on it: all of the client's, or one in total mode.

        False when it broke. The first turn has been admitted already.
        """
        began = clock()
        wire: Wire | None = None
        session_id, own_session = "", False
        try:
            session_id, own_session = await self._session_of(client)
            wire = await self._connect()
            await self._turn(client, wire, session_id)
            while self._config.per_client and await pacer.admit(client) is not None:
                await self._turn(client, wire, session_id)
        except TurnBroken as broken:
            self._record_setup_failure(client, began, broken)
            return False
        except _SocketLost:
            return False
        finally:
            if wire is not None:
                await wire.close()
            if own_session and self._config.delete_session:
                await self._sessions.delete(session_id)
        return True

    async def _session_of(self, client: int) -> tuple[str, bool]:
        """The session to ask in, and whether this conversation has to delete it."""
        config = self._config
        if config.session or not config.create_session:
            return config.session, False
        if config.per_client and config.prepare_sessions:
            return self._prepared[client], False
        return await self._create_session(), True

    async def _create_session(self) -> str:
        begin = clock()
        try:
            async with self._interrupt.within(self._config.timeout_s):
                session_id = await self._sessions.create()
        except TimeoutError as late:
            raise SessionCallFailed("session_create_timeout") from late
        self._session_ms.append((clock() - begin) * 1000)
        return session_id

    async def _connect(self) -> Wire:
        begin = clock()
        try:
            async with self._interrupt.within(self._config.timeout_s):
                wire = await self._engine.connect()
        except TimeoutError as late:
            raise TurnBroken("connect_timeout") from late
        self._connect_ms.append((clock() - begin) * 1000)
        return wire

    def _next_message(self) -> str:
        """In the order in which turns begin, whichever client they are of: so no question comes twice too early."""
        prompts = self._config.prompts
        if not prompts:
            return self._config.message
        message = prompts[self._asked % len(prompts)]
        self._asked += 1
        return message

    async def _turn(self, client: int, wire: Wire, session_id: str) -> None:
        """One ask and its events, recorded. Raises `_SocketLost` when the socket cannot carry another turn."""
        config = self._config
        exchange_id = uuid.uuid4().hex
        reader: TurnReader = NativeTurn(exchange_id) if config.native else CompatibleTurn()
        frame = ask_frame(session_id, exchange_id, self._next_message(), config.agent, config.runtime_context)
        asked = clock()
        failure: TurnBroken | None = None
        frames = 0

        def seen() -> None:
            nonlocal frames
            frames += 1

        try:
            async with self._interrupt.within(config.timeout_s):
                await wire.send(frame)
                await self._follow(wire, reader, seen)
        except TurnBroken as broken:
            failure = broken
        except TimeoutError:
            failure = TurnBroken(self._timeout_kind(frames), "no final in time")
            await wire.close(_CLIENT_STOP, "client_stop")
        ended = clock()
        first = reader.first_token_at
        self._results.append(
            TurnResult(
                client=client,
                asked=asked - self._begin,
                ended=ended - self._begin,
                error=failure.kind if failure else "",
                detail=failure.detail if failure else "",
                first_token_ms=(first - asked) * 1000 if first is not None else None,
                gaps_ms=reader.gaps_ms,
            )
        )
        if failure is not None and not failure.usable:
            raise _SocketLost

    async def _follow(self, wire: Wire, reader: TurnReader, seen: Callable[[], None]) -> None:
        """Read events until the turn has ended. The clock is read before an event is parsed."""
        ended = False
        while not ended:
            frame = await wire.recv()
            now = clock()
            seen()
            if self._config.debug_events:
                print(f"event raw: {frame.decode(errors='replace')}", file=sys.stderr)
            ended = reader.feed(parse_event(frame), now)

    def _timeout_kind(self, frames: int) -> str:
        if self._interrupt.requested:
            return "client_cancel"
        return "turn_timeout" if frames else "ask_timeout"

    def _record_setup_failure(self, client: int, began: float, broken: TurnBroken) -> None:
        """Count the turn that could not be asked; one given up because of an interrupt counts as not sent."""
        if self._interrupt.requested:
            return
        self._results.append(
            TurnResult(
                client=client,
                asked=began - self._begin,
                ended=clock() - self._begin,
                error=broken.kind,
                detail=broken.detail,
                sent=False,
            )
        )

    def _say_delete_failures(self) -> None:
        failures = self._sessions.delete_failures
        if failures:
            print(f"delete session failed: {len(failures)} times, last: {failures[-1]}", file=sys.stderr)


class _SocketLost(Exception):
    """The recorded turn left no usable socket behind."""
