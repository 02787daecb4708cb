"""A response as a stream of its numbered events."""

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.sse import HEARTBEAT
from agentic_backend.session.stream import Failed, Turn, TurnEvent
from agentic_backend.surfaces.openai.answering import failed
from agentic_backend.surfaces.openai.response_events import ResponseEvents
from agentic_backend.surfaces.openai.telling import failure_of


class ResponseStream:
    """Writes one response. Implements `agentic_backend.chat.sse.StreamWriter`."""

    heartbeat = HEARTBEAT
    owed = None

    def __init__(self, events: ResponseEvents, headers: Mapping[str, str], after: int = -1) -> None:
        """`headers` of the answer, beside those of every stream. Its client has all events up to the number `after`."""
        self._events = events
        self._given = headers
        self._after = after

    @property
    def over(self) -> bool:
        """See `StreamWriter`."""
        return self._events.over

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """See `StreamWriter`."""
        return [(name.lower().encode(), value.encode()) for name, value in self._given.items()]

    def write(self, turn: Turn, event: TurnEvent) -> bytes:  # noqa: ARG002 - of the protocol
        """See `StreamWriter`."""
        told = self._events.take(event.payload)
        if len(told) == 1:
            return told[0].frame(self._after)  # mostly: a token
        return b"".join([one.frame(self._after) for one in told])

    def refuse(self, request: Request, failure: Failed) -> Response:  # noqa: ARG002 - of the protocol
        """See `StreamWriter`."""
        return failed(failure_of(failure), self._given)
