"""The turns of one session over plain HTTP, one after the other: a stream that stays open between them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

from agentic_backend.chat.follow import Follow
from agentic_backend.chat.sse import OpenStream, StreamWriter
from agentic_backend.session.stream import Turn
from backend_kit.auth import Identity
from backend_kit.wire import ServiceError

_TOGETHER_BYTES: Final = 32 * 1024
"""Past events are sent in pieces of this size: sending each alone would cost more than encoding it."""


class Series(Protocol):
    """Which turns a stream sends."""

    def open(self, notice: Callable[[], None]) -> None:
        """Begin to watch for turns: `notice` is called when there may be another one."""

    async def next(self) -> Turn | None:
        """The turn to stream next, or None if there is none now. Raises ServiceError."""

    def close(self) -> None:
        """Stop watching."""


class SeriesStream(OpenStream):
    """Answers a request with the events of a session's turns until its client leaves, or the process ends.

    Each event is written as it came, fragments of a text too: a client that comes back gets what it already has in the
    same pieces, and recognises them by their ids.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        session_id: str,
        turns: Series,
        failed: Callable[[ServiceError], bytes],
        watched: Callable[[OpenStream], AbstractContextManager[None]],
        delivered: Callable[[float], None],
        writer: StreamWriter,
    ) -> None:
        """`failed` gives the final event of a stream that cannot continue; the rest is as in `OpenStream`."""
        super().__init__(user_id=identity.uid, watched=watched, delivered=delivered, writer=writer)
        self._identity = identity
        self._session_id = session_id
        self._turns = turns
        self._failed = failed
        self._draining = False

    @property
    def sessions(self) -> set[str]:
        """The id of the session, which is watched between its turns as well."""
        return {self._session_id}

    @property
    def overdue(self) -> bool:
        """Whether its token has expired, and it follows no turn."""
        follow = self._follow
        return (follow is None or follow.turn.ended) and self._identity.ended()

    def drain(self) -> None:
        """End when no turn is followed."""
        self._draining = True
        self._wake.set()

    def _open(self) -> None:
        self._turns.open(self._wake.set)

    async def _write(self, scope: Scope, _receive: Receive, send: Send) -> None:
        await self._begin_answer(scope, send)
        while not self._gone:
            await self._catch_up(send)
            if self._writer.over:
                break
            if self._follow is None or self._follow.turn.ended:
                try:
                    found = await self._take_next()
                except ServiceError as error:
                    await self._send(send, self._failed(error))
                    break
                if found:
                    continue
                if self._draining:
                    break
            if not await self._beat_or_wait(send):
                return
        await self._send(send, b"", more=False)

    async def _take_next(self) -> bool:
        """Follow the next turn, if there is one."""
        OpenStream._let_go(self)
        self._follow = None
        turn = await self._turns.next()
        if turn is not None:
            self._take_up(Follow(turn, turn.shown_from, most_chars=0))
        return turn is not None

    async def _next(self, follow: Follow | None) -> bytes:
        """What is to be sent next: past events are joined into large pieces."""
        said = await super()._next(follow)
        while follow is not None and not (self._unsent or follow.up_to_date or self._writer.owed or self._writer.over):
            if len(said) > _TOGETHER_BYTES:
                break
            said += self._writer.write(follow.turn, follow.take())
        return said

    def _let_go(self) -> None:
        self._turns.close()
        super()._let_go()
