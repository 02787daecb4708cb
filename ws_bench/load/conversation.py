"""One client's conversation with the service: its session, its socket and the turns on it."""

import sys
import uuid
from collections.abc import Callable
from dataclasses import replace

from ws_bench.config.flags import RunConfig
from ws_bench.config.prompts import Prompts
from ws_bench.errors import SessionCallFailed, TurnBroken
from ws_bench.load.client import ClientSocket, Connector
from ws_bench.load.engines import speaker_of
from ws_bench.load.history import AcknowledgedTurns
from ws_bench.load.pacing import Interrupt
from ws_bench.load.sessions import SessionApi
from ws_bench.record.dialects import TurnReader, after_the_end, clock, parse_event
from ws_bench.record.recorder import Recorder
from ws_bench.record.results import TurnResult

CLIENT_STOP = 4000


class SocketLost(Exception):
    """The turn is recorded, and the socket cannot carry another one."""


class RunContext:
    """What all clients of a run share."""

    def __init__(
        self,
        config: RunConfig,
        connector: Connector,
        interrupt: Interrupt,
        sessions: SessionApi,
        recorder: Recorder,
        prompts: Prompts,
    ) -> None:
        self.config = config
        self.connector = connector
        self.interrupt = interrupt
        self.sessions = sessions
        self.recorder = recorder
        self.prompts = prompts
        self.prepared: list[str] = []
        self.acknowledged = AcknowledgedTurns()
        self.kept_sessions: list[str] = []
        """Sessions to delete at the end of the run, after their history has been checked."""


