"""When a turn may start: the pacer decides, whatever the service does. Also how a run is stopped early."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

from ws_bench.dialects import clock


class Interrupt:
    """The wish to end early: no turn starts any more, and deadlines already running shrink to the grace time."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._event = asyncio.Event()
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        return self._event.is_set()

    def request(self) -> None:
        """End the run: running turns have the grace time left."""
        if self.requested:
            return
        self._event.set()
        latest = asyncio.get_running_loop().time() + self._grace_s
        for scope in self._scopes:
            when = scope.when()
            if when is None or when > latest:
                scope.reschedule(latest)

    async def pause(self, seconds: float) -> None:
        """Wait, or return at once when the run is to end."""
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return

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
    """Gives each client its next start."""

    async def admit(self, client: int) -> float | None:
        """Wait until this client may start its next turn: the intended start (`clock` seconds), None when it is done.

        What was admitted counts as started; a caller that cannot send it reports an error.
        """


class ClosedLoop:
    """Each client starts its next turn when the last one ended; first starts are spread evenly over the ramp.

    Latency measured so says nothing about what users waiting elsewhere would have seen (coordinated omission).
    """

    def __init__(self, interrupt: Interrupt, *, clients: int, turns_each: int, ramp_s: float = 0.0) -> None:
        self._interrupt = interrupt
        self._left = [turns_each] * clients
        self._waiting = [True] * clients
        self._slot_s = ramp_s / (clients - 1) if clients > 1 else 0.0
        self._begin = clock()

    async def admit(self, client: int) -> float | None:
        """See `Pacer.admit`."""
        if self._waiting[client]:
            self._waiting[client] = False
            await self._interrupt.pause(self._begin + client * self._slot_s - clock())
        if self._interrupt.requested or self._left[client] == 0:
            return None
        self._left[client] -= 1
        return clock()


class SharedTotal:
    """All clients take turns from one total, without a ramp: total mode."""

    def __init__(self, interrupt: Interrupt, *, total: int) -> None:
        self._interrupt = interrupt
        self._left = total

    async def admit(self, client: int) -> float | None:  # noqa: ARG002 - which client asks makes no difference here
        """See `Pacer.admit`."""
        if self._interrupt.requested or self._left == 0:
            return None
        self._left -= 1
        return clock()
