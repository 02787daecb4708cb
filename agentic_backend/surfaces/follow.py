"""The events of one turn for a door, from any place on: one by one as they come, or streamed in its protocol; and its
end, where a client stops it."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.follow import Follow
from agentic_backend.chat.hub import RETRY_S
from agentic_backend.chat.sse import StreamWriter
from agentic_backend.session.stream import Failed, Payload, Turn, TurnEvent
from agentic_backend.surfaces.services import DoorServices
from backend_kit.wire import CODES

EVERYTHING: Final = 1 << 62
"""More characters than any text has: `EventLog.joined` then joins all fragments that follow each other."""
_STOP_S: Final = 5.0
"""How long a request waits for the turn that it stops: an agent may ignore the stop."""


class Following:
    """One reader of a turn: an async iterator over its events to the terminal one.

    For doors that do not answer with an event stream; those that do use `turn_stream`. It is a context manager: leaving
    it means that its client has left, so a turn whose ask says so is cancelled if nobody else follows it. A reader that
    is behind gets fragments of one message joined, with the number of the last.
    """

    def __init__(self, turn: Turn, after: int = 0, *, place: int | None = None, pace_s: float = 0.0) -> None:
        """It begins after the event with number `after`; 0: with the first of this run of the exchange. With `place` it
        begins at that index of the events instead.

        While the turn runs it wakes at most once in `pace_s` seconds; `math.inf`: not before the end. Waking a task for
        each token costs more than sending the token.
        """
        self.turn = turn
        self._follow = follow_of(turn, after) if place is None else Follow(turn, place)
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pace_s = pace_s
        self._due = math.inf if pace_s == math.inf else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._left = False

    def __enter__(self) -> "Following":
        self.turn.follow(self._noticed)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        turn = self.turn
        turn.unfollow(self._noticed)
        if self._timer is not None:
            self._timer.cancel()
        if not turn.ended and turn.ask.on_disconnect == "cancel" and not turn.followed:
            turn.cancel()

    def leave(self) -> None:
        """End the iterator, since its client has gone."""
        self._left = True
        self._wake.set()

    def __aiter__(self) -> "Following":
        return self

    async def __anext__(self) -> TurnEvent:
        """The next event. Stops after the terminal event, which a refusal is too."""
        while self._left or self._follow.up_to_date:
            if self._left or self.turn.ended:
                raise StopAsyncIteration
            await self._wake.wait()
            self._wake.clear()
            self._due = self._loop.time() + self._pace_s
        return self._follow.take()

    def _noticed(self) -> None:
        if self.turn.ended or self._loop.time() >= self._due:
            self._wake.set()
        elif self._timer is None and self._due != math.inf:
            self._timer = self._loop.call_at(self._due, self._due_now)

    def _due_now(self) -> None:
        self._timer = None
        self._wake.set()


def follow_of(turn: Turn, after: int = 0) -> Follow:
    """The index after the event with number `after`; 0: that of the first event of this run of the exchange, without
    what was published before a person was asked."""
    return Follow(turn, turn.after(after) if after or turn.ask.human is None else turn.earlier)


async def stop_turn(turn: Turn) -> None:
    """Cancel a turn that has not ended, and wait up to 5 s for its end: what it has said is then in its history."""
    if turn.ended:
        return
    turn.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await turn.wait_ended()


def whole_events(turn: Turn) -> Iterator[tuple[int, Payload]]:
    """The events of a turn with their indices, without those that were replaced when it ran again; consecutive
    fragments are joined."""
    place, events = turn.shown_from, turn.events
    while place < len(events):
        event, count = events.joined(place, EVERYTHING)
        yield place, event.payload
        place += count


async def turn_stream(
    services: DoorServices,
    request: Request,
    user_id: str,
    begin: Callable[[], Follow],
    writer: StreamWriter,
) -> Response:
    """The response to a request that starts a turn or comes back to one: what `writer` makes of its events up to the
    last.

    `begin` starts or finds the turn once the stream may be opened, and returns the position where its events are told
    from. Streams of doors count as our own do, for `limits.max_sockets`, `per_user.sockets` and `per_address.sockets`,
    get heartbeats after `deadlines.heartbeat_s`, are cut off if their client does not read for `deadlines.send_s`, and
    are waited for in a drain. A client that leaves cancels a turn whose ask says so. An ask that is refused becomes
    `writer.refuse`'s answer.
    """
    refusal = await refusal_of_stream(services, request, user_id)
    if refusal is not None:
        return writer.refuse(request, refusal)
    return services.hub.event_stream(request, user_id, begin, writer)


async def refusal_of_stream(services: DoorServices, request: Request, user_id: str) -> Failed | None:
    """Why no further stream may be opened; None: it may be, and counts from now on."""
    code = await services.hub.refusal_of_stream(request, user_id)
    if code is None:
        return None
    return Failed(code, refused=True, retry_after_ms=RETRY_S * 1000 if CODES[code].retryable else None)