class Conversation:
    """A client's session and socket. `open` creates whichever is missing, `close` deletes what this one created."""

    def __init__(self, client: int, context: RunContext) -> None:
        self._client = client
        self._context = context
        self._socket: ClientSocket | None = None
        self._session_id: str | None = None
        self._speaker = speaker_of(context.config)
        self._own_session = ""
        """The id of the session to delete at the end."""
        self._opened = 0
        self._last: tuple[int, str] | None = None

    async def open(self) -> None:
        """Get ready to ask. Raises `TurnBroken`, after which it may be called again."""
        if self._session_id is None:
            self._session_id = await self._session()
        if self._socket is None:
            if self._opened:
                self._context.recorder.reconnects += 1
            self._socket = await self._connect()
            self._opened += 1

    async def run_turn(self, intended: float | None = None) -> None:
        """Ask, follow the events, record the result. `intended` is when, on `clock`, it should have been asked.

        Raises `SocketLost` if the socket cannot carry another turn, which is closed by then, and RuntimeError before
        `open`.
        """
        if self._socket is None or self._session_id is None:
            raise RuntimeError("a conversation is used before it is open")
        context, socket = self._context, self._socket
        config, recorder = context.config, context.recorder
        exchange_id = uuid.uuid4().hex
        message = context.prompts.next(self._client)
        frame, reader = self._speaker.ask(self._session_id, exchange_id, message)
        asked = clock()
        recorder.turn_asked(self._client)
        failure, frames = await self._ask_and_follow(socket, frame, reader)
        if failure is None:
            self._speaker.answered(message, reader.answer)
        self._note_kept_session(socket)
        result = turn_result(self._client, asked, clock(), recorder.begin, reader, failure)
        result = replace(result, frames=frames, intended=None if intended is None else intended - recorder.begin)
        self._last = (recorder.turn_ended(result), exchange_id)
        if result.ok and config.verify_history:
            context.acknowledged.add(self._session_id, exchange_id, reader.answer)
        if failure is not None and not failure.usable:
            await self.disconnect()
            raise SocketLost

    async def disconnect(self) -> None:
        """Close the socket; the session stays, and `open` opens a new socket."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        begin = clock()
        await socket.close()
        self._context.recorder.close_ms.append((clock() - begin) * 1000)
        await self._check_late_frames(socket)

    async def close(self) -> None:
        """Disconnect, and delete the session if this conversation created it."""
        await self.disconnect()
        if not self._own_session or not self._context.config.delete_session:
            return
        if self._context.config.verify_history:
            self._context.kept_sessions.append(self._own_session)
        else:
            await self._context.sessions.delete(self._own_session)

    async def _ask_and_follow(
        self, socket: ClientSocket, frame: str, reader: TurnReader
    ) -> tuple[TurnBroken | None, int]:
        """Ask, and follow the turn to its end: the failure, None if it ended well, and how many frames were heard."""
        context = self._context
        frames = 0

        def count_frame() -> None:
            nonlocal frames
            frames += 1

        try:
            async with context.interrupt.within(context.config.timeout_s):
                await socket.send(frame)
                await follow_turn(socket, reader, count_frame, debug=context.config.debug_events)
        except TurnBroken as broken:
            return broken, frames
        except TimeoutError:
            await socket.close(CLIENT_STOP, "client_stop")
            if context.interrupt.requested:
                return TurnBroken("client_cancel", "no final in time"), frames
            return TurnBroken("turn_timeout" if frames else "ask_timeout", "no final in time"), frames
        return None, frames

    async def _check_late_frames(self, socket: ClientSocket) -> None:
        """Mark the last turn as failed if frames of a turn followed its final."""
        if self._last is None:
            return
        number, exchange_id = self._last
        recorder = self._context.recorder
        try:
            while True:
                kind = after_the_end(await socket.recv(), exchange_id)
                if kind and recorder.turns[number].ok:
                    late = replace(recorder.turns[number], error=kind, detail="after the turn's final")
                    recorder.replace_result(number, late)
        except TurnBroken:
            return

    async def _session(self) -> str:
        """The session to ask in. Where the door makes sessions itself, of names, it is a name."""
        config = self._context.config
        if config.session or not config.create_session:
            return config.session
        if config.protocol == "openai":
            return uuid.uuid4().hex
        if self._context.prepared:
            return self._context.prepared[self._client]
        self._own_session = await create_session(self._context)
        return self._own_session

    def _note_kept_session(self, socket: ClientSocket) -> None:
        """Take over the session that the service has made for this conversation."""
        if socket.kept_session and not self._own_session and self._context.config.owns_sessions:
            self._own_session = socket.kept_session
            self._context.sessions.created += 1

    async def _connect(self) -> ClientSocket:
        context = self._context
        begin = clock()
        try:
            async with context.interrupt.within(context.config.timeout_s):
                socket = await context.connector.connect()
        except TimeoutError as late:
            raise TurnBroken("connect_timeout") from late
        if context.connector.dials:
            context.recorder.connect_ms.append((clock() - begin) * 1000)
        return socket


async def create_session(context: RunContext) -> str:
    """Create a session, record the time it took, and return its id. Raises `SessionCallFailed`."""
    begin = clock()
    try:
        async with context.interrupt.within(context.config.timeout_s):
            session_id = await context.sessions.create()
    except TimeoutError as late:
        raise SessionCallFailed("session_create_timeout") from late
    context.recorder.session_ms.append((clock() - begin) * 1000)
    return session_id


async def follow_turn(
    socket: ClientSocket, reader: TurnReader, on_frame: Callable[[], None], *, debug: bool = False
) -> None:
    """Read events until the turn has ended well. The clock is read before an event is parsed. Raises `TurnBroken`."""
    ended = False
    while not ended:
        frame = await socket.recv()
        now = clock()
        on_frame()
        if debug:
            print(f"event raw: {frame.decode(errors='replace')}", file=sys.stderr)
        ended = reader.feed(parse_event(frame), now)


def turn_result(
    client: int, asked: float, ended: float, zero: float, reader: TurnReader, failure: TurnBroken | None
) -> TurnResult:
    """The record of a turn that was asked. `asked`, `ended` and `zero`, the start of the run, are times on `clock`."""
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
