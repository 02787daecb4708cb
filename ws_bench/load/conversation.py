"""One client's place in a run: its session, its socket, and the turns on it."""

import sys
import uuid
from collections.abc import Callable
from dataclasses import replace

from ws_bench.config.flags import RunConfig
from ws_bench.config.pacing import Interrupt
from ws_bench.config.prompts import Prompts
from ws_bench.errors import SessionCallFailed, TurnBroken
from ws_bench.load.client import Engine, Wire
from ws_bench.load.history import Acknowledged
from ws_bench.load.sessions import SessionApi
from ws_bench.record.dialects import (
    CompatibleTurn,
    NativeTurn,
    TurnReader,
    after_the_end,
    ask_frame,
    clock,
    parse_event,
)
from ws_bench.record.recorder import Recorder
from ws_bench.record.results import TurnResult

CLIENT_STOP = 4000


class SocketLost(Exception):
    """The recorded turn left no usable socket behind."""


class Context:
    """What all clients of a run share."""

    def __init__(
        self,
        config: RunConfig,
        engine: Engine,
        interrupt: Interrupt,
        sessions: SessionApi,
        recorder: Recorder,
        prompts: Prompts,
    ) -> None:
        self.config = config
        self.engine = engine
        self.interrupt = interrupt
        self.sessions = sessions
        self.recorder = recorder
        self.prompts = prompts
        self.prepared: list[str] = []
        self.acknowledged = Acknowledged()
        self.kept_sessions: list[str] = []
        """Sessions of clients that have left, to be deleted at the end: their history is looked at before."""


class Seat:
    """A client's session and socket. `open` makes what is missing, `close` takes down what is the seat's own."""

    def __init__(self, client: int, context: Context) -> None:
        self._client = client
        self._context = context
        self._wire: Wire | None = None
        self._session_id: str | None = None
        self._own_session = False
        self._opened = 0
        self._last: tuple[int, str] | None = None

    async def open(self) -> None:
        """Be ready to ask. Raises `TurnBroken`, and may be called again then."""
        if self._session_id is None:
            self._session_id, self._own_session = await self._session()
        if self._wire is None:
            if self._opened:
                self._context.recorder.reconnects += 1
            self._wire = await self._connect()
            self._opened += 1

    async def turn(self, intended: float | None = None) -> None:
        """One ask and its events, recorded; on the run's clock `intended` is when it should have been asked.

        Raises `SocketLost` when the socket cannot carry another turn; the seat has left it then.
        """
        if self._wire is None or self._session_id is None:
            raise RuntimeError("a seat is used before it is open")
        context, wire = self._context, self._wire
        config, recorder = context.config, context.recorder
        exchange_id = uuid.uuid4().hex
        reader: TurnReader = NativeTurn(exchange_id) if config.native else CompatibleTurn(self._session_id, exchange_id)
        message = context.prompts.next(self._client)
        frame = ask_frame(self._session_id, exchange_id, message, config.agent, config.runtime_context)
        asked = clock()
        recorder.ask(self._client)
        failure = await self._carry_out(wire, frame, reader)
        result = turn_result(self._client, asked, clock(), recorder.begin, reader, failure)
        if intended is not None:
            result = replace(result, intended=intended - recorder.begin)
        self._last = (recorder.answered(result), exchange_id)
        if result.ok and config.verify_history:
            context.acknowledged.add(self._session_id, exchange_id, reader.answer)
        if failure is not None and not failure.usable:
            await self.leave()
            raise SocketLost

    async def leave(self) -> None:
        """Close the socket; the session stays, and `open` makes a new socket."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        begin = clock()
        await wire.close()
        self._context.recorder.close_ms.append((clock() - begin) * 1000)
        await self._look_after(wire)

    async def close(self) -> None:
        """Leave, and delete the session where it was made for this seat."""
        await self.leave()
        if not self._own_session or self._session_id is None or not self._context.config.delete_session:
            return
        if self._context.config.verify_history:
            self._context.kept_sessions.append(self._session_id)
        else:
            await self._context.sessions.delete(self._session_id)

    async def _carry_out(self, wire: Wire, frame: str, reader: TurnReader) -> TurnBroken | None:
        """Ask and follow to the end; what broke it, None for a turn that ended well."""
        context = self._context
        frames = 0

        def seen() -> None:
            nonlocal frames
            frames += 1

        try:
            async with context.interrupt.within(context.config.timeout_s):
                await wire.send(frame)
                await follow(wire, reader, seen, debug=context.config.debug_events)
        except TurnBroken as broken:
            return broken
        except TimeoutError:
            await wire.close(CLIENT_STOP, "client_stop")
            if context.interrupt.requested:
                return TurnBroken("client_cancel", "no final in time")
            return TurnBroken("turn_timeout" if frames else "ask_timeout", "no final in time")
        return None

    async def _look_after(self, wire: Wire) -> None:
        """What came after the last turn's end: anything of a turn is one terminal event too many."""
        if self._last is None:
            return
        number, exchange_id = self._last
        recorder = self._context.recorder
        try:
            while True:
                kind = after_the_end(await wire.recv(), exchange_id)
                if kind and recorder.turns[number].ok:
                    late = replace(recorder.turns[number], error=kind, detail="after the turn's final")
                    recorder.replace(number, late)
        except TurnBroken:
            return

    async def _session(self) -> tuple[str, bool]:
        """The session to ask in, and whether this seat has to delete it."""
        config = self._context.config
        if config.session or not config.create_session:
            return config.session, False
        if self._context.prepared:
            return self._context.prepared[self._client], False
        return await create_session(self._context), True

    async def _connect(self) -> Wire:
        context = self._context
        begin = clock()
        try:
            async with context.interrupt.within(context.config.timeout_s):
                wire = await context.engine.connect()
        except TimeoutError as late:
            raise TurnBroken("connect_timeout") from late
        context.recorder.connect_ms.append((clock() - begin) * 1000)
        return wire


