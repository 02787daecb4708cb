"""Extra clients that misbehave as real ones do: they hang up, read slowly, arrive in a burst or stay silent."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ws_bench.errors import TurnBroken
from ws_bench.load.client import ClientSocket
from ws_bench.load.conversation import RunContext, create_session, follow_turn
from ws_bench.record.dialects import CompatibleTurn, NativeTurn, TurnReader, ask_frame, clock, parse_event, resume_frame

_KINDS = ("hang-ups", "slow readers", "burst", "idle")


@dataclass(slots=True)
class MisbehaviourCounts:
    """Counts by kind: clients that came, turns that ended as intended, and errors."""

    came: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    errors: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in _KINDS})

    def as_json(self) -> dict[str, object]:
        """For a result file: only the kinds that took part."""
        return {
            kind: {"came": self.came[kind], "good": self.good[kind], "errors": dict(self.errors[kind])}
            for kind in _KINDS
            if self.came[kind]
        }


class MisbehavingClients:
    """Runs them as tasks of the run and ends them with it. None of their turns is in a percentile."""

    def __init__(self, context: RunContext, random: Random) -> None:
        self.counts = MisbehaviourCounts()
        self._context = context
        self._options = context.config.misbehaviour
        self._random = random
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._first_ask = asyncio.Event()

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start the clients that are there from the beginning."""
        self._group = group
        options = self._options
        for _ in range(options.idle):
            self._spawn(self._idle, "idle")
        for _ in range(round(options.slow_share * self._context.config.clients)):
            self._spawn(self._slow_reader, "slow readers")
        if options.burst:
            self._spawn(self._burst, "")

    def before_turn(self) -> None:
        """Call before each measured turn: with the configured probability another client asks and hangs up."""
        self._first_ask.set()
        if self._options.hangup_share and self._random.random() < self._options.hangup_share:
            self._spawn(self._hangup, "hang-ups")

    def end(self) -> None:
        """Cancel every client: the measured turns are done."""
        self._ending = True
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]], kind: str) -> None:
        if self._group is None or self._ending:
            return
        if kind:
            self.counts.came[kind] += 1
        group: asyncio.TaskGroup = self._group
        task = group.create_task(work(), name=kind or "burst")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _idle(self) -> None:
        kind = "idle"
        try:
            socket = await self._context.connector.connect()
        except TurnBroken as broken:
            self.counts.errors[kind][broken.kind] += 1
            return
        try:
            while True:
                await socket.recv()
        except TurnBroken as broken:
            self.counts.errors[kind][broken.kind] += 1
        except asyncio.CancelledError:
            self.counts.good[kind] += 1
            raise
        finally:
            await socket.close()

    async def _burst(self) -> None:
        await self._first_ask.wait()
        await asyncio.sleep(self._options.burst_at_s)
        for _ in range(self._options.burst):
            self._spawn(self._one_of_burst, "burst")

    async def _one_of_burst(self) -> None:
        async with _ExtraClient(self._context, self.counts.errors["burst"]) as client:
            await client.connect()
            reader = await client.ask()
            await client.follow(reader)
            self.counts.good["burst"] += 1

    async def _slow_reader(self) -> None:
        async with _ExtraClient(self._context, self.counts.errors["slow readers"]) as client:
            await client.connect(bytes_per_s=self._options.slow_bytes_per_s)
            while not self._ending:
                reader = await client.ask()
                await client.follow(reader)
                self.counts.good["slow readers"] += 1

    async def _hangup(self) -> None:
        async with _ExtraClient(self._context, self.counts.errors["hang-ups"]) as client:
            await client.connect()
            reader = await client.ask()
            ended = await client.hang_up_after(reader, self._options.hangup_after_s)
            self.counts.good["hang-ups"] += 1
            if self._options.reconnect and not ended:
                await client.resume(reader)


class _ExtraClient:
    """A client with a session and socket of its own, which deletes what it created and counts its failures."""

    def __init__(self, context: RunContext, errors: Counter[str]) -> None:
        self._context = context
        self._errors = errors
        self._connection: ClientSocket | None = None
        self._session_id = ""
        self._own_session = False
        self._exchange_id = ""

    async def __aenter__(self) -> "_ExtraClient":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, failure: BaseException | None, _: object) -> bool:
        # Also when the run cancels this client's task: within the deadlines of close and delete.
        if self._connection is not None:
            await self._connection.close()
        if self._own_session and self._context.config.delete_session:
            await self._context.sessions.delete(self._session_id)
        if isinstance(failure, TurnBroken):
            self._errors[failure.kind] += 1
            return True
        if isinstance(failure, TimeoutError):
            self._errors["turn_timeout"] += 1
            return True
        return False

    async def connect(self, *, bytes_per_s: float = 0.0) -> None:
        config = self._context.config
        if config.owns_sessions:
            self._session_id = await create_session(self._context)
            self._own_session = True
        else:
            self._session_id = config.session
        async with asyncio.timeout(config.timeout_s):
            self._connection = await self._context.connector.connect(bytes_per_s=bytes_per_s)

    async def ask(self) -> TurnReader:
        config = self._context.config
        self._exchange_id = uuid.uuid4().hex
        frame = ask_frame(self._session_id, self._exchange_id, config.message, config.agent, config.runtime_context)
        await self._socket().send(frame)
        if config.native:
            return NativeTurn(self._exchange_id)
        return CompatibleTurn(self._session_id, self._exchange_id)

    async def follow(self, reader: TurnReader) -> None:
        async with asyncio.timeout(self._context.config.timeout_s):
            await follow_turn(self._socket(), reader, lambda: None)

    async def hang_up_after(self, reader: TurnReader, after_s: float | None) -> bool:
        """Read until it is time, then drop the connection. Returns whether the turn had ended before."""
        ended = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.config.timeout_s if after_s is None else after_s):
                while not ended and (after_s is not None or reader.first_token_at is None):
                    frame = await self._socket().recv()
                    ended = reader.feed(parse_event(frame), clock())
        self._socket().abort()
        return ended

    async def resume(self, reader: TurnReader) -> None:
        async with asyncio.timeout(self._context.config.timeout_s):
            self._connection = await self._context.connector.connect()
            await self._connection.send(resume_frame(self._session_id, self._exchange_id, reader.last_seq))
        await self.follow(reader)

    def _socket(self) -> ClientSocket:
        if self._connection is None:
            raise RuntimeError("a client is used before it is connected")
        return self._connection
