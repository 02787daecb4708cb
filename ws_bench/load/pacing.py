"""When a turn may start, which a pacer decides independently of the service, and how a run is stopped early."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Protocol

from ws_bench.config.distributions import RandomVariable
from ws_bench.record.dialects import clock


class Interrupt:
    """A request to end early: no further turn starts, and running deadlines are shortened to the grace time."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._event = asyncio.Event()
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def requested(self) -> bool:
        """Whether an early end was requested."""
        return self._event.is_set()

    def request(self) -> None:
        """Request the end: running turns get the grace time."""
        if self.requested:
            return
        self._event.set()
        latest = asyncio.get_running_loop().time() + self._grace_s
        for scope in self._scopes:
            when = scope.when()
            if when is None or when > latest:
                scope.reschedule(latest)

    async def wait(self) -> None:
        """Wait for the request."""
        await self._event.wait()

    async def pause(self, seconds: float) -> None:
        """Wait at least this long, or until an early end is requested."""
        until = clock() + seconds
        # The loop's timers count whole milliseconds and may come early by less than one.
        while (left := until - clock()) > 0 and not self.requested:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._event.wait()

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """`asyncio.timeout` that an interrupt shortens. Raises TimeoutError."""
        async with asyncio.timeout(min(seconds, self._grace_s) if self.requested else seconds) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)


class Pacer(Protocol):
    """Decides when each client may start its next turn."""

    async def admit(self, client: int) -> float | None:
        """Wait until this client may start its next turn: the intended start (`clock` seconds), None when it is done.

        An admitted turn counts as started; a caller that cannot send it reports an error.
        """

    @property
    def total(self) -> int:
        """Turns that the run is to make; for a run of fixed duration, those admitted so far."""


class ClosedLoop:
    """Each client starts its next turn when its last one has ended; first starts are spread evenly over the ramp.

    A client makes `turns_each` turns, or those that begin within `duration_s` from the start, with a think time between
    them. Latency measured this way ignores users who would have been waiting meanwhile (coordinated omission).
    """

    def __init__(
        self,
        interrupt: Interrupt,
        *,
        clients: int,
        turns_each: int,
        ramp_s: float = 0.0,
        duration_s: float = 0.0,
        think: RandomVariable | None = None,
        random: Random | None = None,
    ) -> None:
        self._interrupt = interrupt
        self._planned = clients * turns_each
        self._left = [turns_each] * clients
        self._waiting = [True] * clients
        self._slot_s = ramp_s / (clients - 1) if clients > 1 else 0.0
        self._duration_s = duration_s
        self._think = think
        self._random = random or Random(0)  # noqa: S311 - think times are no secret
        self._admitted = 0
        self._begin = clock()

    @property
    def total(self) -> int:
        """See `Pacer.total`."""
        return self._admitted if self._duration_s else self._planned

    async def admit(self, client: int) -> float | None:
        """See `Pacer.admit`."""
        if not self._duration_s and self._left[client] == 0:
            return None
        if self._waiting[client]:
            self._waiting[client] = False
            await self._interrupt.pause(self._begin + client * self._slot_s - clock())
        elif self._think is not None:
            await self._interrupt.pause(self._think.draw(self._random))
        if self._interrupt.requested or (self._duration_s and clock() >= self._begin + self._duration_s):
            return None
        self._left[client] -= 1
        self._admitted += 1
        return clock()


class SharedTotal:
    """All clients draw from one total number of turns, without a ramp: total mode."""

    def __init__(self, interrupt: Interrupt, *, total: int) -> None:
        self._interrupt = interrupt
        self._left = total
        self._total = total

    @property
    def total(self) -> int:
        """See `Pacer.total`."""
        return self._total

    async def admit(self, client: int) -> float | None:  # noqa: ARG002 - which client asks makes no difference here
        """See `Pacer.admit`."""
        if self._interrupt.requested or self._left == 0:
            return None
        self._left -= 1
        return clock()


class OpenLoop:
    """Turns arrive by a schedule; the next free client takes each one, late if all were busy.

    A turn that no client could take within `patience_s` is dropped: counted but never asked. Nothing arrives before
    `start`, so that sockets and sessions can be opened first.
    """

    def __init__(self, interrupt: Interrupt, schedule: Sequence[float], *, patience_s: float) -> None:
        self._interrupt = interrupt
        self._schedule = schedule
        self._patience_s = patience_s
        self._next = 0
        self._begin = 0.0
        self._started = asyncio.Event()
        self.dropped = 0

    @property
    def total(self) -> int:
        """See `Pacer.total`."""
        return len(self._schedule)

    def start(self) -> float:
        """Start the schedule and return its start time (`clock` seconds)."""
        self._begin = clock()
        self._started.set()
        return self._begin

    async def admit(self, client: int) -> float | None:  # noqa: ARG002 - which client asks makes no difference here
        """See `Pacer.admit`."""
        await self._started.wait()
        while self._next < len(self._schedule) and not self._interrupt.requested:
            due = self._begin + self._schedule[self._next]
            self._next += 1
            if clock() - due > self._patience_s:
                self.dropped += 1
                continue
            await self._interrupt.pause(due - clock())
            return None if self._interrupt.requested else due
        return None