async def create_session(context: Context) -> str:
    """A new session's id, its time recorded. Raises `SessionCallFailed`."""
    begin = clock()
    try:
        async with context.interrupt.within(context.config.timeout_s):
            session_id = await context.sessions.create()
    except TimeoutError as late:
        raise SessionCallFailed("session_create_timeout") from late
    context.recorder.session_ms.append((clock() - begin) * 1000)
    return session_id


async def follow(wire: Wire, reader: TurnReader, seen: Callable[[], None], *, debug: bool = False) -> None:
    """Read events until the turn has ended well. The clock is read before an event is parsed. Raises `TurnBroken`."""
    ended = False
    while not ended:
        frame = await wire.recv()
        now = clock()
        seen()
        if debug:
            print(f"event raw: {frame.decode(errors='replace')}", file=sys.stderr)
        ended = reader.feed(parse_event(frame), now)


def turn_result(
    client: int, asked: float, ended: float, zero: float, reader: TurnReader, failure: TurnBroken | None
) -> TurnResult:
    """The record of a turn that was asked. `asked`, `ended` and `zero`, the run's begin, are on `clock`."""
    ttft: float | None = None
    tail: float | None = None
    stall: float | None = None
    if reader.first_token_at is not None and reader.last_token_at is not None:
        ttft = (reader.first_token_at - asked) * 1000
        tail = (ended - reader.last_token_at) * 1000
        stall = max(reader.gaps_ms, default=None)
    return TurnResult(
        client=client,
        asked=asked - zero,
        ended=ended - zero,
        error=failure.kind if failure else "",
        detail=failure.detail if failure else "",
        first_token_ms=ttft,
        gaps_ms=reader.gaps_ms,
        first_event_ms=None if reader.first_event_at is None else (reader.first_event_at - asked) * 1000,
        tail_ms=tail,
        stall_ms=stall,
        phases=reader.ledger.phases,
        own_ms=reader.ledger.own,
        top_phases=reader.ledger.top,
        server_ms=reader.ledger.total_ms,
    )
