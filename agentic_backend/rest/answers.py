"""REST responses of any length, sent a part at a time: memory is bounded whatever is asked for."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_backend.errors import Overloaded
from backend_kit.aio import Crowded, FairGate, GateRules
from backend_kit.kpi import Kpi, Status
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

UNREAD: Final = "answers_unread"
"""The label of answers that were cut off because their client did not read them, in `app_limit_hits_total`."""
ANSWER_PARTS: Final = GateRules(places=16, per_user=4, reserve=4)
"""A place holds one part: up to a quarter of a MiB, a whole one where a single message is as large."""
_SLOWEST_BYTES: Final = 256 * 1024
"""Bytes that a client must take within `deadlines.send_s`."""
_SEND_BYTES: Final = 64 * 1024
"""Bytes handed to the transport at a time, which buffers as much."""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer's body. `last`: the answer ends with it; the last one need not say so."""

    body: bytes
    last: bool = False


Parts = AsyncIterator[AnswerPart]


@dataclass(frozen=True, slots=True)
class Answers:
    """What all such answers share. `send_s` is how many seconds a client may take for 256 KiB; `limit_hit` is called
    for those that take longer."""

    kpi: Kpi
    send_s: float
    limit_hit: Callable[[str], None]
    gate: FairGate


class _Unread(Exception):
    """The client is not reading."""


class PagedAnswer(Response):
    """A response whose parts are made once those before them have been sent.

    A single part is an ordinary response with its length. Before each part it waits for a place at the gate, which the
    part holds until the client has taken it: so the bytes in flight are bounded per user and in total. A client that is
    too slow is cut off, and so is one whose answer cannot be completed: a connection that is closed in the middle is
    the only way to say so. A failure before the first part is an ordinary error response.
    """

    def __init__(
        self, answers: Answers, user_id: str, parts: Parts, *, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """`parts` has at least one part. The total time of making them is its `history_get`."""
        self.media_type = media_type
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._answers = answers
        self._user_id = user_id
        self._parts = parts
        self._made_s = 0.0
        self._made: Status | None = None
        self._begun = self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's shape
        """Answer the request."""
        state = scope.get("state", {})
        on_gone: Callable[[Callable[[], None] | None], None] = state.get("on_gone", _nobody)
        on_gone(self._leave)
        try:
            async with aclosing(self._parts):  # type: ignore[type-var] # each is a generator
                await self._send_all(send)
        except _Unread:
            self._answers.limit_hit(UNREAD)
            state.get("abort", _nothing)()
        except ServiceError as error:
            if not self._begun:
                raise
            logger.warning("an answer was cut off: %s", type(error).__name__)
            state.get("abort", _nothing)()
        finally:
            on_gone(None)
            if self._made is not None:
                self._answers.kpi.record_phase("history_get", self._made_s, self._made)

    async def _send_all(self, send: Send) -> None:
        last = False
        while not (last or self._gone):
            try:
                async with self._answers.gate.place(self._user_id):
                    last = await self._send_next(send)
            except Crowded:
                raise Overloaded(retry_after_s=self._answers.send_s) from None

    async def _send_next(self, send: Send) -> bool:
        """Make a part and send it; whether it was the last one."""
        part = await self._next_part()
        if not self._begun:
            if part.last:
                self.headers["content-length"] = str(len(part.body))
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._gone:
            return True
        try:
            async with asyncio.timeout(self._answers.send_s * max(1.0, len(part.body) / _SLOWEST_BYTES)):
                await self._send_part(part, send)
        except TimeoutError:
            raise _Unread from None
        return part.last

    async def _next_part(self) -> AnswerPart:
        began = time.perf_counter()
        self._made = "ok"
        try:
            part = await anext(self._parts, AnswerPart(b"", last=True))
        except BaseException as failure:
            self._made = self._answers.kpi.status_of(failure)
            raise
        finally:
            self._made_s += time.perf_counter() - began
        return part

    @staticmethod
    async def _send_part(part: AnswerPart, send: Send) -> None:
        body = memoryview(part.body)
        for start in range(0, len(body) or 1, _SEND_BYTES):
            end = start + _SEND_BYTES
            more = not part.last or end < len(body)
            await send({"type": "http.response.body", "body": bytes(body[start:end]), "more_body": more})

    def _leave(self) -> None:
        self._gone = True


def _nobody(_callback: Any) -> None:
    pass


def _nothing() -> None:
    pass
