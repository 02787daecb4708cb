"""The events of one turn for a door, from any place on, as they come."""

import asyncio
from types import TracebackType

from agentic_backend.session.stream import Failed, Turn, TurnEvent

_JOINED_CHARS = 64 * 1024


class Following:
    """One reader of a turn: an async iterator over its events to the terminal one, and over heartbeats (None).

    `async with` it: leaving it is that its client has left, so a turn whose ask says so is cancelled where nobody else
    follows it. Whoever is behind gets fragments of one message joined, with the number of the last. It waits for the
    turn without a timer; a heartbeat is what `beat` asks for.
    """

    def __init__(self, turn: Turn, after: int = 0, *, from_place: int | None = None) -> None:
        """It begins behind the event with number `after` (0: with the first, all again after a restart), or at an
        index of the turn's events."""
        self.turn = turn
        self._place = turn.after(after) if from_place is None else from_place
        self._wake = asyncio.Event()
        self._beat = False

    @classmethod
    def of_ask(cls, turn: Turn) -> "Following":
        """The reader of a turn that was just submitted: without what an earlier run of the exchange had published."""
        return cls(turn, from_place=0 if turn.ask.human is None else turn.earlier)

    async def __aenter__(self) -> "Following":
        self.turn.follow(self._wake.set)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        turn = self.turn
        turn.unfollow(self._wake.set)
        if not turn.ended and turn.ask.on_disconnect == "cancel" and not turn.followed:
            turn.cancel()

    @property
    def up_to_date(self) -> bool:
        """Whether all events so far have been taken."""
        return self._place == len(self.turn.events)

    @property
    def behind_bytes(self) -> int:
        """Roughly the bytes of the events that have not been taken."""
        return self.turn.events.weight_from(self._place)

    def beat(self) -> None:
        """Let the iterator yield None before its next event, or at once where it waits."""
        self._beat = True
        self._wake.set()

    async def refusal(self) -> Failed | None:
        """Wait for the turn's first event of this run; it, where the ask was refused before its turn began."""
        turn = self.turn
        while not turn.has_published and self.up_to_date:
            await self._woken()
        first = turn.events[turn.earlier].payload if turn.has_published else None
        return first if isinstance(first, Failed) and first.refused else None

    def __aiter__(self) -> "Following":
        return self

    async def __anext__(self) -> TurnEvent | None:
        """The next event, None for a heartbeat. Stops after the terminal event."""
        while True:
            if self._beat:
                self._beat = False
                return None
            if not self.up_to_date:
                event, count = self.turn.events.joined(self._place, _JOINED_CHARS)
                self._place += count
                return event
            if self.turn.ended:
                raise StopAsyncIteration
            await self._woken()

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()
