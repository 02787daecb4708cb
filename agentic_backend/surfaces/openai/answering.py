"""Answers a request with the output of a turn: in one piece, or as a stream of events.

The turn runs in its registry, and the response follows it. A client that disconnects stops the turn if its ask says so:
clients of these protocols have no other way to stop an answer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_backend.chat.sse import HEARTBEAT
from agentic_backend.session.stream import Failed, Payload, Restarted, Turn, TurnEvent
from agentic_backend.surfaces.follow import Following
from agentic_backend.surfaces.openai.answer_reader import Failure, failure_of
from agentic_backend.surfaces.openai.errors import error_json, error_response


class Encoder(Protocol):
    """Turns the events of one turn into those of a protocol."""

    @property
    def over(self) -> bool:
        """Whether its end came before that of the turn."""

    def opening(self) -> bytes:
        """What comes before the first event."""

    def encode(self, payload: Payload) -> bytes:
        """What a client gets for an event, b"" for nothing."""


class EncodedStream:
    """Writes a turn as a stream of events. Implements `agentic_backend.chat.sse.StreamWriter`."""

    heartbeat = HEARTBEAT
    owed = None

    def __init__(self, encoder: Encoder, headers: Mapping[str, str]) -> None:
        """`headers` of the response, in addition to those of every stream."""
        self._encoder = encoder
        self._given = headers
        self._opened = False

    @property
    def over(self) -> bool:
        """See `StreamWriter`."""
        return self._encoder.over

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """See `StreamWriter`."""
        return [(name.lower().encode(), value.encode()) for name, value in self._given.items()]

    def write(self, turn: Turn, event: TurnEvent) -> bytes:  # noqa: ARG002 - of the protocol
        """See `StreamWriter`."""
        if self._opened:
            return self._encoder.encode(event.payload)
        self._opened = True
        return self._encoder.opening() + self._encoder.encode(event.payload)

    def refuse(self, request: Request, failure: Failed) -> Response:  # noqa: ARG002 - of the protocol
        """See `StreamWriter`."""
        return failed(failure_of(failure), self._given)


class WholeAnswer(Response):
    """One JSON document, once the turn has ended."""

    def __init__(
        self,
        begin: Callable[[], Turn],
        headers: Mapping[str, str],
        encode: Callable[[Sequence[Payload]], bytes | Failure],
    ) -> None:
        """`begin` submits the ask, `encode` makes the document from all events of its turn's last run."""
        super().__init__()
        self._begin = begin
        self._given = headers
        self._encode = encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        on_gone = scope["state"]["on_gone"]
        with Following(self._begin(), pace_s=math.inf) as following:
            on_gone(following.leave)
            try:
                payloads = await _last_run(following)
            finally:
                on_gone(None)
        if payloads and following.turn.ended:
            await self._whole_response(payloads)(scope, receive, send)

    def _whole_response(self, payloads: Sequence[Payload]) -> Response:
        encoded = self._encode(payloads)
        if isinstance(encoded, Failure):
            return failed(encoded, self._given)
        return Response(encoded, 200, dict(self._given), "application/json")


async def _last_run(following: Following) -> list[Payload]:
    """The events of a turn, without those that were replaced when it ran again."""
    payloads: list[Payload] = []
    async for event in following:
        if isinstance(event.payload, Restarted):
            payloads.clear()
        else:
            payloads.append(event.payload)
    return payloads


def failed(failure: Failure, headers: Mapping[str, str]) -> Response:
    """The HTTP response to a request that failed before any other response."""
    return error_response(
        failure.status,
        error_json(failure.status, failure.message, failure.code, failure.param),
        retryable=failure.retryable,
        retry_after_s=failure.retry_after_s,
        headers=headers,
    )
