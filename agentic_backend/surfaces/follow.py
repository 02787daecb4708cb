"""The events of one turn for a door, from any place on, as they come."""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from agentic_backend.chat.follow import Follow
from agentic_backend.session.stream import EventLog, Payload, Turn, TurnEvent

EVERYTHING: Final = 1 << 62
"""More characters than any text has: `EventLog.joined` then joins all fragments that follow each other."""


class Following:
    """One reader of a turn: an async iterator over its events to the terminal one, and over heartbeats (None).

    For doors that do not answer with an event stream; those that do use `turn_stream`. `with` it: leaving it is that
    its client has left, so a turn whose ask says so is cancelled where nobody else follows it. Whoever is behind gets
    fragments of one message joined, with the number of the last. It waits for the turn without a timer; a heartbeat is
    what `beat` asks for.
    """

    def __init__(self, turn: Turn, after: int = 0) -> None:
        """It begins behind the event with number `after`; 0: with the first of this run of the exchange."""
        self.turn = turn
        self._follow = follow_of(turn, after)
        self._wake = asyncio.Event()
        self._beat = False

    def __enter__(self) -> "Following":
        self.turn.follow(self._wake.set)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        turn = self.turn
        turn.unfollow(self._wake.set)
        if not turn.ended and turn.ask.on_disconnect == "cancel" and not turn.followed:
            turn.cancel()

    def beat(self) -> None:
        """Let the iterator yield None before its next event, or at once where it waits."""
        self._beat = True
        self._wake.set()

    def __aiter__(self) -> "Following":
        return self

    async def __anext__(self) -> TurnEvent | None:
        """The next event, None for a heartbeat. Stops after the terminal event, which a refusal is too."""
        while True:
            if self._beat:
                self._beat = False
                return None
            if not self._follow.up_to_date:
                return self._follow.take()
            if self.turn.ended:
                raise StopAsyncIteration
            await self._wake.wait()
            self._wake.clear()


def follow_of(turn: Turn, after: int = 0) -> Follow:
    """The position behind the event with number `after`; 0: before the first event of this run of the exchange, which
    leaves out what it had published before it asked a person."""
    return Follow(turn, turn.after(after) if after or turn.ask.human is None else turn.earlier)


def whole_events(events: EventLog) -> Iterator[tuple[int, Payload]]:
    """The events with their places; fragments that follow each other are one."""
    place = 0
    while place < len(events):
        event, count = events.joined(place, EVERYTHING)
        yield place, event.payload
        place += count
